#include "host-bridge/api/call_buffer.h"

#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"

#define ROOM_MIN 4096

void call_buffer_init(struct call_buffer *b, size_t *held)
{
	*b = (struct call_buffer){.held = held};
}

static int reserve(struct call_buffer *b, size_t need, size_t limit)
{
	size_t room = b->room > 0 ? b->room : ROOM_MIN;
	if (need <= b->room)
		return 0;
	while (room < need)
		room *= 2;
	if (room > limit)
		room = limit;
	char *grown = realloc(b->data, room);
	if (grown == NULL)
		return -1;
	b->data = grown;
	b->room = room;
	return 0;
}

/* How many bytes more it may hold. A little of each stream always: what most commands print
 * in all. */
static size_t may_hold(const struct call_buffer *b)
{
	size_t own = b->len < BUFFERED_STREAM_MIN ? BUFFERED_STREAM_MIN - b->len : 0;
	size_t common = *b->held < BUFFERED_MAX ? BUFFERED_MAX - *b->held : 0;
	return own > common ? own : common;
}

void call_buffer_add(struct call_buffer *b, const void *data, size_t len, size_t limit)
{
	size_t n = limit - b->len < len ? limit - b->len : len, most = may_hold(b);
	b->seen += len;
	if (b->cut || n == 0)
		return;
	if (n > most) {
		b->cut = true;
		n = most;
	}
	if (reserve(b, b->len + n, limit) < 0) { /* as good as over the limit */
		b->cut = true;
		return;
	}
	memcpy(b->data + b->len, data, n);
	b->len += n;
	*b->held += n;
}

void call_buffer_move(struct call_buffer *to, struct call_buffer *b)
{
	*to = *b;
	call_buffer_init(b, to->held);
}

void call_buffer_clear(struct call_buffer *b)
{
	if (b->data == NULL)
		return;
	*b->held -= b->len;
	free(b->data);
	call_buffer_init(b, b->held);
}
