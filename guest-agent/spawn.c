#include "guest-agent/spawn.h"

#include <errno.h>
#include <limits.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/arch.h"
#include "guest-agent/cgroup_files.h"
#include "guest-agent/own_mount.h"
#include "guest-agent/spawn_child.h"
#include "guest-agent/workers.h"

struct spawn {
	struct work work;
	struct spawner *spawner;
	struct spawn_plan plan;
	struct spawn_child child;
	struct spawn_result result;
	void (*on_done)(const struct spawn_result *r, void *arg);
	void *arg;
	LIST_ENTRY(spawn) alive;
	bool given_up;
};

struct spawner {
	struct workers *workers;
	LIST_HEAD(, spawn) alive; /* all that on_done owes; the loop's own */
	struct spawn_own own;
	bool has_clone3;
};

static const char *const stage_names[] = {
    [STAGE_CLONE] = "clone",
    [STAGE_CGROUP] = "cgroup",
    [STAGE_SIGNALS] = "signals",
    [STAGE_SETSID] = "setsid",
    [STAGE_TABLE] = "descriptors",
    [STAGE_OOM_SCORE] = "oom_score_adj",
    [STAGE_DESCRIPTORS] = "descriptors",
    [STAGE_RLIMIT] = "rlimit",
    [STAGE_USER] = "user",
    [STAGE_CAPABILITIES] = "capabilities",
    [STAGE_CHDIR] = "chdir",
    [STAGE_EXECVE] = "execve",
};

/* ---- in the thread ---- */

static int fallback_entry(void *arg)
{
	struct spawn_child *c = arg;
	c->pid = getpid();
	spawn_child_run(c);
}

/* Returns the pid or -errno. The caller sleeps until the child has called execve or died. */
static long start_child(struct spawn *p, char *stack, size_t size)
{
	int flags = CLONE_VM | CLONE_FILES | CLONE_VFORK | CLONE_PIDFD;

	if (!p->spawner->has_clone3) {
		int pid = clone(fallback_entry, stack + size, flags | SIGCHLD, &p->child,
		                &p->result.pidfd);
		return pid < 0 ? -errno : pid;
	}
	struct clone_args args = {
	    .flags = (unsigned)flags | CLONE_CLEAR_SIGHAND | CLONE_PARENT_SETTID,
	    .pidfd = (uintptr_t)&p->result.pidfd,
	    .parent_tid = (uintptr_t)&p->child.pid,
	    .exit_signal = SIGCHLD,
	    .stack = (uintptr_t)stack,
	    .stack_size = size,
	};
	if (p->plan.cgroup_fd >= 0) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (unsigned)p->plan.cgroup_fd;
	}
	return arch_clone3(&args, spawn_child_run, &p->child);
}

/* Whether a process, a zombie included, died (PF_EXITING) without an execve
 * (PF_FORKNOEXEC); false when that cannot be read. */
static bool died_without_exec(pid_t pid)
{
	char path[32], text[512];
	unsigned both = 0x04 | 0x40;

	snprintf(path, sizeof(path), "%d/stat", (int)pid);
	cgroup_files_read(own_proc(), path, text, sizeof(text));
	/* After the name, which may hold anything: state ppid pgrp session tty tpgid flags. */
	char *at = strrchr(text, ')');
	for (int i = 0; at != NULL && i < 7; i++)
		at = strchr(at + 1, ' ');
	return at != NULL && (strtoul(at + 1, NULL, 10) & both) == both;
}

/* The clone returned and the child reported nothing: it runs the program, or it was killed
 * before. One killed in its last step can only be told by the kernel's flags, which are
 * worth reading when somebody has given it up. */
static bool died_on_the_way(const struct spawn *p)
{
	if (p->child.stage != STAGE_EXECVE)
		return true;
	return __atomic_load_n(&p->given_up, __ATOMIC_ACQUIRE) &&
	       died_without_exec(p->child.pid);
}

static void fail(struct spawn *p, enum spawn_stage stage, int errnum)
{
	p->result =
	    (struct spawn_result){.pidfd = -1, .stage = stage_names[stage], .errnum = errnum};
}

static void run_spawn(struct work *w, struct worker *me)
{
	struct spawn *p = (struct spawn *)w;
	struct spawn_result *r = &p->result;
	siginfo_t si;
	if (spawn_slots_fill(&me->slots, p->plan.fds) < 0) {
		fail(p, STAGE_DESCRIPTORS, errno);
		spawn_slots_clear(&me->slots);
		return;
	}
	p->child.fds = me->slots.fds;
	long pid = start_child(p, me->stack, sizeof(me->stack));
	spawn_slots_clear(&me->slots);
	if (pid < 0) {
		fail(p, STAGE_CLONE, (int)-pid);
		return;
	}
	r->pid = (pid_t)pid;
	r->errnum = p->child.errnum;
	if (r->errnum == 0 && died_on_the_way(p))
		r->errnum = EINTR;
	if (r->errnum == 0)
		return;
	while (waitid(P_PIDFD, (id_t)r->pidfd, &si, WEXITED) != 0 && errno == EINTR)
		;
	close(r->pidfd);
	fail(p, p->child.stage, r->errnum);
}

/* ---- in the loop ---- */

static void on_run(struct work *w)
{
	struct spawn *p = (struct spawn *)w;

	LIST_REMOVE(p, alive);
	p->on_done(&p->result, p->arg);
	spawn_child_release(&p->child);
	free(p);
}

static void probe_entry(void *arg)
{
	(void)arg;
	for (;;)
		syscall(SYS_exit_group, 0);
}

/* A kernel that knows CLONE_INTO_CGROUP refuses this descriptor; an older one, or a filter,
 * refuses the call in another way. */
static bool probe_clone3(void)
{
	_Alignas(16) char stack[4 * KIB];
	struct clone_args args = {
	    .flags = CLONE_VM | CLONE_VFORK | CLONE_INTO_CGROUP,
	    .stack = (uintptr_t)stack,
	    .stack_size = sizeof(stack),
	    .cgroup = INT_MAX,
	};
	return arch_clone3(&args, probe_entry, NULL) == -EBADF;
}

struct spawner *spawner_create(struct workers *workers, struct err *e)
{
	struct spawner *s = calloc(1, sizeof(*s));
	if (s == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	s->workers = workers;
	LIST_INIT(&s->alive);
	spawn_own_learn(&s->own);
	s->has_clone3 = probe_clone3();
	return s;
}

void spawner_destroy(struct spawner *s)
{
	free(s);
}

bool spawner_has_clone3(const struct spawner *s)
{
	return s->has_clone3;
}

bool spawner_owns(const struct spawner *s, pid_t pid)
{
	const struct spawn *p;

	LIST_FOREACH (p, &s->alive, alive)
		if (__atomic_load_n(&p->child.pid, __ATOMIC_ACQUIRE) == pid)
			return true;
	return false;
}

struct spawn *spawn_start(struct spawner *s, const struct spawn_plan *plan,
                          void (*on_done)(const struct spawn_result *r, void *arg), void *arg)
{
	struct spawn *p = calloc(1, sizeof(*p));
	if (p == NULL)
		return NULL;
	p->work = (struct work){.run = run_spawn, .on_done = on_run};
	p->spawner = s;
	p->plan = *plan;
	p->on_done = on_done;
	p->arg = arg;
	p->result.pidfd = -1;
	if (spawn_child_prepare(&p->child, &p->plan, &s->own, s->has_clone3) != 0) {
		free(p);
		return NULL;
	}
	LIST_INSERT_HEAD(&s->alive, p, alive);
	workers_start(s->workers, &p->work);
	return p;
}

uint64_t spawn_age_ms(const struct spawn *p)
{
	return workers_age_ms(p->spawner->workers, &p->work);
}

void spawn_cancel(struct spawn *p)
{
	__atomic_store_n(&p->given_up, true, __ATOMIC_RELEASE);
	if (workers_drop(p->spawner->workers, &p->work))
		fail(p, STAGE_CLONE, ECANCELED);
}
