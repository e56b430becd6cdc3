/*
 * What must outlive the bridge: one row a sandbox, in SQLite (WAL) under the state
 * directory, which one process at a time may use. sandbox_set calls it; it knows nothing of
 * what its JSON columns mean. A row stays DELETED_S after its sandbox was deleted.
 */
#ifndef SANDGATE_REGISTRY_H
#define SANDGATE_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

struct registry;

/* Strings are never NULL; "" where there is nothing. Instants are ms since the epoch. */
struct registry_row {
	const char *id, *workspace, *launcher, *status;
	const char *spec;  /* JSON */
	const char *state; /* JSON of what the launcher left in the world; "" when nothing */
	const char *idempotency_key, *request_digest;
	int64_t created_ms;
	int64_t deleted_ms; /* 0: not deleted */
};

/* The same of a snapshot; `info` is JSON. */
struct registry_snapshot {
	const char *id, *workspace, *info;
	int64_t created_ms;
};

/* Make `state_dir` if need be (mode 0700), lock it and open the database in it. Fails with
 * ERR_INVALID_STATE when another process uses it, or the schema is newer than this tree's. */
struct registry *registry_open(const char *state_dir, struct err *e);
void registry_close(struct registry *r);

/* Insert or replace. ERR_STORAGE_FULL when the disk is full. */
int registry_put(struct registry *r, const struct registry_row *row, struct err *e);
/* What is put between the two is written together, or not at all: as `keep` says, and when
 * registry_end fails. */
int registry_begin(struct registry *r, struct err *e);
int registry_end(struct registry *r, bool keep, struct err *e);
/* All rows in order of id; those of `each` may not be kept and `r` not written meanwhile. */
int registry_each(struct registry *r, void (*each)(const struct registry_row *row, void *arg),
                  void *arg, struct err *e);
/* Whether `id` was deleted; `workspace` NULL matches all. */
bool registry_was_deleted(struct registry *r, const char *id, const char *workspace);
/* Whether a sandbox that this key made since `since_ms` was deleted. */
bool registry_key_was_deleted(struct registry *r, const char *workspace, const char *key,
                              int64_t since_ms);
/* Forget rows deleted before `before_ms` whose launcher left nothing behind. */
void registry_purge(struct registry *r, int64_t before_ms);

int registry_put_snapshot(struct registry *r, const struct registry_snapshot *row,
                          struct err *e);
int registry_each_snapshot(struct registry *r,
                           void (*each)(const struct registry_snapshot *row, void *arg),
                           void *arg, struct err *e);
int registry_delete_snapshot(struct registry *r, const char *id, struct err *e);

#endif
