/*
 * The cgroup v2 tree of the agent and the leaves of its execs. Owns every path under
 * /sys/fs/cgroup; exec.c holds leaves, nobody else does. Knows nothing of processes but
 * their numbers, and never waits: removal is retried from a timer until it succeeds.
 *
 *   <base>/sandgate/agent/   the agent itself, memory.min on it and on its parent
 *   <base>/sandgate/exec/    capped at RAM less the reserve; one leaf an exec: <serial>
 *
 * ("sandgate-1" … when a living agent holds the lock on "sandgate"). All is reached through
 * a private mount, which nothing can be mounted over. A leaf is fresh for every exec, never
 * one that was killed, and one spare leaf is made in idle time.
 */
#ifndef SANDGATE_CGROUP_H
#define SANDGATE_CGROUP_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>

#include "guest-agent/idle.h"
#include "proto/err.h"

struct cgroup_tree;
struct cgroup_leaf;
enum cgroup_feature {
	CGROUP_V2 = 1,
	CGROUP_MEMORY = 2,
	CGROUP_PIDS = 4,
	CGROUP_CPU = 8,
	CGROUP_IO = 16,
	CGROUP_KILL = 32
};

/* A value of UINT64_MAX means "not asked for". */
struct cgroup_limits {
	uint64_t memory_bytes, swap_bytes, pids, cpu_milli, io_read_bps, io_write_bps;
	bool oom_group;
};

struct cgroup_counters {
	uint64_t oom_kills, ooms, pids_hits;
	uint64_t cpu_user_us, cpu_system_us;
	uint64_t memory_peak; /* UINT64_MAX: the kernel does not tell */
};

/* Find and set up the tree: below the cgroup that the agent is in (the root for PID 1).
 * Without a usable cgroup v2 the tree exists all the same with features 0, and leaves
 * then only track nothing: exec.c falls back to process groups. NULL: out of memory. */
struct cgroup_tree *cgroup_tree_create(struct ev_loop *loop, struct idle *idle, struct err *e);
void cgroup_tree_destroy(struct cgroup_tree *t);
unsigned cgroup_tree_features(const struct cgroup_tree *t);
/* memory.max of exec/, in bytes: the default limit of a leaf. */
uint64_t cgroup_tree_memory(const struct cgroup_tree *t);
/* Directories under exec/, the spare one included. */
unsigned cgroup_tree_leaves(const struct cgroup_tree *t);

/* Take the spare leaf, or make one. Limits that cannot be enforced here: -1 with
 * ERR_LIMIT_UNSUPPORTED and the API's field name ("limits.memory_mib"). */
struct cgroup_leaf *cgroup_leaf_create(struct cgroup_tree *t, const struct cgroup_limits *l,
                                       struct err *e);
/* Directory, for CLONE_INTO_CGROUP; -1 without cgroup v2. */
int cgroup_leaf_fd(const struct cgroup_leaf *l);
/* Read now what the kernel counted; authoritative for OOM once the leader was reaped. */
void cgroup_leaf_counters(struct cgroup_leaf *l, struct cgroup_counters *out);
uint64_t cgroup_leaf_cpu_us(struct cgroup_leaf *l);
/* Whether any process is in the leaf or below; how many (bounded count, 0 when unknown). */
bool cgroup_leaf_populated(struct cgroup_leaf *l);
unsigned cgroup_leaf_count(struct cgroup_leaf *l);
/* Send `signal` to every process of the leaf and below, once. */
void cgroup_leaf_signal(struct cgroup_leaf *l, int signal);
/* Kill all of it: cgroup.kill, or freeze, SIGKILL, thaw below 5.14. May be called again. */
void cgroup_leaf_kill(struct cgroup_leaf *l);
/* Kill what is left in the leaf once it has used `cpu_ms` of CPU time (0: never), to within a
 * second: from when its emptiness is awaited, and after it was given up. */
void cgroup_leaf_bind_cpu(struct cgroup_leaf *l, uint64_t cpu_ms);
/* `on_empty` once when the leaf is unpopulated (checked at once, then by notification;
 * never called inside this call). NULL forgets an earlier request. */
void cgroup_leaf_when_empty(struct cgroup_leaf *l, void (*on_empty)(void *arg), void *arg);
/* Give the leaf up: removed with its sub-cgroups as soon as it is empty, killed first
 * when `kill`. The pointer is gone at return. */
void cgroup_leaf_retire(struct cgroup_leaf *l, bool kill);

#endif
