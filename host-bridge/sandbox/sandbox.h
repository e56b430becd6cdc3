/*
 * A sandbox: its identity, its state machine, its timers, its spare link; and the set of
 * them. The API's handlers call it; it calls launchers and the registry; it never touches
 * HTTP. Everything here is remembered across a restart through the registry.
 *
 *   creating ──► running ──► deleted          (paused, hibernated: second version)
 *       └──────────┴──► failed ──► deleted
 */
#ifndef SANDGATE_SANDBOX_H
#define SANDGATE_SANDBOX_H

#include <ev.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "host-bridge/link/link.h"
#include "proto/err.h"

enum sandbox_status {
	SANDBOX_CREATING,
	SANDBOX_RUNNING,
	SANDBOX_PAUSED,
	SANDBOX_HIBERNATED,
	SANDBOX_FAILED,
	SANDBOX_DELETED
};

struct sandbox_spec {
	char template[64];
	char workspace[64];
	char idempotency_key[256];                /* "" for none */
	char request_digest[65];                  /* hex, of the create's body */
	double ttl_seconds, max_lifetime_seconds; /* 0: none */
	unsigned vcpus, memory_mib, disk_mib;     /* 0: the template's */
	json_t *metadata;                         /* object, owned by the spec's owner */
	json_t *exec_defaults;                    /* object or NULL */
	bool attach;
	struct endpoint endpoint; /* with attach */
};

struct sandbox_set;
struct sandbox;

struct sandbox_set_config {
	const char *state_dir, *rootfs_dir, *node, *launcher, *agent_path;
};

struct sandbox_set *sandbox_set_create(struct ev_loop *loop, const struct sandbox_set_config *c,
                                       struct err *e);
/* Re-adopt what the registry knows: call before serving. */
int sandbox_set_adopt(struct sandbox_set *set, struct err *e);
void sandbox_set_destroy(struct sandbox_set *set); /* VMs live on */

/* Create. `on_ready` comes once, never inside: err NULL when execs are accepted. The sandbox
 * exists (status creating) from the call's return on. ERR_TEMPLATE_NOT_FOUND, ERR_CAPACITY, …
 */
struct sandbox *sandbox_create(struct sandbox_set *set, const struct sandbox_spec *spec,
                               void (*on_ready)(struct sandbox *s, const struct err *e,
                                                void *arg),
                               void *arg, struct err *e);
/* The creator's caller is gone: without a key the sandbox is deleted, with one it is kept
 * IDEMPOTENCY_ORPHAN_S for a replay. on_ready is not called any more. */
void sandbox_creator_gone(struct sandbox *s);
/* Wait for status running (or failure): calls on_ready as above; several may wait. */
int sandbox_wait_ready(struct sandbox *s,
                       void (*on_ready)(struct sandbox *, const struct err *, void *),
                       void *arg, struct err *e);
void sandbox_wait_cancel(struct sandbox *s, void *arg);

/* NULL with ERR_SANDBOX_NOT_FOUND (unknown, or another workspace's) or ERR_SANDBOX_GONE.
 * `workspace` NULL sees all (admin). */
struct sandbox *sandbox_find(struct sandbox_set *set, const char *id, const char *workspace,
                             struct err *e);
/* Whether `id` was deleted within DELETED_S (DELETE answers 204 again). */
bool sandbox_was_deleted(struct sandbox_set *set, const char *id, const char *workspace);
struct sandbox *sandbox_find_key(struct sandbox_set *set, const char *workspace,
                                 const char *key);
/* Iterate in order of id; NULL starts, NULL ends. */
struct sandbox *sandbox_next(struct sandbox_set *set, const struct sandbox *after);
size_t sandbox_count(struct sandbox_set *set, const char *workspace);

/* Delete: cancels its execs with `reason`, then destroys the VM (or detaches from it).
 * `on_done` once, never inside; may be NULL. Calls in progress get their listener called. */
void sandbox_delete(struct sandbox *s, Sandgate__CancelReason reason,
                    void (*on_done)(void *arg), void *arg);
int sandbox_patch(struct sandbox *s, const double *ttl, const double *lifetime,
                  json_t *metadata, struct err *e);

/* A link that is READY or connecting: the spare one when there is one (a new spare is made
 * in idle time). The caller then calls link_open. */
struct link *sandbox_link(struct sandbox *s, struct err *e);
/* Something that counts as activity (stdin bytes, an exec's start or end); hold/unhold
 * bracket what keeps the sandbox busy (an exec with a deadline or a subscriber). */
void sandbox_touch(struct sandbox *s);
void sandbox_hold(struct sandbox *s);
void sandbox_unhold(struct sandbox *s);

/* Calls in progress register to hear that the sandbox goes away under them: `on_end` with
 * the cancel reason (deleted, expired, shutdown) *before* links are cut, or with
 * CANCEL_NONE when the guest is lost. Embedded in the call. */
struct sandbox_listener {
	LIST_ENTRY(sandbox_listener) entry;
	void (*on_end)(struct sandbox_listener *l, Sandgate__CancelReason reason);
};
void sandbox_listen(struct sandbox *s, struct sandbox_listener *l);
void sandbox_unlisten(struct sandbox_listener *l);

const char *sandbox_id(const struct sandbox *s);
enum sandbox_status sandbox_status(const struct sandbox *s);
const struct sandbox_spec *sandbox_spec(const struct sandbox *s);
/* The API's Sandbox object (api.md section 2), new reference. */
json_t *sandbox_json(const struct sandbox *s);

#endif
