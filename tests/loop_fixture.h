/*
 * One event loop that the test itself turns, until something holds. A wait that nothing ends
 * fails the test after PATIENCE_S, which a program may define before it includes this.
 */
#ifndef SANDGATE_LOOP_FIXTURE_H
#define SANDGATE_LOOP_FIXTURE_H

#include <check.h>
#include <ev.h>
#include <stdbool.h>

#ifndef PATIENCE_S
#define PATIENCE_S 8.
#endif

static struct ev_loop *loop;

static inline void on_out_of_patience(struct ev_loop *l, ev_timer *w, int revents)
{
	(void)l;
	(void)w;
	(void)revents;
	ck_abort_msg("nothing happened");
}

#define UNTIL(cond)                                                      \
	do {                                                             \
		ev_timer dog;                                            \
		ev_timer_init(&dog, on_out_of_patience, PATIENCE_S, 0.); \
		ev_timer_start(loop, &dog);                              \
		while (!(cond))                                          \
			ev_run(loop, EVRUN_ONCE);                        \
		ev_timer_stop(loop, &dog);                               \
	} while (0)

/* What can happen without waiting has happened. */
static inline void settle(void)
{
	for (int i = 0; i < 50; i++)
		ev_run(loop, EVRUN_NOWAIT);
}

static inline void on_pause_over(struct ev_loop *l, ev_timer *w, int revents)
{
	(void)l;
	(void)revents;
	*(bool *)w->data = true;
}

/* Let time pass that something must survive. */
static inline void pass(double seconds)
{
	bool over = false;
	ev_timer t;
	ev_timer_init(&t, on_pause_over, seconds, 0.);
	t.data = &over;
	ev_timer_start(loop, &t);
	UNTIL(over);
}

#endif
