/* The end of a sandbox. Calls in progress hear of it first and get a moment to cancel their
 * execs and read how those ended; then the VM goes; then those who asked are told; and the
 * memory goes when nobody holds it. */
#include <stdlib.h>

#include "host-bridge/sandbox/cancel_all.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/steady.h"
#include "proto/limits.h"

/* Nothing that is under way may make it anything but deleted. What somebody else's agent has
 * been asked is told first: sandbox_leave_bracket needs to know. */
static void break_off(struct sandbox *s)
{
	if (s->launcher->external)
		return;
	sandbox_operation_cancel(s);
	if (s->vm != NULL)
		vm_ask_cancel(s->vm);
}

int sandbox_delete(struct sandbox *s, Sandgate__CancelReason reason,
                   void (*on_done)(const struct err *e, void *arg), void *arg)
{
	struct sandbox_waiter w = {.on_done = on_done, .arg = arg};
	if (on_done != NULL && sandbox_add_waiter(&s->done_waiters, &w, NULL) < 0)
		return -1;
	if (s->deleted) {
		sandbox_timer_in(s, 0.);
		return 0;
	}
	s->deleted = true;
	s->reason = reason;
	s->status = SANDBOX_DELETED;
	break_off(s);
	sandbox_save_end(s);
	sandbox_tell_waiters(s);
	sandbox_timer_in(s, 0.);
	return 0;
}

static void on_all_cancelled(void *arg)
{
	struct sandbox *s = arg;
	s->cancel_all = NULL;
	sandbox_stop_vm(s);
}

/* Somebody else's VM runs on, but what was started in it does not. */
static void end_vm(struct sandbox *s)
{
	if (s->stopping || s->cancel_all != NULL)
		return;
	sandbox_drop_links(s);
	if (s->launcher->external && s->agent != NULL && s->bracket == NULL)
		s->cancel_all = cancel_all_start(s->set->loop, &s->endpoint, s->reason,
		                                 on_all_cancelled, s);
	if (s->cancel_all == NULL)
		sandbox_stop_vm(s);
}

static void tell_done(struct sandbox *s, const struct err *e)
{
	struct sandbox_waiter *w;
	while ((w = SLIST_FIRST(&s->done_waiters)) != NULL) {
		void (*on_done)(const struct err *, void *) = w->on_done;
		void *arg = w->arg;
		SLIST_REMOVE_HEAD(&s->done_waiters, entry);
		free(w);
		on_done(e, arg);
	}
}

/* What cannot be removed yet is not waited for without a word. */
static void await_vm(struct sandbox *s)
{
	struct err e = {0};
	double now = steady_now();
	if (s->stopping && s->answer_due == 0)
		s->answer_due = now + DELETE_ANSWER_S;
	if (s->answer_due == 0)
		return;
	if (s->answer_due <= now) {
		err_set(&e, ERR_CAPACITY,
		        "the sandbox is deleted, but its VM could not be removed yet");
		tell_done(s, &e);
		s->answer_due = now + DELETE_ANSWER_S;
	}
	sandbox_timer_in(s, s->answer_due - now);
}

/* What it took of a full disk may be the room that its row needs. */
static bool is_written_down(struct sandbox *s)
{
	struct err e = {0};
	if (!s->unsaved || sandbox_save(s, &e) == 0) {
		s->unsaved = false;
		return true;
	}
	tell_done(s, &e);
	sandbox_timer_in(s, DELETE_RETRY_S);
	return false;
}

void sandbox_delete_step(struct sandbox *s)
{
	if (sandbox_leave_bracket(s))
		return;
	if (!s->ending) {
		s->ending = true;
		s->cut_off_due = steady_now() + DELETE_CANCEL_MS / 1e3;
		sandbox_tell(s, s->reason);
	}
	bool quiet = LIST_EMPTY(&s->listeners) && LIST_EMPTY(&s->told);
	double left = s->cut_off_due - steady_now();
	if (!quiet && left > 0) {
		sandbox_timer_in(s, left);
		return;
	}
	if (s->vm != NULL) {
		end_vm(s);
		await_vm(s);
		return;
	}
	sandbox_drop_saved(s);
	if (!is_written_down(s))
		return;
	if (!s->gone)
		sandbox_event(s, "deleted", NULL, NULL);
	s->gone = true;
	tell_done(s, NULL);
	if (!quiet || s->holds > 0 || !SLIST_EMPTY(&s->ready_waiters))
		return;
	struct sandbox_set *set = s->set;
	bool had_image = s->spec.image[0] != '\0';
	sandbox_free(s);
	if (had_image)
		sandbox_set_sweep_images(set);
}
