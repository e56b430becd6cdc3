/*
 * Work for the moments between execs, so that the next one finds it done: a spare cgroup and
 * spare pipes are made, what has ended is cleared away. One piece a turn of the loop, so that
 * an exec that comes in the middle waits for one.
 */
#ifndef SANDGATE_IDLE_H
#define SANDGATE_IDLE_H

#include <ev.h>
#include <stdbool.h>
#include <sys/queue.h>

struct idle;

/* Embedded in whoever has such work; does one piece, false when there was none to do. */
struct idle_task {
	TAILQ_ENTRY(idle_task) link;
	bool (*work)(struct idle_task *t);
	void *owner;
};

struct idle *idle_create(struct ev_loop *loop); /* NULL: out of memory */
/* After its tasks' owners. */
void idle_destroy(struct idle *i);

void idle_add(struct idle *i, struct idle_task *t);
void idle_remove(struct idle *i, struct idle_task *t);

/* An exec begins, its program runs, or one has ended or left work: idle time starts some
 * moments later, more after a beginning, since that takes longer to settle. */
void idle_exec_began(struct idle *i);
void idle_exec_started(struct idle *i);
void idle_exec_ended(struct idle *i);

/* Close `fd`, which no watcher uses: in idle time, or now when too many wait already. */
void idle_close(struct idle *i, int fd);

#endif
