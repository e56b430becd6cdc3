/*
 * What runs between clone and execve: a flat list of set-up steps that use raw system calls
 * and nothing else. The child shares the agent's memory (CLONE_VM) while its parent thread
 * sleeps, so it must not allocate, lock, log or call anything in libc that keeps state; and
 * it can report by plain stores, which reach the parent even where a pipe write would not
 * (a leaf without memory left).
 */
#ifndef SANDGATE_SPAWN_CHILD_H
#define SANDGATE_SPAWN_CHILD_H

#include <sys/types.h>

#include "guest-agent/spawn.h"

#define SPAWN_RLIMITS_MAX 16

/* In the order of the steps: a child that is dead and stopped short was killed by others. */
enum spawn_stage {
	STAGE_CLONE,
	STAGE_CGROUP,
	STAGE_SIGNALS,
	STAGE_SETSID,
	STAGE_TABLE,
	STAGE_OOM_SCORE,
	STAGE_DESCRIPTORS,
	STAGE_RLIMIT,
	STAGE_USER,
	STAGE_CAPABILITIES,
	STAGE_CHDIR,
	STAGE_EXECVE,
};

struct spawn_rlimit {
	int resource;
	struct rlimit value;
};

/* Prepared by the parent. Whatever is already as it should be costs no system call. */
struct spawn_child {
	const struct spawn_plan *plan;
	char *const *programs; /* what execve tries, in order; NULL-terminated */
	struct spawn_rlimit rlimits[SPAWN_RLIMITS_MAX];
	int rlimit_count;
	uint64_t ignored; /* bit n-1: signal n is ignored by the agent */
	bool join_cgroup; /* clone could not place the child */
	int proc;         /* /proc, where the agent's own oom_score_adj is not 0; else -1 */
	bool switch_user;
	bool drop_inheritable; /* the agent has inheritable capabilities */
	const int *fds;        /* what stands for the plan's three, at low numbers */

	/* Written by the kernel and the child. */
	pid_t pid;
	volatile enum spawn_stage stage;
	volatile int errnum; /* 0: no step has failed */
};

/* What a child would inherit from the agent, learnt once. */
struct spawn_own {
	struct rlimit rlimits[RLIM_NLIMITS];
	gid_t groups[IDENTITY_GROUPS_MAX];
	int group_count;
	uid_t uid;
	gid_t gid;
	uint64_t ignored;
	bool oom_score, inheritable;
};

void spawn_own_learn(struct spawn_own *own);

/* Fill in a zeroed `c` for `plan`, which it keeps pointing to. -1: out of memory. */
int spawn_child_prepare(struct spawn_child *c, const struct spawn_plan *plan,
                        const struct spawn_own *own, bool has_clone3);
void spawn_child_release(struct spawn_child *c);

/* Entry of the child; `arg` is its struct spawn_child. Never returns. */
void spawn_child_run(void *arg) __attribute__((noreturn));

#endif
