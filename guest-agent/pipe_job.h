/*
 * What is done to a pipe that processes of the guest share. The kernel holds a pipe's lock
 * while one of them splices from a silent socket, or prints from a page that does not come: for
 * as long as they like, and whoever else wants the pipe, if only to close it, sleeps beyond the
 * reach of any signal. So it is done in a worker's thread, and its end is told in the loop.
 * poll(2) takes no lock, and a pipe whose other end nobody has is the agent's alone.
 */
#ifndef SANDGATE_PIPE_JOB_H
#define SANDGATE_PIPE_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest-agent/workers.h"

enum pipe_job_kind { PIPE_READ, PIPE_WRITE, PIPE_CLOSE };

/* Embedded in its owner, which lives until on_done. */
struct pipe_job {
	struct work work;
	struct workers *workers;
	void (*on_done)(struct pipe_job *j); /* in the loop; it may free `j` */
	enum pipe_job_kind kind;
	int fd; /* non-blocking */
	uint8_t *data;
	size_t len;
	size_t widen_to; /* READ: the pipe's capacity afterwards; 0: as it is */
	bool busy;

	ssize_t n; /* as read(2) or write(2) */
	int errnum;
	size_t held; /* READ: what is in the pipe afterwards */
};

void pipe_job_init(struct pipe_job *j, struct workers *workers,
                   void (*on_done)(struct pipe_job *j));
/* Once: up to `len` bytes to `data`, which NULL stands in for where they are not wanted. */
void pipe_job_read(struct pipe_job *j, int fd, uint8_t *data, size_t len);
/* Once; `data` stays where it is until on_done. */
void pipe_job_write(struct pipe_job *j, int fd, const uint8_t *data, size_t len);
void pipe_job_close(struct pipe_job *j, int fd);

/* Whether nobody has the other end (any more). */
bool pipe_is_ours(int fd);
bool pipe_is_readable(int fd);

#endif
