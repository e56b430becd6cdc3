/*
 * The first bytes of an output stream, kept until a buffered reply has told them. All buffers
 * of a bridge together hold BUFFERED_MAX. Past that, as past its own limit, a buffer counts
 * what comes and drops it, and the result says so. It does not wait for room instead: that
 * would let one call's client stop another's command, whose end lies behind its output.
 */
#ifndef SANDGATE_CALL_BUFFER_H
#define SANDGATE_CALL_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct call_buffer {
	size_t *held; /* the bridge's count of bytes in all buffers */
	char *data;
	size_t len, room;
	uint64_t seen; /* bytes that came, kept or not */
	bool cut;      /* there is a hole: what follows is not kept */
};

void call_buffer_init(struct call_buffer *b, size_t *held);
/* Keep what fits into `limit` bytes and the common bound. */
void call_buffer_add(struct call_buffer *b, const void *data, size_t len, size_t limit);
/* `to` is what `b` was; `b` is empty. */
void call_buffer_move(struct call_buffer *to, struct call_buffer *b);
/* Drop the bytes. It stays usable. */
void call_buffer_clear(struct call_buffer *b);

#endif
