/* When a sandbox ends: idle for its time, too old, or without an owner; and the timer of that,
 * which also paces a deletion and what a warm VM waits for. */
#include <math.h>

#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/sandbox/sandbox_warm.h"
#include "host-bridge/steady.h"
#include "proto/limits.h"
#include "proto/log.h"

/* Seconds until each of the ends that a sandbox may come to; < 0: never. */

/* Idle, it is not deleted. */
static bool is_kept(const struct sandbox *s)
{
	return s->spec.persistent && s->status != SANDBOX_FAILED;
}

/* … but hibernates. */
static bool falls_asleep(const struct sandbox *s)
{
	return is_kept(s) && s->launcher->vmm != NULL && s->status == SANDBOX_RUNNING;
}

static double idle_in(const struct sandbox *s)
{
	if (s->spec.ttl_seconds <= 0 || s->holds > 0 || s->status == SANDBOX_CREATING ||
	    (is_kept(s) && !falls_asleep(s)))
		return -1;
	return fmax(s->active + s->spec.ttl_seconds - steady_now(), 0);
}

static double too_old_in(const struct sandbox *s)
{
	if (s->spec.max_lifetime_seconds <= 0)
		return -1;
	return fmax(s->made + s->spec.max_lifetime_seconds - steady_now(), 0);
}

static double orphaned_in(const struct sandbox *s)
{
	return s->orphan_due == 0 ? -1 : fmax(s->orphan_due - steady_now(), 0);
}

static double earlier(double a, double b)
{
	return a < 0 || (b >= 0 && b < a) ? b : a;
}

double sandbox_expires_in(const struct sandbox *s)
{
	return earlier(is_kept(s) ? -1 : idle_in(s), too_old_in(s));
}

/* The same, and the idle time after which one hibernates. */
static double next_end_in(const struct sandbox *s)
{
	return earlier(idle_in(s), too_old_in(s));
}

bool sandbox_is_due(const struct sandbox *s)
{
	return next_end_in(s) == 0;
}

void sandbox_timer_in(struct sandbox *s, double seconds)
{
	ev_timer_stop(s->set->loop, &s->timer);
	ev_timer_set(&s->timer, seconds > 0 ? seconds : 0., 0.);
	ev_timer_start(s->set->loop, &s->timer);
}

void sandbox_update_timer(struct sandbox *s)
{
	double in = earlier(next_end_in(s), orphaned_in(s));
	if (!s->deleted && in >= 0)
		sandbox_timer_in(s, fmax(in, END_LOOK_MIN_S));
}

static void on_asleep(struct sandbox *s, struct snapshot *n, const struct err *e, void *arg)
{
	(void)n;
	(void)arg;
	if (e != NULL)
		log_warn("sandbox", s->id, "could not be hibernated: %s", e->msg);
}

static void fall_asleep(struct sandbox *s)
{
	struct err e = {0};
	if (sandbox_is_called(s)) {
		sandbox_timer_in(s, HIBERNATE_RETRY_MS / 1e3);
		return;
	}
	sandbox_touch(s); /* if it does not succeed, again after as long */
	if (sandbox_hibernate(s, on_asleep, NULL, &e) < 0)
		log_warn("sandbox", s->id, "could not be hibernated: %s", e.msg);
	sandbox_update_timer(s);
}

void sandbox_expire(struct sandbox *s)
{
	if (falls_asleep(s) && too_old_in(s) != 0) {
		fall_asleep(s);
		return;
	}
	log_info("sandbox", s->id, "expired");
	sandbox_event(s, "expired", NULL, NULL);
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_EXPIRED, NULL, NULL);
}

/* Activity moves the end without moving the timer: it finds out when it fires. */
static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct sandbox *s = w->data;
	(void)loop;
	(void)revents;
	if (s->deleted) {
		sandbox_delete_step(s);
	} else if (s->warm) {
		sandbox_warm_timer(s);
	} else if (orphaned_in(s) == 0) {
		sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE, NULL, NULL);
	} else if (too_old_in(s) == 0) {
		sandbox_expire(s);
	} else if (idle_in(s) == 0) {
		sandbox_check_idle(s);
	} else {
		sandbox_update_timer(s);
	}
}

void sandbox_touch(struct sandbox *s)
{
	s->active = steady_now();
}

void sandbox_hold(struct sandbox *s)
{
	s->holds++;
}

void sandbox_unhold(struct sandbox *s)
{
	s->holds--;
	sandbox_touch(s);
	if (s->deleted)
		sandbox_timer_in(s, 0.);
	else if (s->holds == 0)
		sandbox_update_timer(s);
}

void sandbox_init_timer(struct sandbox *s)
{
	ev_timer_init(&s->timer, on_timer, 0., 0.);
	s->timer.data = s;
}
