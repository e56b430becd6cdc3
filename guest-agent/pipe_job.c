#include "guest-agent/pipe_job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- in a thread ---- */

static void run_read(struct pipe_job *j)
{
	uint8_t sink[16 * KIB];
	int held = 0;

	j->n = j->data != NULL ? read(j->fd, j->data, j->len) : read(j->fd, sink, sizeof(sink));
	j->errnum = errno;
	if (j->n <= 0 || j->data == NULL)
		return;
	if (ioctl(j->fd, FIONREAD, &held) == 0)
		j->held = (size_t)held;
	if (j->widen_to > 0)
		fcntl(j->fd, F_SETPIPE_SZ, (int)j->widen_to);
}

static void run(struct work *w, struct worker *me)
{
	struct pipe_job *j = (struct pipe_job *)w;
	(void)me;

	if (j->kind == PIPE_READ) {
		run_read(j);
	} else if (j->kind == PIPE_WRITE) {
		j->n = write(j->fd, j->data, j->len);
		j->errnum = errno;
	} else {
		close(j->fd);
	}
}

/* ---- in the loop ---- */

static void on_run(struct work *w)
{
	struct pipe_job *j = (struct pipe_job *)w;

	j->busy = false;
	j->on_done(j);
}

void pipe_job_init(struct pipe_job *j, struct workers *workers,
                   void (*on_done)(struct pipe_job *j))
{
	*j = (struct pipe_job){.workers = workers, .on_done = on_done, .fd = -1};
	j->work.run = run;
	j->work.on_done = on_run;
}

static void start(struct pipe_job *j, enum pipe_job_kind kind, int fd, uint8_t *data,
                  size_t len)
{
	j->kind = kind;
	j->fd = fd;
	j->data = data;
	j->len = len;
	j->held = 0;
	j->busy = true;
	workers_start(j->workers, &j->work);
}

void pipe_job_read(struct pipe_job *j, int fd, uint8_t *data, size_t len)
{
	start(j, PIPE_READ, fd, data, len);
}

void pipe_job_write(struct pipe_job *j, int fd, const uint8_t *data, size_t len)
{
	start(j, PIPE_WRITE, fd, (uint8_t *)(uintptr_t)data, len);
}

void pipe_job_close(struct pipe_job *j, int fd)
{
	start(j, PIPE_CLOSE, fd, NULL, 0);
}

static short look(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) > 0 ? p.revents : 0;
}

/* The end that reads sees POLLHUP, the one that writes POLLERR. */
bool pipe_is_ours(int fd)
{
	return (look(fd) & (POLLHUP | POLLERR)) != 0;
}

bool pipe_is_readable(int fd)
{
	return (look(fd) & (POLLIN | POLLHUP)) != 0;
}
