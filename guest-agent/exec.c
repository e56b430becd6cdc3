#include "guest-agent/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/clock.h"
#include "guest-agent/drain.h"
#include "guest-agent/exec_internal.h"
#include "guest-agent/init.h"
#include "proto/limits.h"
#include "proto/log.h"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

void exec_notify(struct exec *x)
{
	struct exec_peer *next;
	for (struct exec_peer *p = x->peers; p != NULL; p = next) {
		next = p->next;
		p->on_news(p);
	}
}

/* ---- output ---- */

static bool at_end(const struct exec *x)
{
	return x->pipes[0].fd < 0 && x->pipes[1].fd < 0;
}

/* An owner that is behind holds the process back, but for what the pipes held when the
 * leader ended: that is bounded and must not wait. */
static bool may_read(const struct exec *x, unsigned stream)
{
	if (x->state == EXEC_STARTING || x->pipes[stream].fd < 0)
		return false;
	if (x->owner == NULL || x->owed[stream] > 0)
		return true;
	uint64_t behind = ring_end(x->ring) - x->owner->cursor.seq;
	bool tight = x->env->budget.used > x->env->budget.limit;
	return behind <= (tight ? 0 : OWNER_WINDOW);
}

void exec_interest(struct exec *x)
{
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		if (may_read(x, i))
			ev_io_start(x->env->loop, &x->pipes[i]);
		else
			ev_io_stop(x->env->loop, &x->pipes[i]);
	}
}

static void close_pipe(struct exec *x, unsigned stream)
{
	if (x->pipes[stream].fd < 0)
		return;
	ev_io_stop(x->env->loop, &x->pipes[stream]);
	close(x->pipes[stream].fd);
	ev_io_set(&x->pipes[stream], -1, EV_READ);
	x->owed[stream] = 0;
}

/* A command that fills its pipe once gets a larger one: it goes on writing while the agent
 * sends, with half the switches between the two. Where the kernel grants no more, the
 * default serves. */
static void widen_pipe(const struct exec *x, unsigned stream, size_t got)
{
	uint64_t total = ring_total(x->ring, stream);
	if (total >= CHUNK_MAX && total - got < CHUNK_MAX)
		fcntl(x->pipes[stream].fd, F_SETPIPE_SZ, OUTPUT_PIPE);
}

/* One read; false when there was nothing to read. */
static bool read_pipe(struct exec *x, unsigned stream)
{
	ssize_t n = ring_fill(x->ring, stream, x->pipes[stream].fd);
	if (n > 0) {
		widen_pipe(x, stream, (size_t)n);
		x->owed[stream] -= (size_t)n < x->owed[stream] ? (size_t)n : x->owed[stream];
		x->read_ms = clock_mono_ms();
		return true;
	}
	if (n < 0 && errno == ENOMEM) {
		log_error("exec", x->req.id, "out of memory for its output: it is ended");
		close_pipe(x, stream);
		exec_end(x, CAUSE_CANCEL, SANDGATE__CANCEL_REASON__CANCEL_NONE, 0);
	} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		close_pipe(x, stream);
	} else {
		x->owed[stream] = 0;
	}
	return false;
}

static void after_read(struct exec *x)
{
	if (x->env->budget.used > x->env->budget.limit)
		x->env->on_over_budget(x->env, x);
	exec_interest(x);
	exec_notify(x);
}

static void on_pipe(struct ev_loop *loop, ev_io *w, int revents)
{
	struct exec *x = w->data;
	(void)loop;
	(void)revents;

	read_pipe(x, w == &x->pipes[1]);
	after_read(x);
	exec_step(x);
}

/* What the pipes hold now is read now, so that it leaves together with the result. */
static void drain_now(struct exec *x)
{
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		int held = 0;
		if (x->pipes[i].fd < 0)
			continue;
		if (ioctl(x->pipes[i].fd, FIONREAD, &held) == 0 && held > 0)
			x->owed[i] = (size_t)held;
		while (x->owed[i] > 0 && read_pipe(x, i))
			;
		if (x->pipes[i].fd >= 0 && may_read(x, i))
			read_pipe(x, i); /* most often the end */
	}
	after_read(x);
}

/* ---- the states ---- */

static void close_child_fd(struct exec *x, unsigned i)
{
	if (x->child_fds[i] >= 0 && x->child_fds[i] != x->env->null_fd)
		close(x->child_fds[i]);
	x->child_fds[i] = -1;
}

/* Held until the leader has ended, or a pipe that closes as it dies would wake the agent in
 * the middle of that, once for each: the end of the output is of no interest before. */
static void close_output_fds(struct exec *x)
{
	if (x->child_fds[2] == x->child_fds[1])
		x->child_fds[2] = -1;
	close_child_fd(x, 1);
	close_child_fd(x, 2);
}

static void enter_draining(struct exec *x)
{
	x->state = EXEC_DRAINING;
	x->read_ms = x->reaped_ms = clock_mono_ms();
	close_output_fds(x);
	cgroup_leaf_counters(x->leaf, &x->counters);
	if (x->req.limits.oom_group && x->counters.oom_kills > 0 && x->reaped &&
	    x->leader_code != CLD_EXITED)
		x->kill_leftovers = true; /* they are dying with it: wait for that */
	ev_timer_stop(x->env->loop, &x->deadline);
	ev_timer_stop(x->env->loop, &x->cpu);
	drain_now(x);
	ev_timer_set(&x->phase, DRAIN_IDLE_MS / 1000.0, 0);
	ev_timer_start(x->env->loop, &x->phase);
}

static void on_leaf_empty(void *arg)
{
	struct exec *x = arg;
	x->leaf_empty = true;
	if (x->state != EXEC_FINISHED) {
		exec_step(x);
		return;
	}
	ev_timer_stop(x->env->loop, &x->cpu);
	cgroup_leaf_retire(x->leaf, false); /* the last leftover went */
	x->leaf = NULL;
}

static void enter_clearing(struct exec *x)
{
	x->state = EXEC_CLEARING;
	if (x->cause == CAUSE_NONE && !x->kill_leftovers && !x->req.kill_on_exit) {
		x->kill_over = true; /* nothing to wait for */
		return;
	}
	if (!ev_is_active(&x->kill) &&
	    (cgroup_leaf_populated(x->leaf) || cgroup_leaf_fd(x->leaf) < 0))
		exec_kill(x);
	x->leaf_empty = !cgroup_leaf_populated(x->leaf);
	if (!x->leaf_empty && !x->leaf_asked)
		cgroup_leaf_when_empty(x->leaf, on_leaf_empty, x);
	x->leaf_asked = true;
}

static void enter_finished(struct exec *x)
{
	if (!x->spawn_failed)
		drain_now(x);
	x->state = EXEC_FINISHED;
	exec_stop_timers(x);
	bool leftovers = !x->spawn_failed && cgroup_leaf_populated(x->leaf);
	exec_fill_result(x, leftovers);
	if (x->killed)
		init_reap_now(); /* the next command sees none of them, not even dead */
	stdin_feed_destroy(x->feed);
	x->feed = NULL;
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		if (x->pipes[i].fd < 0)
			continue;
		ev_io_stop(x->env->loop, &x->pipes[i]);
		drain_adopt(x->env->loop, x->pipes[i].fd);
		ev_io_set(&x->pipes[i], -1, EV_READ);
	}
	if (leftovers) {
		cgroup_leaf_when_empty(x->leaf, on_leaf_empty, x);
		exec_watch_leftovers(x);
	} else {
		cgroup_leaf_retire(x->leaf, x->spawn_failed || x->killed);
		x->leaf = NULL;
	}
	log_debug("exec", x->req.id, "outcome %d, exit code %d", x->result.outcome,
	          x->result.exit_code);
	exec_notify(x);
	x->env->on_finished(x->env, x->link);
}

void exec_step(struct exec *x)
{
	if (x->state == EXEC_STARTING && x->spawned) {
		x->state = EXEC_RUNNING;
		exec_interest(x);
		exec_notify(x);
	}
	if (x->state == EXEC_STARTING && x->spawn_failed)
		enter_finished(x);
	if (x->state == EXEC_RUNNING && (x->reaped || x->kill_over))
		enter_draining(x);
	if (x->state == EXEC_DRAINING && (at_end(x) || x->drain_over || x->kill_over))
		enter_clearing(x);
	if (x->state == EXEC_CLEARING && (x->leaf_empty || x->kill_over))
		enter_finished(x);
}

/* ---- the process ---- */

static void look_at_leader(struct exec *x)
{
	ev_io *w = &x->leader;
	siginfo_t info = {0};

	if (waitid(P_PIDFD, (id_t)w->fd, &info, WEXITED | WNOHANG) < 0) {
		/* Never with one reaper; a guess ends the exec, waiting would spin. */
		log_error("exec", x->req.id, "its exit status is gone: %s", strerror(errno));
		info = (siginfo_t){.si_code = CLD_KILLED, .si_status = SIGKILL};
	} else if (info.si_pid == 0) {
		return;
	}
	x->reaped = true;
	x->leader_code = info.si_code;
	x->leader_status = info.si_status;
	ev_io_stop(x->env->loop, w);
	close(w->fd);
	ev_io_set(w, -1, EV_READ);
	exec_step(x);
}

static void on_leader(struct ev_loop *loop, ev_io *w, int revents)
{
	(void)loop;
	(void)revents;
	look_at_leader(w->data);
}

static int open_pipe(ev_io *read_end, int *write_end)
{
	int fds[2];
	if (pipe2(fds, O_CLOEXEC) < 0)
		return -1;
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	ev_io_set(read_end, fds[0], EV_READ);
	*write_end = fds[1];
	return 0;
}

static void on_room(void *arg)
{
	exec_notify(arg);
}

static int open_stdin(struct exec *x)
{
	int feed_fd = -1;

	if (x->req.stdin_len == 0 && !x->req.stdin_open) {
		x->child_fds[0] = x->env->null_fd;
	} else {
		int fds[2];
		if (pipe2(fds, O_CLOEXEC) < 0)
			return -1;
		fcntl(fds[1], F_SETFL, O_NONBLOCK);
		x->child_fds[0] = fds[0];
		feed_fd = fds[1];
	}
	x->feed = stdin_feed_create(x->env->loop, feed_fd, on_room, x);
	if (x->feed == NULL && feed_fd >= 0)
		close(feed_fd);
	if (x->feed == NULL || x->child_fds[0] < 0)
		return -1;
	uint8_t *data = x->req.stdin_data;
	x->req.stdin_data = NULL;
	if (stdin_feed_push(x->feed, data, x->req.stdin_len) < 0)
		return -1;
	x->stdin_taken = stdin_feed_offset(x->feed);
	if (!x->req.stdin_open)
		stdin_feed_close(x->feed);
	return 0;
}

static int open_fds(struct exec *x, struct err *e)
{
	if (open_pipe(&x->pipes[0], &x->child_fds[1]) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "output pipe");
	if (x->req.merge_stderr)
		x->child_fds[2] = x->child_fds[1];
	else if (open_pipe(&x->pipes[1], &x->child_fds[2]) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "output pipe");
	if (open_stdin(x) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "stdin");
	return 0;
}

static void on_spawned(const struct spawn_result *r, void *arg);

static int start_spawn(struct exec *x, struct err *e)
{
	struct exec_request *r = &x->req;
	struct spawn_plan plan = {
	    .argv = r->argv,
	    .envp = r->envp,
	    .path = r->path,
	    .cwd = r->cwd,
	    .who = r->who,
	    .fds = {x->child_fds[0], x->child_fds[1], x->child_fds[2]},
	    .extra_fd = r->cmd_fd,
	    .cgroup_fd = cgroup_leaf_fd(x->leaf),
	    .no_new_privs = r->no_new_privs,
	    .narrow_caps = r->narrow_caps,
	    .caps = r->caps,
	    .open_files = r->open_files,
	    .file_size = r->file_size,
	};
	x->spawning = x->env->spawn(x->env->spawner, &plan, on_spawned, x);
	if (x->spawning == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	return 0;
}

/* The user's home is not there, or not theirs to enter: "/" will do. */
static bool go_without_home(struct exec *x)
{
	if (!x->req.cwd_is_default || x->cause != CAUSE_NONE || x->killed)
		return false;
	x->req.cwd_is_default = false;
	x->req.cwd = "/";
	return start_spawn(x, NULL) == 0;
}

static void on_spawned(const struct spawn_result *r, void *arg)
{
	struct exec *x = arg;

	x->spawning = NULL;
	if (r->stage != NULL && strcmp(r->stage, "chdir") == 0 && go_without_home(x))
		return;
	close_child_fd(x, 0);
	ev_timer_stop(x->env->loop, &x->phase);
	if (r->stage != NULL) {
		x->spawn_failed = true;
		close_output_fds(x);
		exec_note_failure(x, r->stage, r->errnum);
	} else {
		x->spawned = true;
		x->pid = r->pid;
		x->started_wall_ms = clock_wall_ms();
		ev_io_set(&x->leader, r->pidfd, EV_READ);
		ev_io_start(x->env->loop, &x->leader);
		exec_arm_limits(x);
	}
	exec_request_spent(&x->req);
	exec_step(x);
	if (x->spawned)
		look_at_leader(x); /* a short command is over by now: nothing need be watched */
}

/* The user could not be resolved: reported from the loop, as a spawn would be. */
void exec_fail_user(struct exec *x)
{
	struct spawn_result r = {.pidfd = -1, .stage = "user", .errnum = x->req.user_errno};
	on_spawned(&r, x);
}

static void free_exec(struct exec *x)
{
	close_child_fd(x, 0);
	close_output_fds(x);
	for (unsigned i = 0; i < RING_STREAMS; i++)
		close_pipe(x, i);
	stdin_feed_destroy(x->feed);
	ring_destroy(x->ring);
	exec_request_free(&x->req);
	free(x);
}

struct exec *exec_create(struct exec_env *env, struct exec_request *r, void *link,
                         struct err *e)
{
	struct exec *x = calloc(1, sizeof(*x));
	if (x == NULL) {
		exec_request_free(r);
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	x->env = env;
	x->link = link;
	x->req = *r;
	x->detached = r->detached;
	x->created_mono_ms = clock_mono_ms();
	x->child_fds[0] = x->child_fds[1] = x->child_fds[2] = -1;
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		ev_io_init(&x->pipes[i], on_pipe, -1, EV_READ);
		x->pipes[i].data = x;
	}
	ev_io_init(&x->leader, on_leader, -1, EV_READ);
	x->leader.data = x;

	if ((x->ring = ring_create(r->output_bytes, &env->budget)) == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		goto fail;
	}
	x->leaf = cgroup_leaf_create(env->tree, &r->limits, e);
	if (x->leaf == NULL)
		goto fail;
	exec_stop_init(x);
	if (open_fds(x, e) < 0)
		goto fail;
	/* An unknown user is reported by the phase timer: from the loop, as a spawn would. */
	if (r->user_errno == 0 && start_spawn(x, e) < 0)
		goto fail;
	return x;
fail:
	if (x->leaf != NULL) {
		exec_stop_timers(x);
		cgroup_leaf_retire(x->leaf, true);
	}
	free_exec(x);
	return NULL;
}

void exec_destroy(struct exec *x)
{
	if (x->leaf != NULL)
		cgroup_leaf_retire(x->leaf, x->killed);
	if (x->leader.fd >= 0) {
		ev_io_stop(x->env->loop, &x->leader);
		close(x->leader.fd);
	}
	free_exec(x);
}
