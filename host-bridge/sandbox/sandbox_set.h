/*
 * All sandboxes of this bridge: making them, finding them, and finding them again after a
 * restart. One set a process, on a state directory that it locks. bridge.c creates it, the
 * API's handlers ask it. What one sandbox does is sandbox.h.
 */
#ifndef SANDGATE_SANDBOX_SET_H
#define SANDGATE_SANDBOX_SET_H

#include <ev.h>
#include <jansson.h>
#include <stdbool.h>

#include "host-bridge/sandbox/sandbox_spec.h"
#include "proto/err.h"

struct sandbox;
struct sandbox_set;

struct sandbox_set_config {
	const char *state_dir, *rootfs_dir, *node;
	const char *launcher;   /* a launcher's name, or "auto" */
	const char *agent_path; /* for the launcher `local` */
	const char *vm_uids;    /* "FIRST:COUNT"; NULL or "": the usual range */
	unsigned warm_pool;     /* VMs of each kind that was used lately, made in advance */
};

/* Open the state directory (ERR_INVALID_STATE: another process has it). */
struct sandbox_set *sandbox_set_create(struct ev_loop *loop, const struct sandbox_set_config *c,
                                       struct err *e);
/* Re-adopt what the registry knows: call before serving. */
int sandbox_set_adopt(struct sandbox_set *set, struct err *e);
/* No creates come any more: what was made for them in advance goes. */
void sandbox_set_drain(struct sandbox_set *set);
void sandbox_set_destroy(struct sandbox_set *set); /* VMs live on, but for warm ones */

/* Create; `spec` is copied. `on_ready` comes once, never inside: err NULL when execs are
 * accepted. The sandbox exists (status creating) from the call's return on.
 * ERR_TEMPLATE_NOT_FOUND, ERR_CAPACITY, …
 */
struct sandbox *sandbox_create(struct sandbox_set *set, const struct sandbox_spec *spec,
                               void (*on_ready)(struct sandbox *s, const struct err *e,
                                                void *arg),
                               void *arg, struct err *e);
/* Keep so many that were made tentatively, all or none of them: those of one fork. -1 with
 * ERR_STORAGE_FULL, …: they are as they were. */
int sandbox_confirm(struct sandbox *const *all, unsigned count, struct err *e);
/* Have each create judged: `admit` is asked once all that the sandbox takes is settled, when it
 * is in the set already, and -1 refuses it. NULL: nobody is asked. */
void sandbox_set_on_create(struct sandbox_set *set,
                           int (*admit)(const struct sandbox_spec *spec, void *arg,
                                        struct err *e),
                           void *arg);
/* NULL with ERR_SANDBOX_NOT_FOUND (unknown, or another workspace's) or ERR_SANDBOX_GONE.
 * `workspace` NULL sees all (admin). */
struct sandbox *sandbox_find(struct sandbox_set *set, const char *id, const char *workspace,
                             struct err *e);
/* One that is being deleted, and not all that it had is gone yet; or NULL. */
struct sandbox *sandbox_find_ending(struct sandbox_set *set, const char *id,
                                    const char *workspace);
/* Whether `id` was deleted within DELETED_S (DELETE answers 204 again). */
bool sandbox_was_deleted(struct sandbox_set *set, const char *id, const char *workspace);
/* The sandbox that an Idempotency-Key made within IDEMPOTENCY_S. Finding an orphan claims it.
 * NULL: it made none, or with ERR_SANDBOX_GONE one that was deleted. A create that failed
 * gives its key back. */
struct sandbox *sandbox_find_key(struct sandbox_set *set, const char *workspace,
                                 const char *key, struct err *e);
/* Iterate in order of id; NULL starts, NULL ends. */
struct sandbox *sandbox_next(struct sandbox_set *set, const struct sandbox *after);
/* Sandboxes that are creating, running or paused; `workspace` NULL counts all. */
size_t sandbox_count(struct sandbox_set *set, const char *workspace);
/* What happens to its sandboxes. */
struct event_log *sandbox_set_events(struct sandbox_set *set);
/* template_list() of its directory. New reference. */
json_t *sandbox_set_templates(struct sandbox_set *set);
/* For GET /v1/node: {launcher, launchers: [{name, usable, isolation, reason}], capacity and
 * allocated: {memory_mib, vcpus}}. New reference. */
json_t *sandbox_set_json(struct sandbox_set *set);

#endif
