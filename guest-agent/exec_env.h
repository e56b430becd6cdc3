/*
 * What all execs of one agent share, and what they report to their table. The table fills
 * it once; execs read it. Tests put a stand-in where processes would be started.
 */
#ifndef SANDGATE_EXEC_ENV_H
#define SANDGATE_EXEC_ENV_H

#include <ev.h>

#include "guest-agent/cgroup.h"
#include "guest-agent/config.h"
#include "guest-agent/pipe_stock.h"
#include "guest-agent/ring.h"
#include "guest-agent/spawn.h"
#include "guest-agent/workers.h"

struct exec;

struct exec_env {
	struct ev_loop *loop;
	const struct config *config;
	struct idle *idle;
	struct pipe_stock *pipes; /* the table's own */
	struct workers *pipe_workers;
	struct cgroup_tree *tree;
	struct spawner *spawner;
	int null_fd; /* /dev/null, whatever an exec does to /dev */
	unsigned cpus;
	/* spawn_start() and the rest of spawn.h, but for tests that must run nothing. */
	struct spawn *(*spawn)(struct spawner *s, const struct spawn_plan *plan,
	                       void (*on_done)(const struct spawn_result *r, void *arg),
	                       void *arg);
	void (*cancel_spawn)(struct spawn *p);
	uint64_t (*spawn_age_ms)(const struct spawn *p);
	struct ring_budget budget;
	bool suspended; /* a snapshot is near: no leader is read, no lost owner's time runs */

	/* The table's; `link` is what it gave to exec_create(). */
	void (*on_over_budget)(struct exec_env *env, struct exec *reading);
	void (*on_finished)(struct exec_env *env, void *link);
	void (*on_unused)(struct exec_env *env, void *link); /* the last peer left */
};

#endif
