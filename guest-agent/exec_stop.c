/* Ending an exec: deadlines, limits that we watch, cancels, signals, the kill. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/cgroup_files.h"
#include "guest-agent/exec_private.h"
#include "guest-agent/own_mount.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "proto/log.h"

static void arm(struct exec *x, ev_timer *t, uint64_t ms)
{
	ev_timer_stop(x->env->loop, t);
	ev_timer_set(t, (double)ms / 1000.0, 0);
	ev_timer_start(x->env->loop, t);
}

static void signal_leader(const struct exec *x, int sig)
{
	if (x->leader.fd >= 0)
		syscall(SYS_pidfd_send_signal, x->leader.fd, sig, NULL, 0);
}

/* Without a cgroup the leader's process group stands in for the leaf. A leaf that was given up
 * was empty, and the group's number may be another's by now. */
static void signal_all(struct exec *x, int sig)
{
	if (x->leaf == NULL)
		return;
	if (cgroup_leaf_fd(x->leaf) >= 0)
		cgroup_leaf_signal(x->leaf, sig);
	else if (x->pid > 0)
		kill(-x->pid, sig);
}

void exec_kill(struct exec *x)
{
	if (!x->killed) {
		x->killed = true;
		x->killed_ms = clock_mono_ms();
	}
	if (x->spawning != NULL)
		x->env->cancel_spawn(x->spawning);
	cgroup_leaf_kill(x->leaf);
	if (cgroup_leaf_fd(x->leaf) < 0)
		signal_all(x, SIGKILL);
	signal_leader(x, SIGKILL); /* it may have left its leaf */
	arm(x, &x->kill, CLEANUP_RETRY_MS);
}

static void on_kill(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct exec *x = w->data;
	(void)loop;
	(void)revents;

	if (!x->killed || clock_mono_ms() - x->killed_ms < CLEANUP_WAIT_MS) {
		exec_kill(x);
		return;
	}
	x->kill_over = true;
	exec_step(x);
}

/* The leader is dead but its pidfd event was not handled yet: it ended by itself. */
static bool leader_is_dead(const struct exec *x)
{
	siginfo_t info = {0};
	return x->reaped ||
	       (waitid(P_PIDFD, (id_t)x->leader.fd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
	        info.si_pid != 0);
}

#define STAT_FLAGS 6    /* fields of /proc/PID/stat, counted from the one behind the name */
#define STAT_PENDING 28 /* signals of the first thread, as far as 31 */
#define EXITING 0x04    /* PF_EXITING */

/* Whether the leader has got a SIGKILL, or is on its way out. */
static bool leader_is_dying(const struct exec *x)
{
	char path[32], text[512];
	unsigned long field[STAT_PENDING + 1] = {0};

	snprintf(path, sizeof(path), "%d/stat", (int)x->pid);
	cgroup_files_read(own_proc(), path, text, sizeof(text));
	char *at = strrchr(text, ')');
	for (int i = 0; i <= STAT_PENDING && at != NULL; i++) {
		if ((at = strchr(at + 1, ' ')) != NULL)
			field[i] = strtoul(at + 1, NULL, 10);
	}
	return (field[STAT_FLAGS] & EXITING) != 0 ||
	       (field[STAT_PENDING] >> (SIGKILL - 1) & 1) != 0;
}

/* Not every OOM kill ends the leader: the kernel spares those that ask for it by their
 * oom_score_adj, and a cgroup that was nested in the leaf has victims of its own. */
static bool oom_is_under_way(struct exec *x)
{
	struct cgroup_counters c = {0};
	cgroup_leaf_counters(x->leaf, &c);
	return x->req.limits.oom_group && c.oom_kills > 0 && leader_is_dying(x);
}

/* The first cause wins; a later one only brings the kill forward. */
void exec_end(struct exec *x, enum verdict_cause cause, Sandgate__CancelReason reason,
              uint64_t grace_ms)
{
	if (x->state == EXEC_FINISHED)
		return;
	if (x->cause != CAUSE_NONE) {
		if (!x->killed &&
		    (double)grace_ms / 1000.0 < ev_timer_remaining(x->env->loop, &x->kill))
			arm(x, &x->kill, grace_ms);
		return;
	}
	if (x->state == EXEC_STARTING) {
		x->cause = cause;
		x->reason = reason;
		exec_kill(x);
		return;
	}
	if (leader_is_dead(x)) {
		if (cause != CAUSE_CANCEL)
			return;
		x->kill_leftovers = true;
		x->drain_over = x->reaped;
		exec_step(x);
		return;
	}
	x->cause = oom_is_under_way(x) ? CAUSE_OOM : cause;
	x->reason = reason;
	if (grace_ms == 0) {
		exec_kill(x);
		return;
	}
	signal_all(x, SIGTERM);
	signal_all(x, SIGCONT); /* a stopped process cannot heed SIGTERM */
	arm(x, &x->kill, grace_ms);
}

void exec_give_up(struct exec *x)
{
	if (x->cause == CAUSE_NONE)
		x->cause = CAUSE_CANCEL;
	x->drain_over = true;
	exec_kill(x);
}

static void on_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct exec *x = w->data;
	(void)loop;
	(void)revents;
	exec_end(x, CAUSE_TIMEOUT, SANDGATE__CANCEL_REASON__CANCEL_NONE, x->req.grace_ms);
}

/* The spawn's deadline counts from when a thread took it: one that waits its turn behind a
 * thousand others does not hang. */
static void on_spawn_late(struct exec *x)
{
	uint64_t age = x->spawning != NULL ? x->env->spawn_age_ms(x->spawning) : 0;
	if (age < SPAWN_DEADLINE_S * 1000) {
		arm(x, &x->phase, SPAWN_DEADLINE_S * 1000 - age);
		return;
	}
	exec_kill(x);
}

/* STARTING: a spawn that hangs is killed and then reports its own stage; one that the
 * exec's own timeout ends first is timed_out. RUNNING: it is no short one. DRAINING: silence,
 * or long enough. */
static void on_phase(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct exec *x = w->data;
	(void)loop;
	(void)revents;

	if (x->state == EXEC_STARTING && x->req.user_errno != 0) {
		exec_fail_user(x);
	} else if (x->state == EXEC_STARTING) {
		on_spawn_late(x);
	} else if (x->state == EXEC_RUNNING) {
		x->is_read = true;
		exec_interest(x);
	} else if (x->state == EXEC_DRAINING) {
		uint64_t now = clock_mono_ms();
		uint64_t idle = exec_output_waits(x) ? 0 : now - x->read_ms;
		if (idle < DRAIN_IDLE_MS && now - x->reaped_ms < DRAIN_MAX_MS) {
			arm(x, &x->phase, DRAIN_IDLE_MS - idle);
			return;
		}
		x->drain_over = true;
		exec_step(x);
	}
}

static void on_cpu(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct exec *x = w->data;
	uint64_t used_ms = cgroup_leaf_cpu_us(x->leaf) / 1000;
	(void)loop;
	(void)revents;

	if (used_ms >= x->req.cpu_time_ms) {
		exec_end(x, CAUSE_CPU_LIMIT, SANDGATE__CANCEL_REASON__CANCEL_NONE,
		         x->req.grace_ms);
		return;
	}
	uint64_t next = (x->req.cpu_time_ms - used_ms) / x->env->cpus;
	arm(x, &x->cpu, next < CPU_POLL_MIN_MS ? CPU_POLL_MIN_MS : next);
}

static bool survives_its_owner(const struct exec *x)
{
	return x->req.detach_on_disconnect || x->req.detached;
}

void exec_disown(struct exec *x, Sandgate__CancelReason reason)
{
	exec_give_up_owner(x);
	if (x->state == EXEC_FINISHED)
		return;
	if (survives_its_owner(x))
		x->detached = true;
	else
		exec_end(x, CAUSE_CANCEL, reason, x->req.grace_ms);
}

static void on_link_lost(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	exec_disown(w->data, SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
}

/* What a short command prints is read when it has ended, which takes no worker. */
void exec_read_soon(struct exec *x)
{
	arm(x, &x->phase, STARTED_HOLD_MS);
}

/* The leader's tracer may have let go of it. */
static void on_look(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct exec *x = w->data;
	(void)revents;
	ev_io_start(loop, &x->leader);
}

void exec_look_again(struct exec *x)
{
	ev_io_stop(x->env->loop, &x->leader);
	arm(x, &x->look, CLEANUP_RETRY_MS);
}

void exec_stop_init(struct exec *x)
{
	ev_now_update(x->env->loop);
	ev_timer_init(&x->deadline, on_deadline, 0, 0);
	ev_timer_init(&x->phase, on_phase, 0, 0);
	ev_timer_init(&x->look, on_look, 0, 0);
	ev_timer_init(&x->kill, on_kill, 0, 0);
	ev_timer_init(&x->cpu, on_cpu, 0, 0);
	ev_timer_init(&x->link_lost, on_link_lost, 0, 0);
	x->deadline.data = x->phase.data = x->look.data = x->kill.data = x->cpu.data =
	    x->link_lost.data = x;
	if (x->req.timeout_ms > 0)
		arm(x, &x->deadline, x->req.timeout_ms);
	arm(x, &x->phase, x->req.user_errno != 0 ? 0 : SPAWN_DEADLINE_S * 1000);
}

/* A process that was ended before it began has run all the same: its cause stands. */
void exec_arm_limits(struct exec *x)
{
	if (x->killed && x->cause == CAUSE_NONE)
		x->cause = CAUSE_TIMEOUT; /* the spawn's deadline, a moment too late */
	if (x->cause != CAUSE_NONE) {
		x->killed = x->kill_over = false;
		exec_kill(x);
	} else if (x->req.cpu_time_ms > 0) {
		on_cpu(x->env->loop, &x->cpu, 0);
	}
}

void exec_stop_timers(struct exec *x)
{
	ev_timer_stop(x->env->loop, &x->deadline);
	ev_timer_stop(x->env->loop, &x->phase);
	ev_timer_stop(x->env->loop, &x->kill);
	ev_timer_stop(x->env->loop, &x->cpu);
}

void exec_cancel(struct exec *x, Sandgate__CancelReason reason, const uint64_t *grace_ms)
{
	if (x->state != EXEC_FINISHED)
		exec_end(x, CAUSE_CANCEL, reason,
		         grace_ms != NULL ? *grace_ms : x->req.grace_ms);
	else if (x->leaf != NULL)
		cgroup_leaf_kill(x->leaf);
}

void exec_client_gone(struct exec_peer *p, const uint64_t *grace_ms)
{
	struct exec *x = p->exec;
	bool owned = x->owner == p;

	if (!owned || exec_pass_on(x))
		p->role = SANDGATE__ROLE__ROLE_OUTPUT;
	else if (survives_its_owner(x))
		x->detached = true;
	else
		exec_cancel(x, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE, grace_ms);
}

int exec_signal(struct exec *x, int signal, bool all, struct err *e)
{
	if (signal < 1 || signal > SIGRTMAX)
		return err_field(e, ERR_INVALID_FIELD, "signal", "no such signal");
	if (x->state == EXEC_STARTING)
		return err_set(e, ERR_INVALID_STATE, "it is not started yet");
	if (all)
		signal_all(x, signal);
	else
		signal_leader(x, signal);
	return 0;
}
