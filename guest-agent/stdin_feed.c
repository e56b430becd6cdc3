#include "guest-agent/stdin_feed.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <unistd.h>

#include "proto/limits.h"

struct piece {
	STAILQ_ENTRY(piece) next;
	uint8_t *data;
	size_t len, sent;
};

struct stdin_feed {
	struct ev_loop *loop;
	ev_io io; /* fd -1 once the pipe is closed */
	STAILQ_HEAD(, piece) queue;
	uint64_t taken;
	size_t waiting;
	bool closed;
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

static void shut(struct stdin_feed *f)
{
	while (!STAILQ_EMPTY(&f->queue))
		drop_piece(f);
	f->closed = true;
	if (f->io.fd < 0)
		return;
	ev_io_stop(f->loop, &f->io);
	close(f->io.fd);
	ev_io_set(&f->io, -1, EV_WRITE);
}

/* One write at most, so that a fast reader does not hold the loop. */
static void write_some(struct stdin_feed *f)
{
	struct piece *p = STAILQ_FIRST(&f->queue);
	if (p != NULL) {
		ssize_t n = write(f->io.fd, p->data + p->sent, p->len - p->sent);
		if (n < 0 && errno != EAGAIN && errno != EINTR) {
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
	if (!STAILQ_EMPTY(&f->queue))
		ev_io_start(f->loop, &f->io);
	else if (f->closed)
		shut(f);
	else
		ev_io_stop(f->loop, &f->io);
}

static void on_writable(struct ev_loop *loop, ev_io *w, int revents)
{
	struct stdin_feed *f = w->data;
	bool was_full = stdin_feed_full(f);
	(void)loop;
	(void)revents;

	write_some(f);
	if (was_full && !stdin_feed_full(f))
		f->on_room(f->arg);
}

struct stdin_feed *stdin_feed_create(struct ev_loop *loop, int fd, void (*on_room)(void *arg),
                                     void *arg)
{
	struct stdin_feed *f = calloc(1, sizeof(*f));
	if (f == NULL)
		return NULL;
	f->loop = loop;
	f->on_room = on_room;
	f->arg = arg;
	f->closed = fd < 0;
	STAILQ_INIT(&f->queue);
	ev_io_init(&f->io, on_writable, fd, EV_WRITE);
	f->io.data = f;
	return f;
}

void stdin_feed_destroy(struct stdin_feed *f)
{
	if (f == NULL)
		return;
	shut(f);
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
