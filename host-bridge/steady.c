#include "host-bridge/steady.h"

#include "proto/clock.h"
#include "proto/limits.h"
#include "proto/log.h"

static double stood_still; /* seconds, of which steady_now() knows nothing */

double steady_now(void)
{
	return clock_mono_s() - stood_still;
}

/* The loop has not looked at its clock since s->seen: ev_resume moves its timers by the
 * difference. */
static void look(struct steady *s)
{
	double still = steady_now() - s->seen;
	if (still > STALL_S) {
		log_warn("bridge", NULL, "stood still for %.1f s", still);
		ev_resume(s->loop);
		stood_still += still;
	}
	s->seen = steady_now();
}

/* After what it waits for, and before it looks which timers are due. */
static void on_awake(struct ev_loop *loop) EV_NOEXCEPT
{
	look(ev_userdata(loop));
}

static void on_turn(struct ev_loop *loop, ev_prepare *w, int revents)
{
	(void)loop;
	(void)revents;
	look(w->data);
}

static void on_beat(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)w;
	(void)revents;
}

void steady_watch(struct steady *s, struct ev_loop *loop)
{
	s->loop = loop;
	s->seen = steady_now();
	ev_set_userdata(loop, s);
	ev_set_loop_release_cb(loop, NULL, on_awake);
	ev_timer_init(&s->beat, on_beat, STALL_LOOK_S, STALL_LOOK_S);
	ev_prepare_init(&s->turn, on_turn);
	s->turn.data = s;
	ev_timer_start(loop, &s->beat);
	ev_prepare_start(loop, &s->turn);
	ev_unref(loop);
	ev_unref(loop);
}
