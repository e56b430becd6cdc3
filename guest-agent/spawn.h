/*
 * Starting one process: clone3 into a leaf, and the child's flat list of set-up steps up to
 * execve (spawn_child.h). It runs in a worker's thread, because a chdir into a dead FUSE mount
 * freezes the caller of a vfork-style clone. Only helper.c forks besides.
 *
 *   exec.c ── spawn_start ──► worker: clone3 ─ child: setup_* … execve
 *          ◄─ on_done (loop) ── {pid, pidfd} or {stage, errno}
 *
 * A child gets: every signal at its default and none blocked, umask 022, a session of its
 * own, descriptors 0 to 2 (and extra_fd), oom_score_adj 0, and of the resource limits
 * NOFILE 1024:524288, CORE 0:unlimited, STACK 8 MiB:unlimited, and unlimited AS, CPU, DATA,
 * FSIZE, LOCKS, RSS and RTTIME, none above the agent's own hard limit; the rest are the
 * agent's own.
 */
#ifndef SANDGATE_SPAWN_H
#define SANDGATE_SPAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "guest-agent/identity.h"
#include "guest-agent/workers.h"
#include "proto/err.h"

struct spawner;
struct spawn;

/* Everything that the child needs, prepared before the clone. All pointers stay valid until
 * on_done; descriptors stay the caller's (dup'ed to 0, 1, 2 in the child). */
struct spawn_plan {
	char *const *argv;
	char *const *envp;
	const char *path; /* PATH for an argv[0] without '/' */
	const char *cwd;  /* absolute */
	const struct identity *who;
	int fds[3];    /* 3 or above; one may appear more than once */
	int extra_fd;  /* inherited as it is (a command's memfd), or -1 */
	int cgroup_fd; /* leaf directory, or -1 */
	bool no_new_privs;
	bool narrow_caps;
	uint64_t caps;       /* kept bits when narrow_caps */
	uint64_t open_files; /* RLIMIT_NOFILE soft and hard; UINT64_MAX: the defaults */
	uint64_t file_size;  /* RLIMIT_FSIZE; UINT64_MAX: unlimited */
};

struct spawn_result {
	pid_t pid;         /* 0 when nothing runs */
	int pidfd;         /* taken over by the receiver; -1 when nothing runs */
	const char *stage; /* NULL on success: "clone", "cgroup", "signals", "setsid",
	                      "descriptors", "oom_score_adj", "rlimit", "user",
	                      "capabilities", "chdir", "execve" (static) */
	int errnum;
};

/* Call it when the agent has set its own signal dispositions, limits and oom_score_adj: it
 * learns here what children must undo. NULL: no memory. */
struct spawner *spawner_create(struct workers *workers, struct err *e);
/* Only when no spawn is under way. */
void spawner_destroy(struct spawner *s);
/* What the kernel offers: clone3 into a cgroup, pidfd. */
bool spawner_has_clone3(const struct spawner *s);
/* Whether `pid` is a spawn whose on_done has not run yet: a reaper must leave it alone. */
bool spawner_owns(const struct spawner *s, pid_t pid);

/* Queue a spawn. `on_done` runs in the loop exactly once, never inside this call, after
 * execve succeeded or a step failed. NULL: out of memory. A stuck child is freed by killing
 * its leaf, after which on_done reports it (stage, EINTR). */
struct spawn *spawn_start(struct spawner *s, const struct spawn_plan *plan,
                          void (*on_done)(const struct spawn_result *r, void *arg), void *arg);
/* Give up a spawn before on_done, and before killing its leaf: one that is still queued never
 * starts and reports ("clone", ECANCELED); one that dies in its last step is told apart from
 * one that ran. */
void spawn_cancel(struct spawn *p);
/* How long a thread has had it (ms), divided by how many are being spawned, since they share
 * the processor; 0 while it is queued. */
uint64_t spawn_age_ms(const struct spawn *p);

#endif
