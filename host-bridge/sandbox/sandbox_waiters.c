/* Who waits for a sandbox to be ready or gone, and who listens for its end. */
#include <stdlib.h>

#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/steady.h"
#include "proto/limits.h"

/* ---- who waits ---- */

int sandbox_add_waiter(struct sandbox_waiters *to, const struct sandbox_waiter *w,
                       struct err *e)
{
	struct sandbox_waiter *copy = malloc(sizeof(*copy));
	if (copy == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	*copy = *w;
	SLIST_INSERT_HEAD(to, copy, entry);
	return 0;
}

/* Being made, being woken, or going to sleep and then woken for who waits. */
static bool is_coming(const struct sandbox *s)
{
	return s->status == SANDBOX_CREATING ||
	       (s->status == SANDBOX_HIBERNATED && !s->unwoken && (s->waking || s->vm != NULL));
}

/* The status has settled: tell those who waited for that. Each may wait or delete again. */
static void on_waiters(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct sandbox *s = w->data;
	struct sandbox_waiter *first;
	struct err gone = {.code = ERR_SANDBOX_GONE, .msg = "the sandbox was deleted"};
	(void)loop;
	(void)revents;
	while (!is_coming(s) && (first = SLIST_FIRST(&s->ready_waiters)) != NULL) {
		struct sandbox_waiter told = *first;
		SLIST_REMOVE_HEAD(&s->ready_waiters, entry);
		free(first);
		const struct err *why = NULL;
		if (s->status == SANDBOX_DELETED)
			why = &gone;
		else if (s->status == SANDBOX_FAILED || s->status == SANDBOX_HIBERNATED)
			why = &s->failure;
		told.on_ready(s, why, told.arg);
	}
	if (s->deleted)
		sandbox_timer_in(s, 0.);
}

void sandbox_tell_waiters(struct sandbox *s)
{
	ev_timer_stop(s->set->loop, &s->waiters_timer);
	ev_timer_set(&s->waiters_timer, 0., 0.);
	ev_timer_start(s->set->loop, &s->waiters_timer);
}

int sandbox_wait_ready(struct sandbox *s,
                       void (*on_ready)(struct sandbox *, const struct err *, void *),
                       void *arg, struct err *e)
{
	struct sandbox_waiter w = {.on_ready = on_ready, .arg = arg};
	if (sandbox_add_waiter(&s->ready_waiters, &w, e) < 0)
		return -1;
	if (s->status == SANDBOX_HIBERNATED && sandbox_wake(s, &s->failure) < 0)
		sandbox_not_woken(s, &s->failure);
	else if (!is_coming(s))
		sandbox_tell_waiters(s);
	return 0;
}

void sandbox_wait_cancel(struct sandbox *s, void *arg)
{
	struct sandbox_waiter *w, *next;
	for (w = SLIST_FIRST(&s->ready_waiters); w != NULL; w = next) {
		next = SLIST_NEXT(w, entry);
		if (w->arg != arg)
			continue;
		SLIST_REMOVE(&s->ready_waiters, w, sandbox_waiter, entry);
		free(w);
	}
}

void sandbox_creator_gone(struct sandbox *s)
{
	struct sandbox_waiter *w, *next;
	for (w = SLIST_FIRST(&s->ready_waiters); w != NULL; w = next) {
		next = SLIST_NEXT(w, entry);
		if (!w->creator)
			continue;
		SLIST_REMOVE(&s->ready_waiters, w, sandbox_waiter, entry);
		free(w);
	}
	if (s->spec.idempotency_key[0] == '\0') {
		sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE, NULL, NULL);
		return;
	}
	s->orphan_due = steady_now() + IDEMPOTENCY_ORPHAN_S;
	sandbox_update_timer(s);
}

/* ---- who listens ---- */

void sandbox_listen(struct sandbox *s, struct sandbox_listener *l)
{
	l->sandbox = s;
	LIST_INSERT_HEAD(&s->listeners, l, entry);
	sandbox_start_pulse(s);
}

void sandbox_unlisten(struct sandbox_listener *l)
{
	struct sandbox *s = l->sandbox;
	LIST_REMOVE(l, entry);
	l->sandbox = NULL;
	if (s->deleted)
		sandbox_timer_in(s, 0.);
}

void sandbox_tell(struct sandbox *s, Sandgate__CancelReason reason)
{
	struct sandbox_listener *l;
	while ((l = LIST_FIRST(&s->listeners)) != NULL) {
		LIST_REMOVE(l, entry);
		LIST_INSERT_HEAD(&s->told, l, entry);
		l->on_end(l, reason);
	}
}

void sandbox_tell_mute(struct sandbox *s, bool yielding)
{
	struct sandbox_listener *l, *next;
	for (l = LIST_FIRST(&s->listeners); l != NULL; l = next) {
		next = LIST_NEXT(l, entry);
		if (yielding && !l->yields)
			continue;
		LIST_REMOVE(l, entry);
		LIST_INSERT_HEAD(&s->told, l, entry);
		l->on_mute(l);
	}
}

bool sandbox_is_called(const struct sandbox *s)
{
	const struct sandbox_listener *l;
	LIST_FOREACH (l, &s->listeners, entry)
		if (!l->yields)
			return true;
	return false;
}

/* ---- memory ---- */

void sandbox_init_waiters(struct sandbox *s)
{
	SLIST_INIT(&s->ready_waiters);
	SLIST_INIT(&s->done_waiters);
	LIST_INIT(&s->listeners);
	LIST_INIT(&s->told);
	ev_timer_init(&s->waiters_timer, on_waiters, 0., 0.);
	s->waiters_timer.data = s;
}

static void drop_waiters(struct sandbox_waiters *from)
{
	struct sandbox_waiter *w;
	while ((w = SLIST_FIRST(from)) != NULL) {
		SLIST_REMOVE_HEAD(from, entry);
		free(w);
	}
}

void sandbox_drop_waiters(struct sandbox *s)
{
	ev_timer_stop(s->set->loop, &s->waiters_timer);
	drop_waiters(&s->ready_waiters);
	drop_waiters(&s->done_waiters);
}
