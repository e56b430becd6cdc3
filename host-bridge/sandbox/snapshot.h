/*
 * Snapshots that were asked for: what each one is, its files, and its row in the registry. The
 * API's handlers list, show and delete them; sandbox_operation.c makes them, sandbox_create.c
 * starts sandboxes from them. Files are under STATE/snapshots/<id>; a directory whose name
 * ends with .part was never finished, and goes at the next start.
 */
#ifndef SANDGATE_SNAPSHOT_H
#define SANDGATE_SNAPSHOT_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "host-bridge/sandbox/sandbox.h"
#include "proto/err.h"

struct snapshot {
	TAILQ_ENTRY(snapshot) entry; /* once it is whole */
	char id[128];
	char workspace[64], sandbox_id[128], template[64];
	char launcher[32], isolation[8];
	unsigned vcpus, memory_mib, disk_mib;
	char image[IMAGE_KEY_MAX]; /* the key of its root image, or "" */
	int64_t created_ms;
	uint64_t bytes;                   /* on disk */
	json_t *metadata, *exec_defaults; /* owned; exec_defaults may be NULL */
	unsigned loading; /* sandboxes that are being made from it: its files stay */
	enum snapshot_kind kind;
	bool deleted;
};
TAILQ_HEAD(snapshots, snapshot);

/* NULL with ERR_SNAPSHOT_NOT_FOUND: unknown, or another workspace's. `workspace` NULL: all. */
struct snapshot *snapshot_find(struct sandbox_set *set, const char *id, const char *workspace,
                               struct err *e);
/* In order of id; NULL starts, NULL ends. */
struct snapshot *snapshot_next(struct sandbox_set *set, const struct snapshot *after);
/* What it is, as the API shows it; children are the sandboxes made from it that live. */
json_t *snapshot_json(struct sandbox_set *set, const struct snapshot *n);
/* Its files go as soon as no sandbox is being made from them. */
int snapshot_delete(struct sandbox_set *set, struct snapshot *n, struct err *e);

/* ---- for the files of a sandbox ---- */

/* Where its files are, or will be. */
void snapshot_dir(const struct sandbox_set *set, const struct snapshot *n, bool part,
                  char out[PATH_MAX]);
/* One of `s`, with an empty directory to save to. `metadata` is taken over, NULL is {}. */
struct snapshot *snapshot_begin(struct sandbox *s, json_t *metadata, enum snapshot_kind kind,
                                struct err *e);
/* It is whole: keep it, and write it down. On failure it is gone. */
int snapshot_keep(struct sandbox_set *set, struct snapshot *n, struct err *e);
/* It will not be: remove what there is. */
void snapshot_abandon(struct sandbox_set *set, struct snapshot *n);
/* Its files are needed, and not any more. */
void snapshot_hold(struct snapshot *n);
void snapshot_release(struct sandbox_set *set, struct snapshot *n);
/* Read the registry's; sweep what is in no row. Before serving. */
int snapshot_load_all(struct sandbox_set *set, struct err *e);
void snapshot_forget_all(struct sandbox_set *set);

#endif
