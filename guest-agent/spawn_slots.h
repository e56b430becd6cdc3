/*
 * Three descriptor numbers that a spawn thread keeps for the input and output of whatever it
 * spawns next. A child shares the agent's descriptor table until it takes one of its own, and
 * the kernel copies only what lies below the numbers that are closed along with that. With its
 * three at low numbers, a child never holds the agent's many descriptors, not even for a
 * moment, and costs the same however many there are. For spawn.c only.
 */
#ifndef SANDGATE_SPAWN_SLOTS_H
#define SANDGATE_SPAWN_SLOTS_H

struct spawn_slots {
	int fds[3];
	int nothing; /* what they refer to between two spawns */
	int errnum;  /* why they could not be had, or 0 */
};

/* Take the lowest numbers there are. A failure is remembered for spawn_slots_fill. */
void spawn_slots_open(struct spawn_slots *s);
void spawn_slots_close(struct spawn_slots *s);

/* Let them refer to what `fds` do, which stay open. -1 with errno. */
int spawn_slots_fill(struct spawn_slots *s, const int fds[3]);
/* Let go of that again, and keep the numbers. */
void spawn_slots_clear(struct spawn_slots *s);

#endif
