/*
 * A sandbox: its identity, its state machine, its timers, its spare link. The API's handlers
 * call it; it calls launchers and the registry; it never touches HTTP. Everything here is
 * remembered across a restart through the registry; a restart counts as activity.
 *
 *   creating ──► running ◄──► paused, or hibernated
 *       └──────────┴────────────┴──► failed ──► deleted; any may be deleted
 */
#ifndef SANDGATE_SANDBOX_H
#define SANDGATE_SANDBOX_H

#include <ev.h>
#include <jansson.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "host-bridge/link/link.h"
#include "host-bridge/sandbox/sandbox_set.h"
#include "host-bridge/sandbox/sandbox_spec.h"
#include "proto/err.h"

struct sandbox;

/* The creator's caller is gone: without a key the sandbox is deleted, with one it is kept
 * IDEMPOTENCY_ORPHAN_S for a replay. on_ready is not called any more. */
void sandbox_creator_gone(struct sandbox *s);
/* Wait for status running (or failure): calls on_ready as sandbox_create does; several may
 * wait. */
int sandbox_wait_ready(struct sandbox *s,
                       void (*on_ready)(struct sandbox *, const struct err *, void *),
                       void *arg, struct err *e);
void sandbox_wait_cancel(struct sandbox *s, void *arg);

/* Delete: cancels its execs with `reason`, then destroys the VM (or detaches from it).
 * `on_done` once, never inside; may be NULL. Calls in progress get their listener called. With
 * ERR_STORAGE_FULL, …, nothing of it is left but its row: that goes as soon as the registry can
 * be written to, or the next bridge finds a sandbox that has failed. With ERR_CAPACITY it may
 * be that more is left, and goes as soon as it can be removed. -1: there is no memory for
 * `on_done`, and nothing is done. */
int sandbox_delete(struct sandbox *s, Sandgate__CancelReason reason,
                   void (*on_done)(const struct err *e, void *arg), void *arg);

/* A new ttl, lifetime, persistence, or whole metadata object (copied); NULL leaves one as it
 * is. */
struct sandbox_patch {
	const double *ttl_seconds, *max_lifetime_seconds;
	const bool *persistent;
	json_t *metadata;
};
int sandbox_patch(struct sandbox *s, const struct sandbox_patch *p, struct err *e);

/* Operations on a sandbox that runs (or, to resume, is paused), one at a time: -1 with
 * ERR_INVALID_STATE otherwise, ERR_LIMIT_UNSUPPORTED where its launcher can do no such thing,
 * and on_done is not called. Else it is, once, when it is done or has failed: `n` is the
 * snapshot. Calls in progress go on over a snapshot; while it is paused they stand still.
 * `metadata` is taken over, NULL is {}. */
struct snapshot;
enum snapshot_kind {
	SNAPSHOT_KEPT,
	SNAPSHOT_PASSING /* nobody but on_done sees it, and deletes it; a restart does, too */
};
typedef void sandbox_done(struct sandbox *s, struct snapshot *n, const struct err *e,
                          void *arg);
int sandbox_snapshot(struct sandbox *s, json_t *metadata, enum snapshot_kind kind,
                     sandbox_done *on_done, void *arg, struct err *e);
/* Before a snapshot is made for `count` children: ERR_INVALID_STATE when what `s` runs on is
 * not what new sandboxes run on, ERR_CAPACITY or ERR_STORAGE_FULL when there is no room for
 * their memory. What they take besides is known only once they take it. */
int sandbox_check_fork(struct sandbox *s, unsigned count, struct err *e);
int sandbox_pause(struct sandbox *s, sandbox_done *on_done, void *arg, struct err *e);
int sandbox_resume(struct sandbox *s, sandbox_done *on_done, void *arg, struct err *e);
/* The same: save it and stop its VM. ERR_INVALID_STATE when calls are in progress. */
int sandbox_hibernate(struct sandbox *s, sandbox_done *on_done, void *arg, struct err *e);
/* The same for an attached one, whose VM somebody else is about to save: its agent is brought
 * to rest, and calls in progress wait until sandbox_resumed says how the guest goes on, or
 * until the agent goes on by itself. ERR_LIMIT_UNSUPPORTED when it is not attached. */
int sandbox_prepare(struct sandbox *s, sandbox_done *on_done, void *arg, struct err *e);
uint64_t sandbox_generation(const struct sandbox *s); /* prepared: what the answer names */
/* `generation` is that of the prepare that it ends, else ERR_INVALID_STATE. `endpoint` is where
 * the guest is now; NULL: where it was. `how` is what it is told (see freeze.h), read during
 * the call. A failure leaves it prepared. */
int sandbox_resumed(struct sandbox *s, uint64_t generation, const struct endpoint *endpoint,
                    const Sandgate__Resume *how, sandbox_done *on_done, void *arg,
                    struct err *e);
/* {generation, failed}: what the last of these answered, new reference. */
json_t *sandbox_resumed_json(const struct sandbox *s);
/* Bring a hibernated one back; sandbox_wait_ready does it by itself, and tells. -1 with `e`: it
 * is not hibernated, or nothing could be started (ERR_CAPACITY, …), and it still is. */
int sandbox_wake(struct sandbox *s, struct err *e);

/* A link that is READY or connecting: the spare one when there is one (a new spare is made
 * in idle time), or one that waits while too many are in use, a few less when it is `urgent`.
 * The caller then calls link_open, and destroys the link before it lets go of the sandbox. */
struct link *sandbox_link(struct sandbox *s, bool urgent, struct err *e);
/* Something that counts as activity (stdin bytes, an exec's start or end); hold/unhold
 * bracket what keeps the sandbox busy (an exec with a deadline or a subscriber). A sandbox
 * that was deleted stays in memory while it is held or listened to. */
void sandbox_touch(struct sandbox *s);
void sandbox_hold(struct sandbox *s);
void sandbox_unhold(struct sandbox *s);

/* Calls in progress register to hear that the sandbox goes away under them: `on_end`, once,
 * with the cancel reason (deleted, expired) *before* links are cut, or with CANCEL_NONE when
 * the guest is lost. The VM is killed when all have unlistened, DELETE_CANCEL_MS later at
 * the latest. Or `on_mute`, once, when the agent answers nobody any more. Embedded in the
 * call. */
struct sandbox_listener {
	LIST_ENTRY(sandbox_listener) entry;
	struct sandbox *sandbox; /* kept by sandbox_listen */
	bool yields; /* no activity: it gets on_mute when the sandbox is to be saved or stopped
	              */
	void (*on_end)(struct sandbox_listener *l, Sandgate__CancelReason reason);
	void (*on_mute)(struct sandbox_listener *l);
};
void sandbox_listen(struct sandbox *s, struct sandbox_listener *l);
void sandbox_unlisten(struct sandbox_listener *l);
/* The agent has said something to one of them. */
void sandbox_heard(struct sandbox *s);

/* What its VM takes of this host; NULL with ERR_SANDBOX_LOST when it has none here. */
struct vm_usage;
struct vm_usage_call *sandbox_usage(const struct sandbox *s,
                                    void (*on_done)(const struct vm_usage *u, void *arg),
                                    void *arg, struct err *e);
/* An exec that a call has asked for: follow it, tell once that it has started, and that it has
 * ended (`outcome` a literal). Left, it may run on, and the sandbox learns of its end from the
 * agent; dropped, somebody else has started it. Embedded in the call; zeroed, it is nothing. */
struct sandbox_exec {
	LIST_ENTRY(sandbox_exec) entry;
	struct sandbox *sandbox;
	const char *id; /* the call's */
	bool started;
	const char *outcome; /* the agent has told its end, before its session did */
};
void sandbox_exec_follow(struct sandbox *s, struct sandbox_exec *x, const char *id);
void sandbox_exec_started(struct sandbox_exec *x);
/* It runs, and its start was not heard of: it is told now, unless it is another's. */
void sandbox_exec_attached(struct sandbox_exec *x);
void sandbox_exec_ended(struct sandbox_exec *x, const char *outcome);
void sandbox_exec_left(struct sandbox_exec *x);
void sandbox_exec_drop(struct sandbox_exec *x);
/* Tell those who watch its events. `type` and `detail` are literals; the last two may be NULL.
 */
void sandbox_event(struct sandbox *s, const char *type, const char *exec_id,
                   const char *detail);
struct sandbox_set *sandbox_set_of(const struct sandbox *s);
/* For how long its guest has stood still for a pause or a snapshot, all in all (seconds): its
 * clocks know nothing of it. */
double sandbox_still(const struct sandbox *s);
const char *sandbox_id(const struct sandbox *s);
enum sandbox_status sandbox_status(const struct sandbox *s);
const char *sandbox_status_name(enum sandbox_status status);
/* An enum sandbox_status; -1 with ERR_INVALID_FIELD when there is none by that name. */
int sandbox_status_named(const char *name, struct err *e);
const char *sandbox_failure(const struct sandbox *s); /* failed: why, a sentence */
const struct sandbox_spec *sandbox_spec(const struct sandbox *s);
/* What its template's commands printed before they failed the create: the end of it, as long as
 * the sandbox lives. False: nothing. */
struct result_partial;
bool sandbox_said(const struct sandbox *s, struct result_partial *out);
/* The API's Sandbox object (api.md section 2), new reference. */
json_t *sandbox_json(const struct sandbox *s);
/* {ttl_seconds, max_lifetime_seconds, persistent, idle_seconds, expires_at}, new reference. */
json_t *sandbox_lifecycle_json(const struct sandbox *s);
/* Whether its agent has named that feature; false before it has answered. */
bool sandbox_agent_has(const struct sandbox *s, const char *feature);

#endif
