#include "guest-agent/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/exec_private.h"
#include "guest-agent/init.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "proto/log.h"

void exec_notify(struct exec *x)
{
	struct exec_peer *next;
	for (struct exec_peer *p = x->peers; p != NULL; p = next) {
		next = p->next;
		p->on_news(p);
	}
}

/* ---- the states ---- */

static void enter_draining(struct exec *x)
{
	x->state = EXEC_DRAINING;
	x->read_ms = x->reaped_ms = clock_mono_ms();
	exec_output_close_child(x);
	cgroup_leaf_counters(x->leaf, &x->counters);
	if (x->req.limits.oom_group && x->counters.oom_kills > 0 && x->reaped &&
	    x->leader_code != CLD_EXITED && x->leader_status == SIGKILL)
		x->kill_leftovers = true; /* they are dying with it: wait for that */
	ev_timer_stop(x->env->loop, &x->deadline);
	ev_timer_stop(x->env->loop, &x->cpu);
	exec_output_drain(x);
	ev_timer_stop(x->env->loop, &x->phase);
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
	if (!ev_is_active(&x->kill) && (cgroup_leaf_populated(x->leaf) ||
	                                cgroup_leaf_fd(x->leaf) < 0 || exec_output_busy(x)))
		exec_kill(x);
	x->leaf_empty = !cgroup_leaf_populated(x->leaf);
	if (!x->leaf_empty && !x->leaf_asked)
		cgroup_leaf_when_empty(x->leaf, on_leaf_empty, x);
	x->leaf_asked = true;
}

static void enter_finished(struct exec *x)
{
	if (!x->spawn_failed)
		exec_output_drain(x);
	x->state = EXEC_FINISHED;
	exec_stop_timers(x);
	bool leftovers = !x->spawn_failed && cgroup_leaf_populated(x->leaf);
	exec_fill_result(x, leftovers);
	if (x->killed)
		init_reap_now(); /* the next command sees none of them, not even dead */
	stdin_feed_destroy(x->feed);
	x->feed = NULL;
	exec_output_abandon(x);
	if (leftovers) {
		cgroup_leaf_when_empty(x->leaf, on_leaf_empty, x);
		cgroup_leaf_bind_cpu(x->leaf, x->req.cpu_time_ms);
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
		exec_read_soon(x);
		exec_notify(x);
	}
	if (x->state == EXEC_STARTING && x->spawn_failed)
		enter_finished(x);
	if (x->state == EXEC_RUNNING && (x->reaped || x->kill_over))
		enter_draining(x);
	if (x->state == EXEC_DRAINING &&
	    (exec_output_ended(x) || x->drain_over || x->kill_over))
		enter_clearing(x);
	if (x->state == EXEC_CLEARING &&
	    ((x->leaf_empty && !exec_output_busy(x)) || x->kill_over))
		enter_finished(x);
}

/* ---- the process ---- */

/* `has_ended`: so its pidfd says. */
static void look_at_leader(struct exec *x, bool has_ended)
{
	ev_io *w = &x->leader;
	siginfo_t info = {0};

	if (waitid(P_PIDFD, (id_t)w->fd, &info, WEXITED | WNOHANG) < 0) {
		/* Never with one reaper; a guess ends the exec, waiting would spin. */
		log_error("exec", x->req.id, "its exit status is gone: %s", strerror(errno));
		info = (siginfo_t){.si_code = CLD_KILLED, .si_status = SIGKILL};
	} else if (info.si_pid == 0) {
		if (has_ended)
			exec_look_again(x); /* its tracer keeps it: its pidfd would not rest */
		return;
	}
	x->reaped = true;
	x->leader_code = info.si_code;
	x->leader_status = info.si_status;
	ev_io_stop(x->env->loop, w);
	idle_close(x->env->idle, w->fd);
	ev_io_set(w, -1, EV_READ);
	exec_step(x);
}

static void on_leader(struct ev_loop *loop, ev_io *w, int revents)
{
	(void)loop;
	(void)revents;
	look_at_leader(w->data, true);
}

static void close_stdin_fd(struct exec *x)
{
	if (x->child_fds[0] >= 0 && x->child_fds[0] != x->env->null_fd)
		close(x->child_fds[0]);
	x->child_fds[0] = -1;
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
	x->feed = stdin_feed_create(x->env->loop, x->env->pipe_workers, feed_fd, on_room, x);
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
	if (exec_output_open(x) < 0)
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
	stdin_feed_share(x->feed);
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
	close_stdin_fd(x);
	ev_timer_stop(x->env->loop, &x->phase);
	if (r->stage != NULL) {
		x->spawn_failed = true;
		exec_output_close_child(x);
		exec_note_failure(x, r->stage, r->errnum);
	} else {
		x->spawned = true;
		x->pid = r->pid;
		x->started_wall_ms = clock_wall_ms();
		ev_io_set(&x->leader, r->pidfd, EV_READ);
		ev_io_start(x->env->loop, &x->leader);
		exec_arm_limits(x);
		idle_exec_started(x->env->idle);
	}
	exec_request_spent(&x->req);
	exec_step(x);
	if (x->spawned)
		look_at_leader(x, false); /* most often it is over, and need not be watched */
}

/* The user could not be resolved: reported from the loop, as a spawn would be. */
void exec_fail_user(struct exec *x)
{
	struct spawn_result r = {.pidfd = -1, .stage = "user", .errnum = x->req.user_errno};
	on_spawned(&r, x);
}

static void free_exec(struct exec *x)
{
	close_stdin_fd(x);
	exec_output_close(x);
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
	x->held_from = UINT64_MAX;
	x->child_fds[0] = x->child_fds[1] = x->child_fds[2] = -1;
	exec_output_init(x);
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
	ev_timer_stop(x->env->loop, &x->link_lost);
	ev_timer_stop(x->env->loop, &x->look);
	if (x->leaf != NULL)
		cgroup_leaf_retire(x->leaf, x->killed);
	if (x->leader.fd >= 0) {
		ev_io_stop(x->env->loop, &x->leader);
		close(x->leader.fd);
	}
	free_exec(x);
}
