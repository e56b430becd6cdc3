/*
 * Frames that wait to be sent on one session, as bytes: answers, and the rest of a frame
 * that the socket took only in part. Output does not pass through here; it is sent from
 * where the ring holds it.
 */
#ifndef SANDGATE_OUTQ_H
#define SANDGATE_OUTQ_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

struct outq {
	uint8_t *data;
	size_t start, end, room;
};

/* Append; -1: out of memory. */
int outq_put_message(struct outq *q, const ProtobufCMessage *m);
int outq_put_bytes(struct outq *q, const void *data, size_t len);
/* The first `n` bytes were sent. An empty queue holds no memory. */
void outq_drop(struct outq *q, size_t n);
void outq_free(struct outq *q);

static inline const uint8_t *outq_data(const struct outq *q)
{
	return q->data + q->start;
}

static inline size_t outq_len(const struct outq *q)
{
	return q->end - q->start;
}

#endif
