/* When a sandbox's state is saved, when its CPUs stand still, and what becomes of one that was
 * restored. Meanwhile nobody gets a link: who wants one waits, and calls in progress, whose
 * sessions the agent has ended, come back through the same gate. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/sandbox/sandbox_warm.h"
#include "proto/limits.h"
#include "proto/log.h"

struct freeze_target sandbox_freeze_target(const struct sandbox *s)
{
	return (struct freeze_target){
	    .loop = s->set->loop,
	    .endpoint = s->endpoint,
	    .vm = s->vm,
	    .generation = s->generation,
	};
}

/* ---- after the first answer: a template is baked, a restored guest renewed ---- */

static void settle(struct sandbox *s, const struct freeze_result *r)
{
	s->freeze = NULL;
	s->generation = r->generation;
	if (r->lost.code != ERR_NONE)
		sandbox_failed(s, &r->lost);
	else if (s->warm)
		sandbox_warm_renewed(s);
	else
		sandbox_running(s);
}

/* One that has the names of another, or its clock, is nobody's sandbox. Where the image's owner
 * has kept the agent from setting them, that is as it was wished. */
static void on_renewed(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	struct freeze_result judged = *r;
	bool clone = !s->waking && !s->recovers && s->restored;
	for (unsigned n = 0; clone && sandbox_agent_has(s, "machine") && freeze_step(n) != NULL;
	     n++)
		if (r->failed & 1u << n && judged.lost.code == ERR_NONE)
			err_set(&judged.lost, ERR_LAUNCHER_FAILED,
			        "the guest could not be given a %s of its own", freeze_step(n));
	settle(s, &judged);
}

/* Who the agent is, beside its guest's files: what starts from them need not ask. */
static void write_agent(const struct sandbox *s, const char *dir)
{
	char path[PATH_MAX + sizeof(SNAPSHOT_AGENT)];
	json_t *json =
	    json_pack("{s:I, s:O}", "generation", (json_int_t)s->generation, "agent", s->agent);
	snprintf(path, sizeof(path), "%s/" SNAPSHOT_AGENT, dir);
	if (json_dump_file(json, path, JSON_COMPACT) < 0) {
		log_warn("sandbox", s->id, "%s could not be written", path);
		unlink(path); /* half of it would be a lie */
	}
	json_decref(json);
}

void sandbox_read_agent(struct sandbox *s, const char *dir)
{
	char path[PATH_MAX + sizeof(SNAPSHOT_AGENT)];
	json_int_t generation;
	json_t *agent;
	snprintf(path, sizeof(path), "%s/" SNAPSHOT_AGENT, dir);
	json_t *json = json_load_file(path, 0, NULL);
	if (json_unpack(json, "{s:I, s:o}", "generation", &generation, "agent", &agent) == 0) {
		s->generation = (uint64_t)generation;
		s->agent = json_incref(agent);
	}
	json_decref(json);
}

/* A template that is not baked is merely slower. */
static void on_baked(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	struct err e = r->not_saved;
	char part[PATH_MAX];
	s->baking = false;
	s->generation = r->generation;
	baked_part(s->baked, part);
	if (e.code == ERR_NONE)
		write_agent(s, part);
	if (e.code == ERR_NONE)
		baked_keep(s->baked, &e);
	else
		baked_drop(s->baked);
	if (e.code != ERR_NONE)
		log_warn("sandbox", s->id, "its template could not be baked: %s", e.msg);
	settle(s, r);
}

static int bake(struct sandbox *s, struct err *e)
{
	char part[PATH_MAX];
	struct freeze_target t = sandbox_freeze_target(s);
	if (baked_begin(s->baked, part, e) < 0)
		return -1;
	s->freeze = freeze_save(&t, part, on_baked, s, e);
	s->baking = s->freeze != NULL;
	if (s->baking)
		return 0;
	baked_drop(s->baked);
	return -1;
}

/* As the same guest, or as one of its own: a ULID is the last of an id, and unique alone. */
static void renew(struct sandbox *s, bool same)
{
	struct err e = {0};
	char hostname[64];
	struct freeze_target t = sandbox_freeze_target(s);
	Sandgate__Resume how = SANDGATE__RESUME__INIT;
	const char *ulid = strrchr(s->id, '-');
	if (!same) {
		how.role = SANDGATE__RESUME_ROLE__RESUME_CLONE;
		snprintf(hostname, sizeof(hostname), "sb%s", ulid != NULL ? ulid : "");
		how.hostname.data = (uint8_t *)hostname;
		how.hostname.len = strlen(hostname);
	}
	s->freeze = freeze_renew(&t, &how, on_renewed, s, &e);
	if (s->freeze == NULL)
		sandbox_failed(s, &e);
}

void sandbox_started(struct sandbox *s)
{
	struct err e = {0};
	if (s->baked[0] == '\0' || baked_exists(s->baked)) {
		sandbox_running(s);
	} else if (bake(s, &e) < 0) {
		log_info("sandbox", s->id, "its template is not baked: %s", e.msg);
		sandbox_running(s);
	}
}

void sandbox_answered(struct sandbox *s)
{
	bool same = s->waking || s->recovers;
	if (same || s->restored) {
		renew(s, same);
	} else if (s->start != NULL) {
		sandbox_start(s);
	} else {
		sandbox_started(s);
	}
}

/* ---- one change at a time ---- */

/* What an API call asked for, until it is told. */
struct sandbox_turn {
	struct snapshot *snapshot; /* to be; NULL: pause or resume */
	void (*on_done)(struct sandbox *s, struct snapshot *n, const struct err *e, void *arg);
	void *arg;
	enum sandbox_status to; /* pause and resume */
	struct err failure;     /* why a pause is taken back */
};

void sandbox_change_forget(struct sandbox *s)
{
	free(s->change);
	s->change = NULL;
	s->frozen = s->bracket != NULL;
}

int sandbox_check_vmm(const struct sandbox *s, struct err *e)
{
	if (s->launcher->vmm != NULL)
		return 0;
	return err_set(e, ERR_LIMIT_UNSUPPORTED, "the launcher %s can do no such thing",
	               s->launcher->name);
}

int sandbox_change_begin(struct sandbox *s, enum sandbox_status from, sandbox_changed *on_done,
                         void *arg, struct err *e)
{
	if (s->status != from || s->change != NULL || s->recovers) {
		err_set(e, ERR_INVALID_STATE,
		        s->status == from ? "the sandbox is being changed already"
		                          : "the sandbox is %s",
		        sandbox_status_name(s->status));
		return -1;
	}
	struct sandbox_turn *c = calloc(1, sizeof(*c));
	if (c == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return -1;
	}
	c->on_done = on_done;
	c->arg = arg;
	s->change = c;
	s->frozen = true;
	if (sandbox_save(s, e) == 0)
		return 0;
	sandbox_change_forget(s);
	return -1;
}

void sandbox_change_done(struct sandbox *s, struct snapshot *n, const struct err *e)
{
	struct sandbox_turn c = *s->change;
	struct err ignored = {0};
	sandbox_change_forget(s);
	if (!s->deleted)
		sandbox_save(s,
		             &ignored); /* not frozen any more; if it stays, no harm is done */
	c.on_done(s, n, e, c.arg);
}

void sandbox_hush(struct sandbox *s)
{
	sandbox_tell_mute(s, true);
	sandbox_drop_links(s);
	sandbox_stop_pulse(s);
	sandbox_stop_idle(s);
	sandbox_stop_watch(s);
}

void sandbox_wake_up(struct sandbox *s)
{
	link_gate_open(&s->gate);
	if (!LIST_EMPTY(&s->listeners))
		sandbox_start_pulse(s);
	sandbox_want_spare(s, SPARE_DELAY_MS);
	sandbox_start_watch(s, false);
	sandbox_touch(s);
	sandbox_update_timer(s);
}

void sandbox_change_cancel(struct sandbox *s)
{
	struct err e = {.code = ERR_SANDBOX_LOST, .msg = "the sandbox was lost meanwhile"};
	freeze_cancel(s->freeze);
	s->freeze = NULL;
	if (s->baking)
		baked_drop(s->baked);
	s->baking = false;
	bool falls_asleep = s->status == SANDBOX_HIBERNATED && !s->waking;
	if (s->change == NULL || falls_asleep) /* told when its VM is gone */
		return;
	link_gate_close(&s->gate, NULL); /* it may have waited for that to be quiet */
	if (s->change->snapshot != NULL)
		snapshot_abandon(s->set, s->change->snapshot);
	if (s->deleted)
		err_set(&e, ERR_SANDBOX_GONE, "the sandbox was deleted");
	sandbox_change_done(s, NULL, &e);
}

/* ---- what an earlier bridge left frozen ---- */

static void on_recovered(const struct err *e, void *arg)
{
	struct sandbox *s = arg;
	if (e != NULL)
		sandbox_failed(s, e);
	else
		sandbox_ask_agent(
		    s); /* it may wait for Resume, or not have heard of anything */
}

void sandbox_recover(struct sandbox *s)
{
	struct err e = {0};
	s->recovers = true;
	link_gate_close(&s->gate, NULL);
	if (vm_ask(s->vm, VM_RECOVER, NULL, on_recovered, s, &e) < 0)
		sandbox_failed(s, &e);
}

/* ---- snapshots ---- */

static void on_saved(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	struct snapshot *n = s->change->snapshot;
	struct err e = r->not_saved;
	char dir[PATH_MAX];
	s->freeze = NULL;
	s->change->snapshot = NULL;
	s->generation = r->generation;
	snapshot_dir(s->set, n, true, dir);
	if (e.code == ERR_NONE)
		write_agent(s, dir);
	if (e.code != ERR_NONE) {
		snapshot_abandon(s->set, n);
		n = NULL;
	} else if (snapshot_keep(s->set, n, &e) < 0) {
		n = NULL;
	}
	if (n != NULL)
		sandbox_event(s, "snapshot", NULL, NULL);
	if (r->lost.code == ERR_NONE)
		sandbox_wake_up(s);
	sandbox_change_done(s, n, n == NULL ? &e : NULL);
	if (r->lost.code != ERR_NONE)
		sandbox_failed(s, &r->lost);
}

/* Nobody is in the middle of asking for something: what is asked from now on waits. */
static void on_quiet(struct link_gate *g)
{
	struct sandbox *s = (struct sandbox *)((char *)g - offsetof(struct sandbox, gate));
	struct freeze_target t = sandbox_freeze_target(s);
	struct freeze_result r = {.generation = s->generation};
	char dir[PATH_MAX];
	snapshot_dir(s->set, s->change->snapshot, true, dir);
	s->freeze = freeze_save(&t, dir, on_saved, s, &r.not_saved);
	if (s->freeze == NULL)
		on_saved(&r, s);
}

int sandbox_snapshot(struct sandbox *s, json_t *metadata, enum snapshot_kind kind,
                     sandbox_changed *on_done, void *arg, struct err *e)
{
	if (sandbox_check_vmm(s, e) < 0 ||
	    sandbox_change_begin(s, SANDBOX_RUNNING, on_done, arg, e) < 0) {
		json_decref(metadata);
		return -1;
	}
	s->change->snapshot = snapshot_begin(s, metadata, kind, e);
	if (s->change->snapshot == NULL) {
		sandbox_change_forget(s);
		return -1;
	}
	sandbox_hush(s);
	link_gate_close(&s->gate, on_quiet);
	return 0;
}

/* ---- pause and resume ---- */

static void on_pause_undone(const struct err *e, void *arg)
{
	struct sandbox *s = arg;
	struct err why = s->change->failure;
	if (e != NULL) {
		sandbox_failed(s, e);
		return;
	}
	sandbox_wake_up(s);
	sandbox_change_done(s, NULL, &why);
}

/* It could not be written down: the next bridge would let the guest go on. */
static void undo_pause(struct sandbox *s, const struct err *why)
{
	struct err e = {0};
	s->status = SANDBOX_RUNNING;
	s->change->failure = *why;
	if (vm_ask(s->vm, VM_RESUME, NULL, on_pause_undone, s, &e) < 0)
		sandbox_failed(s, &e);
}

static void on_turned(const struct err *e, void *arg)
{
	struct sandbox *s = arg;
	struct err failed = {0};
	if (e == NULL) {
		s->status = s->change->to;
		if (sandbox_save(s, &failed) < 0)
			e = &failed;
	}
	if (e == &failed && s->status == SANDBOX_PAUSED) {
		undo_pause(s, e);
		return;
	}
	if (e == NULL)
		sandbox_event(s, sandbox_status_name(s->status), NULL, NULL);
	if (s->status == SANDBOX_RUNNING)
		sandbox_wake_up(s);
	sandbox_change_done(s, NULL, e);
}

static int turn(struct sandbox *s, enum sandbox_status from, enum sandbox_status to,
                enum vm_question what, sandbox_changed *on_done, void *arg, struct err *e)
{
	if (sandbox_check_vmm(s, e) < 0 || sandbox_change_begin(s, from, on_done, arg, e) < 0)
		return -1;
	s->change->to = to;
	if (vm_ask(s->vm, what, NULL, on_turned, s, e) == 0) {
		sandbox_hush(s);
		link_gate_close(&s->gate, NULL);
		return 0;
	}
	sandbox_change_forget(s);
	return -1;
}

int sandbox_pause(struct sandbox *s, sandbox_changed *on_done, void *arg, struct err *e)
{
	return turn(s, SANDBOX_RUNNING, SANDBOX_PAUSED, VM_PAUSE, on_done, arg, e);
}

int sandbox_resume(struct sandbox *s, sandbox_changed *on_done, void *arg, struct err *e)
{
	return turn(s, SANDBOX_PAUSED, SANDBOX_RUNNING, VM_RESUME, on_done, arg, e);
}
