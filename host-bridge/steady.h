/*
 * The bridge's clock for deadlines and durations. It never jumps, as wall-clock time does (and
 * so ev_now), and it stands still while this process does: when it is stopped, its cgroup
 * frozen, or a disk keeps it waiting in the middle of a write. Answers come meanwhile that it
 * cannot read, so no deadline passes then: the loop's timers move, too. bridge.c watches its
 * loop.
 */
#ifndef SANDGATE_STEADY_H
#define SANDGATE_STEADY_H

#include <ev.h>

struct steady {
	struct ev_loop *loop;
	ev_timer beat; /* so that a loop which has nothing to do is not taken for a still one */
	ev_prepare turn; /* callbacks have returned */
	double seen;     /* steady_now(): the last sign of life */
};

double steady_now(void); /* seconds */

/* Begin to look for the times in which the process stood still. The loop's user data is taken;
 * the loop does not live on for it. */
void steady_watch(struct steady *s, struct ev_loop *loop);

#endif
