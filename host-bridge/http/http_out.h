/*
 * The output queue of a connection: a list of segments, sent with one gathered write.
 * Small writes share a segment, so that a turn's worth of SSE events costs one send. A
 * drained queue holds no memory.
 */
#ifndef SANDGATE_HTTP_OUT_H
#define SANDGATE_HTTP_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct http_segment;

struct http_out {
	struct http_segment *first, *last;
	size_t len;  /* unsent bytes */
	bool closed; /* it takes no more: something is missing in front of that */
};

/* Queue a copy. -1 when memory is out, or it is closed: the queue is unchanged. */
int http_out_add(struct http_out *o, const void *data, size_t len);
/* Queue malloc'd bytes, taking them over (also on failure, when they are freed). */
int http_out_take(struct http_out *o, void *data, size_t len);
/* One non-blocking send of what is queued: bytes sent, or -1 with errno. */
ssize_t http_out_send(struct http_out *o, int fd);
void http_out_free(struct http_out *o);

#endif
