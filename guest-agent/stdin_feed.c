#include "guest-agent/stdin_feed.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <unistd.h>

#include "guest-agent/pipe_job.h"
#include "proto/limits.h"

struct piece {
	STAILQ_ENTRY(piece) next;
	uint8_t *data;
	size_t len, sent;
};

struct stdin_feed {
	struct pipe_job job;
	struct ev_loop *loop;
	ev_io io; /* fd -1 once the pipe is closed */
	STAILQ_HEAD(, piece) queue;
	uint64_t taken;
	size_t waiting;
	bool closed, shared;
	bool gone; /* its exec has no more use for it */
	void (*on_room)(void *arg);
	void *arg;
};

static void drop_piece(struct stdin_feed *f)
{
	struct piece *p = STAILQ_FIRST(&f->queue);
	STAILQ_REMOVE_HEAD(&f->queue, next);
	f->waiting -= p->len - p->sent;
	free(p->data);
	free(p);
}

static void drop_queue(struct stdin_feed *f)
{
	while (!STAILQ_EMPTY(&f->queue))
		drop_piece(f);
}

/* What a worker has in hand is not touched: on_job_done comes back to it. */
static void shut(struct stdin_feed *f)
{
	f->closed = true;
	if (f->job.busy)
		return;
	drop_queue(f);
	if (f->io.fd < 0)
		return;
	int fd = f->io.fd;
	ev_io_stop(f->loop, &f->io);
	ev_io_set(&f->io, -1, EV_WRITE);
	if (f->shared && !pipe_is_ours(fd))
		pipe_job_close(&f->job, fd);
	else
		close(fd);
}

static void account(struct stdin_feed *f, ssize_t n, int errnum)
{
	struct piece *p = STAILQ_FIRST(&f->queue);

	if (n < 0 && errnum != EAGAIN && errnum != EINTR) {
		shut(f);
		return;
	}
	if (n > 0) {
		p->sent += (size_t)n;
		f->waiting -= (size_t)n;
	}
	if (p->sent == p->len)
		drop_piece(f);
}

/* What there is left to do: wait for room, or for more input, or end. */
static void settle(struct stdin_feed *f)
{
	if (f->io.fd < 0 || f->job.busy)
		return;
	if (!STAILQ_EMPTY(&f->queue))
		ev_io_start(f->loop, &f->io);
	else if (f->closed)
		shut(f);
	else
		ev_io_stop(f->loop, &f->io);
}

static void tell_room(struct stdin_feed *f, bool was_full)
{
	if (was_full && !stdin_feed_full(f))
		f->on_room(f->arg);
}

static void on_job_done(struct pipe_job *j)
{
	struct stdin_feed *f = (struct stdin_feed *)j;
	bool was_full = stdin_feed_full(f);

	if (j->kind == PIPE_WRITE)
		account(f, j->n, j->errnum);
	if (!f->gone) {
		settle(f);
		tell_room(f, was_full);
		return;
	}
	shut(f);
	if (!f->job.busy)
		free(f);
}

/* One write at most, so that a fast reader does not hold the loop. */
static void write_some(struct stdin_feed *f)
{
	struct piece *p = STAILQ_FIRST(&f->queue);

	if (p == NULL || f->job.busy)
		return;
	ev_io_stop(f->loop, &f->io);
	if (f->shared && !pipe_is_ours(f->io.fd)) {
		pipe_job_write(&f->job, f->io.fd, p->data + p->sent, p->len - p->sent);
		return;
	}
	ssize_t n = write(f->io.fd, p->data + p->sent, p->len - p->sent);
	account(f, n, errno);
	settle(f);
}

static void on_writable(struct ev_loop *loop, ev_io *w, int revents)
{
	struct stdin_feed *f = w->data;
	bool was_full = stdin_feed_full(f);
	(void)loop;
	(void)revents;

	write_some(f);
	tell_room(f, was_full);
}

struct stdin_feed *stdin_feed_create(struct ev_loop *loop, struct workers *workers, int fd,
                                     void (*on_room)(void *arg), void *arg)
{
	struct stdin_feed *f = calloc(1, sizeof(*f));
	if (f == NULL)
		return NULL;
	pipe_job_init(&f->job, workers, on_job_done);
	f->loop = loop;
	f->on_room = on_room;
	f->arg = arg;
	f->closed = fd < 0;
	STAILQ_INIT(&f->queue);
	ev_io_init(&f->io, on_writable, fd, EV_WRITE);
	f->io.data = f;
	return f;
}

void stdin_feed_share(struct stdin_feed *f)
{
	f->shared = true;
}

void stdin_feed_destroy(struct stdin_feed *f)
{
	if (f == NULL)
		return;
	f->gone = true;
	shut(f);
	if (!f->job.busy)
		free(f);
}

int stdin_feed_push(struct stdin_feed *f, uint8_t *data, size_t len)
{
	if (f->closed || len == 0) {
		free(data);
		return 0;
	}
	struct piece *p = calloc(1, sizeof(*p));
	if (p == NULL) {
		free(data);
		return -1;
	}
	p->data = data;
	p->len = len;
	f->taken += len;
	f->waiting += len;
	STAILQ_INSERT_TAIL(&f->queue, p, next);
	if (!ev_is_active(&f->io))
		write_some(f);
	return 0;
}

void stdin_feed_close(struct stdin_feed *f)
{
	f->closed = true;
	if (STAILQ_EMPTY(&f->queue))
		shut(f);
}

uint64_t stdin_feed_offset(const struct stdin_feed *f)
{
	return f->taken;
}

bool stdin_feed_closed(const struct stdin_feed *f)
{
	return f->closed;
}

bool stdin_feed_full(const struct stdin_feed *f)
{
	return f->waiting > STDIN_WINDOW;
}
