/*
 * How an exec ended, decided from facts alone: no system calls, no clock, no memory.
 * exec.c gathers the facts, calls this once, and reports what it says. Design section 4
 * and its table; the first cause wins.
 */
#ifndef SANDGATE_VERDICT_H
#define SANDGATE_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/sandgate.pb-c.h"

/* What we did first to end the exec; recorded once, before our first signal. */
enum verdict_cause {
	CAUSE_NONE,
	CAUSE_TIMEOUT,
	CAUSE_CPU_LIMIT,
	CAUSE_OOM, /* the deadline or a cancel found an OOM group kill under way */
	CAUSE_CANCEL,
};

struct verdict_facts {
	bool spawn_failed; /* execve was never reached */
	bool not_found;    /* the failed stage is execve, and it said ENOENT */
	enum verdict_cause cause;
	Sandgate__CancelReason cancel_reason; /* with CAUSE_CANCEL */
	bool leader_exited; /* false: killed by `leader_signal`; both moot on spawn_failed */
	int leader_code;    /* exit status 0..255 */
	int leader_signal;
	uint64_t oom_kills; /* memory.events oom_kill of the leaf */
	uint64_t leaf_ooms; /* memory.events oom of the leaf: its own limit was hit */
};

struct verdict {
	Sandgate__Outcome outcome;
	int exit_code; /* always set: 124, 137, 128+n, … as in the design's table */
	int signal;    /* 0: none */
	Sandgate__CancelReason cancel_reason;
	Sandgate__OomScope oom_scope; /* OOM_NONE when nothing was OOM-killed */
};

struct verdict verdict(const struct verdict_facts *f);

#endif
