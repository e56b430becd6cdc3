#include "guest-agent/drain.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "guest-agent/pipe_job.h"
#include "proto/log.h"

struct drain {
	struct pipe_job job;
	struct ev_loop *loop;
	ev_io io;
};

static void on_read(struct pipe_job *j)
{
	struct drain *d = (struct drain *)j;

	if (j->n > 0 || (j->n < 0 && (j->errnum == EAGAIN || j->errnum == EINTR))) {
		ev_io_start(d->loop, &d->io);
		return;
	}
	close(d->io.fd);
	free(d);
}

static void on_readable(struct ev_loop *loop, ev_io *w, int revents)
{
	struct drain *d = w->data;
	(void)revents;

	ev_io_stop(loop, w);
	if (pipe_is_ours(w->fd)) {
		close(w->fd);
		free(d);
		return;
	}
	pipe_job_read(&d->job, w->fd, NULL, 0);
}

void drain_adopt(struct ev_loop *loop, struct workers *workers, int fd)
{
	struct drain *d = malloc(sizeof(*d));
	if (d == NULL) {
		log_error("drain", NULL, "out of memory: a leftover loses its output pipe");
		close(fd);
		return;
	}
	pipe_job_init(&d->job, workers, on_read);
	d->loop = loop;
	ev_io_init(&d->io, on_readable, fd, EV_READ);
	d->io.data = d;
	ev_io_start(loop, &d->io);
}
