#include "host-bridge/http/http_out.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Bytes of a shared segment, and segments in one send. */
#define SEGMENT_CAP 4000
#define SEGMENTS_A_SEND 32

struct http_segment {
	struct http_segment *next;
	char *data; /* `room`, or malloc'd and taken over */
	size_t off, len, cap;
	char room[];
};

static struct http_segment *append(struct http_out *o, size_t cap)
{
	struct http_segment *s = malloc(sizeof *s + cap);

	if (!s)
		return NULL;
	*s = (struct http_segment){.data = s->room, .cap = cap};
	if (o->last)
		o->last->next = s;
	else
		o->first = s;
	o->last = s;
	return s;
}

int http_out_add(struct http_out *o, const void *data, size_t len)
{
	struct http_segment *s = o->last;

	if (o->closed)
		return -1;
	if (len == 0)
		return 0;
	if (!s || s->cap - s->len < len) {
		s = append(o, len > SEGMENT_CAP ? len : SEGMENT_CAP);
		if (!s)
			return -1;
	}
	memcpy(s->data + s->len, data, len);
	s->len += len;
	o->len += len;
	return 0;
}

int http_out_take(struct http_out *o, void *data, size_t len)
{
	struct http_segment *s = len > 0 && !o->closed ? append(o, 0) : NULL;

	if (!s) {
		free(data);
		return len > 0 || o->closed ? -1 : 0;
	}
	s->data = data;
	s->len = s->cap = len;
	o->len += len;
	return 0;
}

static void drop_first(struct http_out *o)
{
	struct http_segment *s = o->first;

	o->first = s->next;
	if (!o->first)
		o->last = NULL;
	if (s->data != s->room)
		free(s->data);
	free(s);
}

ssize_t http_out_send(struct http_out *o, int fd)
{
	struct iovec iov[SEGMENTS_A_SEND];
	struct msghdr msg = {.msg_iov = iov};
	struct http_segment *s;
	size_t left;
	ssize_t n;

	for (s = o->first; s && msg.msg_iovlen < SEGMENTS_A_SEND; s = s->next)
		iov[msg.msg_iovlen++] = (struct iovec){s->data + s->off, s->len - s->off};
	n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0)
		return -1;
	o->len -= (size_t)n;
	for (left = (size_t)n; left > 0;) {
		size_t have = o->first->len - o->first->off;

		if (left < have) {
			o->first->off += left;
			break;
		}
		left -= have;
		drop_first(o);
	}
	return n;
}

void http_out_free(struct http_out *o)
{
	while (o->first)
		drop_first(o);
	o->len = 0;
}
