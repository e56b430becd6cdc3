#include "guest-agent/outq.h"

#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

static uint8_t *make_room(struct outq *q, size_t len)
{
	if (q->room - q->end >= len && q->data != NULL)
		return q->data + q->end;
	size_t held = outq_len(q), room = 512;
	while (room < held + len)
		room *= 2;
	uint8_t *data = malloc(room);
	if (data == NULL)
		return NULL;
	if (held > 0)
		memcpy(data, outq_data(q), held);
	free(q->data);
	*q = (struct outq){.data = data, .end = held, .room = room};
	return data + held;
}

int outq_put_message(struct outq *q, const ProtobufCMessage *m)
{
	size_t len = frame_size(m);
	uint8_t *at = make_room(q, len);
	if (at == NULL)
		return -1;
	frame_write(m, at);
	q->end += len;
	return 0;
}

int outq_put_bytes(struct outq *q, const void *data, size_t len)
{
	uint8_t *at = make_room(q, len);
	if (at == NULL)
		return -1;
	memcpy(at, data, len);
	q->end += len;
	return 0;
}

void outq_drop(struct outq *q, size_t n)
{
	q->start += n;
	if (q->start == q->end)
		outq_free(q);
}

void outq_free(struct outq *q)
{
	free(q->data);
	*q = (struct outq){0};
}
