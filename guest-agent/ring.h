/*
 * The retained output of one exec: what was read from its pipes, in the order it was read.
 * exec.c fills it, sessions read it through cursors of their own and send straight from it.
 * It never waits, and knows nothing of processes or sessions.
 *
 * One sequence counts the raw bytes of both streams. A stream is a queue of 64 KiB blocks,
 * a block holds runs (bytes of consecutive sequence numbers behind a small header), and a
 * cursor merges the two streams back into one. Each stream gives up its own oldest bytes
 * beyond the cap; headers count, so that streams that alternate byte by byte stay bounded.
 * A piece that was handed out is valid until the ring is next put to, pinned or shed.
 */
#ifndef SANDGATE_RING_H
#define SANDGATE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_STREAMS 2 /* indexed by SANDGATE__STREAM__STREAM_STDOUT and _STDERR */

struct ring;

/* Memory of all rings together; its holder sheds when `used` is over `limit` (bytes). */
struct ring_budget {
	uint64_t limit, used;
};

/* A reader's place: set `seq` and zero the rest to start. */
struct ring_cursor {
	uint64_t seq; /* next byte wanted */
	struct {
		uint64_t block; /* a hint, checked at every use */
		uint32_t at;
	} hint[RING_STREAMS];
};

struct ring_piece {
	uint64_t seq; /* of the first byte */
	uint64_t len;
	unsigned stream;
	const uint8_t *data; /* NULL: a gap, the bytes are gone */
	bool both;           /* a gap whose bytes belong to both streams, shares unknown */
};

/* `cap` is the bytes that a stream retains. NULL: out of memory. */
struct ring *ring_create(uint64_t cap, struct ring_budget *budget);
void ring_destroy(struct ring *r);

/* Append what was read. -1: out of memory, some of it is lost. */
int ring_put(struct ring *r, unsigned stream, const uint8_t *data, size_t n);

/* The next piece at the cursor, which moves past it. False: the cursor is at the end. */
bool ring_next(const struct ring *r, struct ring_cursor *cur, struct ring_piece *out);

/* Bytes from `seq` on are not given up by the cap or by ring_shed(). UINT64_MAX: all may. */
void ring_pin(struct ring *r, uint64_t seq);

/* Give up the oldest block; false when there is none that may go. */
bool ring_shed(struct ring *r);
/* Give up everything, pinned or not. */
void ring_drop(struct ring *r);

uint64_t ring_first(const struct ring *r); /* oldest retained byte; ring_end() if none */
uint64_t ring_end(const struct ring *r);   /* sequence of the next byte */
uint64_t ring_total(const struct ring *r, unsigned stream); /* bytes ever read */
uint64_t ring_memory(const struct ring *r);                 /* bytes of memory in use */

#endif
