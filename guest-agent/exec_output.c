/* The output half of an exec: its pipes, read into the ring as far as its owner keeps up. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "guest-agent/drain.h"
#include "guest-agent/exec_private.h"
#include "guest-agent/pipe_job.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "proto/log.h"

bool exec_output_ended(const struct exec *x)
{
	return x->pipes[0].fd < 0 && x->pipes[1].fd < 0;
}

/* A worker's read of a pipe that processes still write to. */
struct reading {
	struct pipe_job job;
	struct exec *x; /* NULL: its exec is over, what it writes is dropped */
	struct ev_loop *loop;
	unsigned stream;
	uint8_t data[CHUNK_MAX];
};

/* What the pipe held when the leader ended: not known before a worker has looked. */
#define OWED_UNKNOWN SIZE_MAX

static bool is_busy(const struct exec *x, unsigned stream)
{
	return x->readings[stream] != NULL && x->readings[stream]->job.busy;
}

bool exec_output_busy(const struct exec *x)
{
	return is_busy(x, 0) || is_busy(x, 1);
}

/* An owner that is behind holds the process back, and so does a snapshot that is near, but
 * for what the pipes held when the leader ended: that is bounded and must not wait. */
static bool may_read(const struct exec *x, unsigned stream)
{
	if (x->state == EXEC_STARTING || x->state >= EXEC_CLEARING || x->pipes[stream].fd < 0 ||
	    is_busy(x, stream) || x->output_lost)
		return false;
	if (x->state == EXEC_RUNNING && (x->env->suspended || !x->is_read))
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
static size_t widen_to(const struct exec *x, unsigned stream, size_t got)
{
	uint64_t total = ring_total(x->ring, stream);
	return total >= CHUNK_MAX && total - got < CHUNK_MAX ? OUTPUT_PIPE : 0;
}

/* `n` bytes of `stream` were read to `data`, or there is `errnum`. */
static void take(struct exec *x, unsigned stream, const uint8_t *data, ssize_t n, int errnum)
{
	if (n > 0 && ring_put(x->ring, stream, data, (size_t)n) == 0) {
		x->read_ms = clock_mono_ms();
	} else if (n > 0) {
		log_error("exec", x->req.id, "out of memory for its output: it is ended");
		x->output_lost = true;
		exec_give_up(x);
	} else if (n == 0 || (errnum != EAGAIN && errnum != EINTR)) {
		close_pipe(x, stream);
	}
}

static void after_read(struct exec *x)
{
	if (x->env->budget.used > x->env->budget.limit)
		x->env->on_over_budget(x->env, x);
	exec_interest(x);
	exec_notify(x);
}

static void on_read(struct pipe_job *j)
{
	struct reading *r = (struct reading *)j;
	struct exec *x = r->x;
	size_t *owed = x != NULL ? &x->owed[r->stream] : NULL,
	       got = j->n > 0 ? (size_t)j->n : 0;

	if (x == NULL) {
		drain_adopt(r->loop, j->workers, j->fd);
		free(r);
		return;
	}
	if (*owed == OWED_UNKNOWN)
		*owed = got > 0 ? j->held : 0;
	else
		*owed -= got < *owed ? got : *owed;
	if (got == 0)
		*owed = 0;
	take(x, r->stream, r->data, j->n, j->errnum);
	j->widen_to = widen_to(x, r->stream, got);
	after_read(x);
	exec_step(x);
}

static struct reading *reading_of(struct exec *x, unsigned stream)
{
	struct reading *r = x->readings[stream];

	if (r != NULL || (r = malloc(sizeof(*r))) == NULL)
		return r;
	pipe_job_init(&r->job, x->env->pipe_workers, on_read);
	r->x = x;
	r->loop = x->env->loop;
	r->stream = stream;
	return x->readings[stream] = r;
}

static void start_reading(struct exec *x, unsigned stream)
{
	struct reading *r = reading_of(x, stream);

	if (r != NULL) {
		pipe_job_read(&r->job, x->pipes[stream].fd, r->data, sizeof(r->data));
		return;
	}
	log_error("exec", x->req.id, "out of memory for its output: it is ended");
	x->output_lost = true;
	exec_give_up(x);
}

/* To its end: the pipe is the agent's alone. */
static void read_rest(struct exec *x, unsigned stream)
{
	static uint8_t data[CHUNK_MAX];

	while (x->pipes[stream].fd >= 0 && !x->output_lost) {
		ssize_t n = read(x->pipes[stream].fd, data, sizeof(data));
		if (n < 0 && errno == EAGAIN)
			return; /* root has opened it anew */
		take(x, stream, data, n, errno);
	}
}

static void on_pipe(struct ev_loop *loop, ev_io *w, int revents)
{
	struct exec *x = w->data;
	unsigned stream = w == &x->pipes[1];
	(void)loop;
	(void)revents;

	if (!pipe_is_ours(w->fd)) {
		start_reading(x, stream);
		exec_interest(x);
		return;
	}
	read_rest(x, stream);
	after_read(x);
	exec_step(x);
}

void exec_output_drain(struct exec *x)
{
	for (unsigned i = 0; i < RING_STREAMS; i++) {
		if (x->pipes[i].fd < 0)
			continue;
		if (x->state == EXEC_DRAINING)
			x->owed[i] = OWED_UNKNOWN;
		if (is_busy(x, i))
			continue;
		if (pipe_is_ours(x->pipes[i].fd))
			read_rest(x, i);
		else if (x->state == EXEC_DRAINING)
			start_reading(x, i);
	}
	after_read(x);
}

bool exec_output_waits(const struct exec *x)
{
	for (unsigned i = 0; i < RING_STREAMS; i++)
		if (is_busy(x, i) ||
		    (ev_is_active(&x->pipes[i]) && pipe_is_readable(x->pipes[i].fd)))
			return true;
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
		struct reading *r = x->readings[i];
		bool busy = is_busy(x, i);
		x->readings[i] = NULL;
		if (busy)
			r->x = NULL;
		else
			free(r);
		if (x->pipes[i].fd < 0)
			continue;
		ev_io_stop(x->env->loop, &x->pipes[i]);
		if (!busy)
			drain_adopt(x->env->loop, x->env->pipe_workers, x->pipes[i].fd);
		ev_io_set(&x->pipes[i], -1, EV_READ);
	}
}

void exec_output_close(struct exec *x)
{
	exec_output_close_child(x);
	for (unsigned i = 0; i < RING_STREAMS; i++)
		close_pipe(x, i);
}
