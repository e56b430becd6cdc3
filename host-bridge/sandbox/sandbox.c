#include "host-bridge/sandbox/sandbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/cancel_all.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/sandbox/sandbox_warm.h"
#include "host-bridge/steady.h"
#include "host-bridge/vm/vm_usage.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "proto/log.h"

struct sandbox_set *sandbox_set_of(const struct sandbox *s)
{
	return s->set;
}

double sandbox_still(const struct sandbox *s)
{
	return link_gate_still(&s->gate);
}

const char *sandbox_id(const struct sandbox *s)
{
	return s->id;
}

enum sandbox_status sandbox_status(const struct sandbox *s)
{
	return s->status;
}

const struct sandbox_spec *sandbox_spec(const struct sandbox *s)
{
	return &s->spec;
}

void sandbox_event(struct sandbox *s, const char *type, const char *exec_id, const char *detail)
{
	if (s->warm)
		return;
	struct event e = {.type = type, .detail = detail, .at_ms = clock_wall_ms()};
	snprintf(e.sandbox_id, sizeof(e.sandbox_id), "%s", s->id);
	snprintf(e.workspace, sizeof(e.workspace), "%s", s->spec.workspace);
	if (exec_id != NULL)
		snprintf(e.exec_id, sizeof(e.exec_id), "%s", exec_id);
	event_log_add(s->set->events, &e);
}

struct vm_usage_call *sandbox_usage(const struct sandbox *s,
                                    void (*on_done)(const struct vm_usage *u, void *arg),
                                    void *arg, struct err *e)
{
	if (s->vm != NULL && !s->launcher->external)
		return vm_usage_ask(s->vm, on_done, arg, e);
	err_set(e, ERR_SANDBOX_LOST, "the sandbox has no process on this node");
	return NULL;
}

int sandbox_patch(struct sandbox *s, const struct sandbox_patch *p, struct err *e)
{
	struct sandbox_spec old = s->spec;
	if (p->metadata != NULL && doc_copy(&s->spec.metadata, p->metadata, e) < 0) {
		s->spec.metadata = old.metadata;
		return -1;
	}
	if (p->ttl_seconds != NULL)
		s->spec.ttl_seconds = *p->ttl_seconds;
	if (p->max_lifetime_seconds != NULL)
		s->spec.max_lifetime_seconds = *p->max_lifetime_seconds;
	if (p->persistent != NULL)
		s->spec.persistent = *p->persistent;
	int rc = sandbox_save(s, e);
	if (p->metadata != NULL)
		json_decref(rc == 0 ? old.metadata : s->spec.metadata);
	if (rc < 0)
		s->spec = old;
	sandbox_update_timer(s);
	return rc;
}

/* ---- the VM ---- */

static void on_vm_changed(struct vm *vm, void *arg)
{
	struct err e = {0};
	(void)vm;
	if (sandbox_save(arg, &e) < 0)
		sandbox_failed(arg, &e);
}

static void on_vm_up(struct vm *vm, void *arg)
{
	struct sandbox *s = arg;
	(void)vm;
	s->up = steady_now();
	if (s->restored && s->agent != NULL && s->generation > 0)
		sandbox_answered(s); /* the snapshot says who it is */
	else
		sandbox_ask_agent(s);
}

static void on_vm_down(struct vm *vm, const struct err *why, void *arg)
{
	(void)vm;
	sandbox_failed(arg, why);
}

const struct vm_handlers sandbox_vm_handlers = {
    .on_changed = on_vm_changed,
    .on_up = on_vm_up,
    .on_down = on_vm_down,
};

static void on_vm_gone(void *arg)
{
	struct sandbox *s = arg;
	s->vm = NULL;
	s->stopping = false;
	sandbox_save_end(s);
	if (s->deleted)
		sandbox_timer_in(s, 0.);
	else if (s->status == SANDBOX_HIBERNATED)
		sandbox_asleep(s);
}

/* It has its own copy by now, or will never have one. */
static void drop_source(struct sandbox *s)
{
	if (s->source != NULL)
		snapshot_release(s->set, s->source);
	s->source = NULL;
}

static void drop_links(struct sandbox *s)
{
	drop_source(s);
	sandbox_operation_cancel(s);
	sandbox_drop_links(s);
	sandbox_stop_pulse(s);
	sandbox_stop_idle(s);
	sandbox_stop_watch(s);
	sandbox_drop_bracket(s);
	sandbox_start_free(s);
}

void sandbox_stop_vm(struct sandbox *s)
{
	drop_links(s);
	if (s->vm == NULL || s->stopping)
		return;
	s->stopping = true;
	vm_stop(s->vm, on_vm_gone, s);
}

void sandbox_running(struct sandbox *s)
{
	struct err e = {0};
	if (!s->recovers) {
		s->launch_ms = (unsigned)((s->up - s->born) * 1e3);
		s->agent_ms = (unsigned)((steady_now() - s->up) * 1e3);
	}
	/* Something may run in all but a template's first boot, and in what starts from that,
	 * unless the template has a service. */
	bool used =
	    s->waking || s->recovers || s->source != NULL || s->launcher->external || s->serves;
	enum sandbox_status before = s->status;
	s->status = SANDBOX_RUNNING;
	/* One that recovers has a row that says so: the next bridge would let it go on again.
	 */
	if (sandbox_save(s, &e) < 0 && !s->recovers) {
		s->status = before;
		sandbox_failed(s, &e);
		return;
	}
	s->waking = s->recovers = false;
	if (s->bracket == NULL)
		link_gate_open(&s->gate);
	drop_source(s);
	sandbox_touch(s);
	vm_booted(s->vm);
	sandbox_drop_saved(s); /* not before: this row says that it is not needed */
	sandbox_event(s, "running", NULL, s->restored ? "restore" : NULL);
	log_info("sandbox", s->id, "runs on %s (%s), booted in %u+%u ms", s->launcher->name,
	         s->isolation, s->launch_ms, s->agent_ms);
	sandbox_update_timer(s);
	sandbox_want_spare(s, SPARE_DELAY_MS);
	sandbox_start_watch(s, used);
	sandbox_tell_waiters(s);
	sandbox_warm_fill(s);
}

void sandbox_failed(struct sandbox *s, const struct err *why)
{
	if (s->deleted || s->status == SANDBOX_FAILED)
		return;
	if (s->waking) {
		sandbox_not_woken(s, why);
		return;
	}
	log_warn("sandbox", s->id, "failed: %s", why->msg);
	if (s->status == SANDBOX_CREATING && s->restored && s->source == NULL && !s->warmed &&
	    why->code != ERR_STORAGE_FULL && why->code != ERR_CAPACITY)
		baked_discard(
		    s->baked); /* whether it was at fault or not: the next one boots */
	if (s->warm) {
		sandbox_warm_drop(s);
		return;
	}
	s->failure = *why;
	if (s->status == SANDBOX_CREATING) /* the next try makes another */
		s->spec.idempotency_key[0] = '\0';
	s->status = SANDBOX_FAILED;
	sandbox_event(s, "failed", NULL, err_name(why->code));
	sandbox_touch(s);
	sandbox_save_end(s);
	sandbox_stop_vm(s);
	sandbox_drop_saved(s); /* it was about to hibernate */
	sandbox_update_timer(s);
	sandbox_tell_waiters(s);
	sandbox_tell(s, SANDGATE__CANCEL_REASON__CANCEL_NONE);
}

/* ---- memory ---- */

void sandbox_insert(struct sandbox *s)
{
	struct sandbox_list *all = &s->set->all;
	struct sandbox *before = TAILQ_LAST(all, sandbox_list);
	while (before != NULL && strcmp(before->id, s->id) > 0)
		before = TAILQ_PREV(before, sandbox_list, entry);
	if (before != NULL)
		TAILQ_INSERT_AFTER(all, before, s, entry);
	else
		TAILQ_INSERT_HEAD(all, s, entry);
}

struct sandbox *sandbox_new(struct sandbox_set *set, const char *id)
{
	struct sandbox *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return NULL;
	s->set = set;
	snprintf(s->id, sizeof(s->id), "%s", id);
	s->created_ms = clock_wall_ms();
	s->born = s->active = s->made = steady_now();
	sandbox_init_timer(s);
	sandbox_init_waiters(s);
	sandbox_init_links(s);
	sandbox_init_pulse(s);
	sandbox_init_watch(s);
	sandbox_insert(s);
	return s;
}

void sandbox_free(struct sandbox *s)
{
	TAILQ_REMOVE(s->warm ? &s->set->warm : &s->set->all, s, entry);
	ev_timer_stop(s->set->loop, &s->timer);
	drop_links(s);
	sandbox_free_watch(s);
	cancel_all_stop(s->cancel_all);
	vm_forget(s->vm);
	sandbox_drop_waiters(s);
	json_decref(s->agent);
	sandbox_free_spec(&s->spec);
	free(s->said);
	free(s);
}
