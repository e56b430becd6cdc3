/* Operations on a sandbox, one at a time: it is saved, or its CPUs stand still. Meanwhile
 * nobody gets a link: who wants one waits, and calls in progress, whose sessions the agent has
 * ended, come back through the same gate. */
#include <stddef.h>
#include <stdlib.h>

#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/limits.h"

/* ---- one at a time ---- */

/* What an API call asked for, until it is told. */
struct sandbox_operation {
	struct snapshot *snapshot; /* to be; NULL: pause or resume */
	sandbox_done *on_done;
	void *arg;
	enum sandbox_status to; /* pause and resume */
	struct err failure;     /* why a pause is taken back */
};

void sandbox_operation_forget(struct sandbox *s)
{
	free(s->operation);
	s->operation = NULL;
	s->frozen = s->bracket != NULL;
}

int sandbox_check_vmm(const struct sandbox *s, struct err *e)
{
	if (s->launcher->vmm != NULL)
		return 0;
	return err_set(e, ERR_LIMIT_UNSUPPORTED, "the launcher %s can do no such thing",
	               s->launcher->name);
}

int sandbox_operation_begin(struct sandbox *s, enum sandbox_status from, sandbox_done *on_done,
                            void *arg, struct err *e)
{
	if (s->status != from || s->operation != NULL || s->recovers) {
		err_set(e, ERR_INVALID_STATE,
		        s->status == from ? "the sandbox is being changed already"
		                          : "the sandbox is %s",
		        sandbox_status_name(s->status));
		return -1;
	}
	struct sandbox_operation *o = calloc(1, sizeof(*o));
	if (o == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return -1;
	}
	o->on_done = on_done;
	o->arg = arg;
	s->operation = o;
	s->frozen = true;
	if (sandbox_save(s, e) == 0)
		return 0;
	sandbox_operation_forget(s);
	return -1;
}

void sandbox_operation_end(struct sandbox *s, struct snapshot *n, const struct err *e)
{
	struct sandbox_operation o = *s->operation;
	struct err ignored = {0};
	sandbox_operation_forget(s);
	if (!s->deleted)
		sandbox_save(s, &ignored); /* not frozen any more; a failure does no harm */
	o.on_done(s, n, e, o.arg);
}

void sandbox_quiesce(struct sandbox *s)
{
	sandbox_tell_mute(s, true);
	sandbox_drop_links(s);
	sandbox_stop_pulse(s);
	sandbox_stop_idle(s);
	sandbox_stop_watch(s);
}

void sandbox_reopen(struct sandbox *s)
{
	link_gate_open(&s->gate);
	if (!LIST_EMPTY(&s->listeners))
		sandbox_start_pulse(s);
	sandbox_want_spare(s, SPARE_DELAY_MS);
	sandbox_start_watch(s, false);
	sandbox_touch(s);
	sandbox_update_timer(s);
}

void sandbox_operation_cancel(struct sandbox *s)
{
	struct err e = {.code = ERR_SANDBOX_LOST, .msg = "the sandbox was lost meanwhile"};
	freeze_cancel(s->freeze);
	s->freeze = NULL;
	if (s->baking)
		baked_drop(s->baked);
	s->baking = false;
	bool falls_asleep = s->status == SANDBOX_HIBERNATED && !s->waking;
	if (s->operation == NULL || falls_asleep) /* told when its VM is gone */
		return;
	link_gate_close(&s->gate, NULL); /* it may have waited for that to be quiet */
	if (s->operation->snapshot != NULL)
		snapshot_abandon(s->set, s->operation->snapshot);
	if (s->deleted)
		err_set(&e, ERR_SANDBOX_GONE, "the sandbox was deleted");
	sandbox_operation_end(s, NULL, &e);
}

/* ---- snapshots ---- */

static void on_saved(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	struct snapshot *n = s->operation->snapshot;
	struct err e = r->not_saved;
	char dir[PATH_MAX];
	s->freeze = NULL;
	s->operation->snapshot = NULL;
	s->generation = r->generation;
	snapshot_dir(s->set, n, true, dir);
	if (e.code == ERR_NONE)
		sandbox_write_agent(s, dir);
	if (e.code != ERR_NONE) {
		snapshot_abandon(s->set, n);
		n = NULL;
	} else if (snapshot_keep(s->set, n, &e) < 0) {
		n = NULL;
	}
	if (n != NULL)
		sandbox_event(s, "snapshot", NULL, NULL);
	if (!freeze_is_loss(r))
		sandbox_reopen(s);
	sandbox_operation_end(s, n, n == NULL ? &e : NULL);
	if (freeze_is_loss(r))
		sandbox_failed(s, &r->lost);
}

/* Nobody is in the middle of asking for something: what is asked from now on waits. */
static void on_quiet(struct link_gate *g)
{
	struct sandbox *s = (struct sandbox *)((char *)g - offsetof(struct sandbox, gate));
	struct freeze_target t = sandbox_freeze_target(s);
	struct freeze_result r = {.generation = s->generation};
	char dir[PATH_MAX];
	snapshot_dir(s->set, s->operation->snapshot, true, dir);
	s->freeze = freeze_save(&t, dir, on_saved, s, &r.not_saved);
	if (s->freeze == NULL)
		on_saved(&r, s);
}

int sandbox_snapshot(struct sandbox *s, json_t *metadata, enum snapshot_kind kind,
                     sandbox_done *on_done, void *arg, struct err *e)
{
	if (sandbox_check_vmm(s, e) < 0 ||
	    sandbox_operation_begin(s, SANDBOX_RUNNING, on_done, arg, e) < 0) {
		json_decref(metadata);
		return -1;
	}
	s->operation->snapshot = snapshot_begin(s, metadata, kind, e);
	if (s->operation->snapshot == NULL) {
		sandbox_operation_forget(s);
		return -1;
	}
	sandbox_quiesce(s);
	link_gate_close(&s->gate, on_quiet);
	return 0;
}

/* ---- pause and resume ---- */

static void on_pause_undone(const struct err *e, void *arg)
{
	struct sandbox *s = arg;
	struct err why = s->operation->failure;
	if (e != NULL) {
		sandbox_failed(s, e);
		return;
	}
	sandbox_reopen(s);
	sandbox_operation_end(s, NULL, &why);
}

/* What the VMM has not said that it did, it may have done; and what could not be written down,
 * the next bridge would undo. */
static void undo_pause(struct sandbox *s, const struct err *why)
{
	struct err e = {0};
	s->status = SANDBOX_RUNNING;
	s->operation->failure = *why;
	if (vm_ask(s->vm, VM_GO_ON, NULL, on_pause_undone, s, &e) < 0)
		sandbox_failed(s, &e);
}

static void on_switched(const struct err *e, void *arg)
{
	struct sandbox *s = arg;
	struct err failed = {0};
	if (e == NULL) {
		s->status = s->operation->to;
		if (sandbox_save(s, &failed) < 0)
			e = &failed;
	}
	if (e != NULL && s->operation->to == SANDBOX_PAUSED) {
		undo_pause(s, e);
		return;
	}
	if (e == NULL)
		sandbox_event(s, sandbox_status_name(s->status), NULL, NULL);
	if (s->status == SANDBOX_RUNNING)
		sandbox_reopen(s);
	sandbox_operation_end(s, NULL, e);
}

static int switch_cpus(struct sandbox *s, enum sandbox_status from, enum sandbox_status to,
                       enum vm_request what, sandbox_done *on_done, void *arg, struct err *e)
{
	if (sandbox_check_vmm(s, e) < 0 ||
	    sandbox_operation_begin(s, from, on_done, arg, e) < 0)
		return -1;
	s->operation->to = to;
	if (vm_ask(s->vm, what, NULL, on_switched, s, e) == 0) {
		sandbox_quiesce(s);
		link_gate_close(&s->gate, NULL);
		return 0;
	}
	sandbox_operation_forget(s);
	return -1;
}

int sandbox_pause(struct sandbox *s, sandbox_done *on_done, void *arg, struct err *e)
{
	return switch_cpus(s, SANDBOX_RUNNING, SANDBOX_PAUSED, VM_PAUSE, on_done, arg, e);
}

int sandbox_resume(struct sandbox *s, sandbox_done *on_done, void *arg, struct err *e)
{
	return switch_cpus(s, SANDBOX_PAUSED, SANDBOX_RUNNING, VM_RESUME, on_done, arg, e);
}
