#include "guest-agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <pthread.h>
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
#include "guest-agent/clock.h"
#include "guest-agent/spawn_child.h"
#include "guest-agent/spawn_slots.h"
#include "proto/limits.h"
#include "proto/log.h"

#define PF_FORKNOEXEC 0x40 /* the kernel's, of /proc/pid/stat */
#define CHILD_STACK (16 * KIB)
#define THREAD_STACK (128 * KIB)

struct spawn {
	struct spawner *spawner;
	struct spawn_plan plan;
	struct spawn_child child;
	struct spawn_result result;
	void (*on_done)(const struct spawn_result *r, void *arg);
	void *arg;
	TAILQ_ENTRY(spawn) queued; /* in `queue` or `done`; else a thread has it */
	LIST_ENTRY(spawn) alive;
	bool is_queued;
	uint64_t began_ms; /* when a thread took it; 0: not yet */
	bool given_up;
};

TAILQ_HEAD(spawn_queue, spawn);

struct spawner {
	struct ev_loop *loop;
	ev_async wakeup;
	ev_timer watchdog;        /* while something is queued: do the threads move? */
	LIST_HEAD(, spawn) alive; /* all that on_done owes; the loop's own */
	unsigned taken_at_tick;

	struct spawn_own own;
	bool has_clone3;

	pthread_mutex_t lock; /* of everything below */
	pthread_cond_t work, gone;
	struct spawn_queue queue, done;
	unsigned threads, idle, taken, busy; /* busy: spawns that a thread has now */
	bool quitting;
};

static const char *const stage_names[] = {
    [STAGE_CLONE] = "clone",
    [STAGE_CGROUP] = "cgroup",
    [STAGE_SIGNALS] = "signals",
    [STAGE_SETSID] = "setsid",
    [STAGE_DESCRIPTORS] = "descriptors",
    [STAGE_OOM_SCORE] = "oom_score_adj",
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

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
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

static void run_spawn(struct spawn *p, struct spawn_slots *slots, char *stack, size_t size)
{
	struct spawn_result *r = &p->result;
	siginfo_t si;
	__atomic_store_n(&p->began_ms, clock_mono_ms(), __ATOMIC_RELEASE);
	if (spawn_slots_fill(slots, p->plan.fds) < 0) {
		fail(p, STAGE_DESCRIPTORS, errno);
		spawn_slots_clear(slots);
		return;
	}
	p->child.fds = slots->fds;
	long pid = start_child(p, stack, size);
	spawn_slots_clear(slots);
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

/* One thread serves the queue; those that joined while it hung leave when it is idle. A batch
 * thread does not interrupt the program that its clone has just become: a short one ends
 * first, and its start and its end are then told together. */
static void *thread_main(void *arg)
{
	struct spawner *s = arg;
	_Alignas(16) char stack[CHILD_STACK];
	const struct sched_param normal = {0};
	struct spawn_slots slots;

	spawn_slots_open(&slots);
	sched_setscheduler(0, SCHED_BATCH, &normal);
	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct spawn *p = TAILQ_FIRST(&s->queue);
		if (p == NULL) {
			if (s->quitting || s->idle > 0)
				break;
			s->idle++;
			pthread_cond_wait(&s->work, &s->lock);
			s->idle--;
			continue;
		}
		TAILQ_REMOVE(&s->queue, p, queued);
		p->is_queued = false;
		s->taken++;
		s->busy++;
		pthread_mutex_unlock(&s->lock);
		run_spawn(p, &slots, stack, sizeof(stack));
		pthread_mutex_lock(&s->lock);
		s->busy--;
		TAILQ_INSERT_TAIL(&s->done, p, queued);
		ev_async_send(s->loop, &s->wakeup);
	}
	spawn_slots_close(&slots);
	s->threads--;
	pthread_cond_signal(&s->gone);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- in the loop ---- */

/* All signals are blocked in the thread from its first instruction. */
static int add_thread(struct spawner *s)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all;

	int rc = pthread_attr_init(&attr);
	if (rc != 0)
		return rc;
	sigfillset(&all);
	pthread_attr_setsigmask_np(&attr, &all);
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_mutex_lock(&s->lock);
	rc = pthread_create(&thread, &attr, thread_main, s);
	if (rc == 0)
		s->threads++;
	pthread_mutex_unlock(&s->lock);
	pthread_attr_destroy(&attr);
	return rc;
}

static void on_wakeup(struct ev_loop *loop, ev_async *w, int revents)
{
	struct spawner *s = w->data;
	struct spawn *p;
	(void)loop, (void)revents;

	for (;;) {
		pthread_mutex_lock(&s->lock);
		p = TAILQ_FIRST(&s->done);
		if (p != NULL)
			TAILQ_REMOVE(&s->done, p, queued);
		pthread_mutex_unlock(&s->lock);
		if (p == NULL)
			return;
		LIST_REMOVE(p, alive);
		p->on_done(&p->result, p->arg);
		spawn_child_release(&p->child);
		free(p);
	}
}

/* Something is queued and no thread has taken anything since the last tick: they hang in
 * the kernel (a dead FUSE mount), so one more serves the others. */
static void on_watchdog(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct spawner *s = w->data;
	(void)revents;

	pthread_mutex_lock(&s->lock);
	bool waiting = !TAILQ_EMPTY(&s->queue);
	bool hung = waiting && s->taken == s->taken_at_tick && s->threads < SPAWN_THREADS_MAX;
	s->taken_at_tick = s->taken;
	pthread_mutex_unlock(&s->lock);
	if (!waiting)
		ev_timer_stop(loop, w);
	else if (hung && add_thread(s) != 0)
		log_warn("spawn", NULL, "no further spawn thread can be started");
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

struct spawner *spawner_create(struct ev_loop *loop, struct err *e)
{
	struct spawner *s = calloc(1, sizeof(*s));
	if (s == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	s->loop = loop;
	TAILQ_INIT(&s->queue);
	TAILQ_INIT(&s->done);
	LIST_INIT(&s->alive);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->work, NULL);
	pthread_cond_init(&s->gone, NULL);
	spawn_own_learn(&s->own);
	s->has_clone3 = probe_clone3();
	int rc = add_thread(s);
	if (rc != 0) {
		err_errno(e, ERR_INTERNAL, rc, "cannot start the spawn thread");
		free(s);
		return NULL;
	}
	ev_async_init(&s->wakeup, on_wakeup);
	s->wakeup.data = s;
	ev_async_start(loop, &s->wakeup);
	ev_timer_init(&s->watchdog, on_watchdog, 0., SPAWN_HUNG_MS / 1000.);
	s->watchdog.data = s;
	return s;
}

void spawner_destroy(struct spawner *s)
{
	if (s == NULL)
		return;
	pthread_mutex_lock(&s->lock);
	s->quitting = true;
	pthread_cond_broadcast(&s->work);
	while (s->threads > 0)
		pthread_cond_wait(&s->gone, &s->lock);
	pthread_mutex_unlock(&s->lock);
	ev_async_stop(s->loop, &s->wakeup);
	ev_timer_stop(s->loop, &s->watchdog);
	pthread_cond_destroy(&s->work);
	pthread_cond_destroy(&s->gone);
	pthread_mutex_destroy(&s->lock);
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
	pthread_mutex_lock(&s->lock);
	p->is_queued = true;
	TAILQ_INSERT_TAIL(&s->queue, p, queued);
	pthread_mutex_unlock(&s->lock);
	pthread_cond_signal(&s->work); /* not before: it would wake to find the lock taken */
	if (!ev_is_active(&s->watchdog))
		ev_timer_again(s->loop, &s->watchdog);
	return p;
}

uint64_t spawn_age_ms(const struct spawn *p)
{
	uint64_t began = __atomic_load_n(&p->began_ms, __ATOMIC_ACQUIRE);
	struct spawner *s = p->spawner;

	pthread_mutex_lock(&s->lock);
	unsigned share = s->busy > 0 ? s->busy : 1;
	pthread_mutex_unlock(&s->lock);
	return began == 0 ? 0 : (clock_mono_ms() - began) / share;
}

void spawn_cancel(struct spawn *p)
{
	struct spawner *s = p->spawner;

	__atomic_store_n(&p->given_up, true, __ATOMIC_RELEASE);
	pthread_mutex_lock(&s->lock);
	if (p->is_queued) {
		TAILQ_REMOVE(&s->queue, p, queued);
		p->is_queued = false;
		p->result.stage = stage_names[STAGE_CLONE];
		p->result.errnum = ECANCELED;
		TAILQ_INSERT_TAIL(&s->done, p, queued);
		ev_async_send(s->loop, &s->wakeup);
	}
	pthread_mutex_unlock(&s->lock);
}
