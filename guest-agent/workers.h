/*
 * The agent's only other threads: what may block in the kernel for ever (a chdir into a dead
 * FUSE mount, a file on one, a pipe) runs in them, and its end is told in the loop. One thread
 * serves the queue; when it hangs, another takes over what is queued, and those that joined so
 * leave when there is nothing to do. spawn.c starts children from them, snapshot.c renews the
 * machine; others of them serve pipes (pipe_job.h), so that these hold up no start.
 */
#ifndef SANDGATE_WORKERS_H
#define SANDGATE_WORKERS_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "guest-agent/spawn_slots.h"
#include "proto/err.h"
#include "proto/limits.h"

struct workers;

/* A thread's own things, for the children that are started from it. */
struct worker {
	struct spawn_slots slots;
	_Alignas(16) char stack[16 * KIB];
};

/* Embedded in what is to be done. */
struct work {
	void (*run)(struct work *w, struct worker *me); /* in a thread */
	void (*on_done)(struct work *w);                /* in the loop; `w` is its again */

	TAILQ_ENTRY(work) link; /* the rest is for workers.c */
	bool is_queued;
	uint64_t began_ms; /* when a thread took it; 0: not yet */
};

/* At most `threads_max` at once, of a policy of sched(7). NULL: no thread, no memory. */
struct workers *workers_create(struct ev_loop *loop, unsigned threads_max, int policy,
                               struct err *e);
/* Carries out what is queued; on_done comes from inside. What hangs longer than CLEANUP_WAIT_MS
 * is left alone, and its memory with it: the process is to exit. */
void workers_destroy(struct workers *s);

/* Queue `w`, with both functions set. on_done comes once, never from inside. */
void workers_start(struct workers *s, struct work *w);
/* Take it out of the queue: on_done will come without a run. False: a thread has taken it. */
bool workers_drop(struct workers *s, struct work *w);
/* How long a thread has had it (ms), divided by how much is being done, since that shares the
 * processor; 0 while it is queued. */
uint64_t workers_age_ms(struct workers *s, const struct work *w);

#endif
