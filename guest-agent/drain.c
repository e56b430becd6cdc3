#include "guest-agent/drain.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "proto/limits.h"
#include "proto/log.h"

struct drain {
	ev_io io;
};

static void on_readable(struct ev_loop *loop, ev_io *w, int revents)
{
	static uint8_t sink[CHUNK_MAX];
	struct drain *d = (struct drain *)w;
	(void)revents;

	ssize_t n = read(d->io.fd, sink, sizeof(sink));
	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return;
	ev_io_stop(loop, &d->io);
	close(d->io.fd);
	free(d);
}

void drain_adopt(struct ev_loop *loop, int fd)
{
	struct drain *d = malloc(sizeof(*d));
	if (d == NULL) {
		log_error("drain", NULL, "out of memory: a leftover loses its output pipe");
		close(fd);
		return;
	}
	ev_io_init(&d->io, on_readable, fd, EV_READ);
	ev_io_start(loop, &d->io);
}
