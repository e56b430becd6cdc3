/* The output half of an exec: its pipes, read into the ring as far as its owner keeps up. */
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "guest-agent/clock.h"
#include "guest-agent/drain.h"
#include "guest-agent/exec_internal.h"
#include "proto/limits.h"
#include "proto/log.h"

bool exec_output_ended(const struct exec *x)
{
	return x->pipes[0].fd < 0 && x->pipes[1].fd < 0;
}

/* An owner that is behind holds the process back, and so does a snapshot that is near, but
 * for what the pipes held when the leader ended: that is bounded and must not wait. */
static bool may_read(const struct exec *x, unsigned stream)
{
	if (x->state == EXEC_STARTING || x->pipes[stream].fd < 0)
		return false;
	if (x->env->suspended && x->state == EXEC_RUNNING)
		return false;
	uint64_t from = exec_owed_from(x);
	if (from == UINT64_MAX || x->owed[stream] > 0)
		return true;
	uint64_t behind = ring_end(x->ring) - from;
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
	idle_close(x->env->idle, x->pipes[stream].fd);
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

void exec_output_drain(struct exec *x)
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

bool exec_output_waits(const struct exec *x)
{
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		int held = 0;
		if (ev_is_active(&x->pipes[i]) && ioctl(x->pipes[i].fd, FIONREAD, &held) == 0 &&
		    held > 0)
			return true;
	}
	return false;
}

static int open_pipe(struct exec *x, unsigned stream)
{
	int fds[2];
	if (pipe_stock_take(x->env->pipes, fds) < 0)
		return -1;
	ev_io_set(&x->pipes[stream], fds[0], EV_READ);
	x->child_fds[stream + 1] = fds[1];
	return 0;
}

void exec_output_init(struct exec *x)
{
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		ev_io_init(&x->pipes[i], on_pipe, -1, EV_READ);
		x->pipes[i].data = x;
	}
}

int exec_output_open(struct exec *x)
{
	if (open_pipe(x, 0) < 0)
		return -1;
	if (!x->req.merge_stderr)
		return open_pipe(x, 1);
	x->child_fds[2] = x->child_fds[1];
	return 0;
}

void exec_output_close_child(struct exec *x)
{
	if (x->child_fds[2] == x->child_fds[1])
		x->child_fds[2] = -1;
	for (int i = 1; i <= 2; i++) {
		if (x->child_fds[i] >= 0)
			close(x->child_fds[i]);
		x->child_fds[i] = -1;
	}
}

void exec_output_abandon(struct exec *x)
{
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		if (x->pipes[i].fd < 0)
			continue;
		ev_io_stop(x->env->loop, &x->pipes[i]);
		drain_adopt(x->env->loop, x->pipes[i].fd);
		ev_io_set(&x->pipes[i], -1, EV_READ);
	}
}

void exec_output_close(struct exec *x)
{
	exec_output_close_child(x);
	for (unsigned i = 0; i < RING_STREAMS; i++)
		close_pipe(x, i);
}
