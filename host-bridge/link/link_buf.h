/*
 * A byte queue of a link: filled at its end, emptied at its front. Bytes that were taken
 * stay in place until link_buf_compact, so that an Open that never went out as a whole can
 * be sent again from its start.
 */
#ifndef SANDGATE_LINK_BUF_H
#define SANDGATE_LINK_BUF_H

#include <stddef.h>
#include <stdint.h>

struct link_buf {
	uint8_t *bytes;
	size_t from, to, cap;
};

/* Room for `n` more bytes at the end, or NULL; link_buf_put says how many were written. */
uint8_t *link_buf_room(struct link_buf *b, size_t n);

static inline void link_buf_put(struct link_buf *b, size_t n)
{
	b->to += n;
}

static inline const uint8_t *link_buf_data(const struct link_buf *b)
{
	return b->bytes == NULL ? NULL : b->bytes + b->from;
}

static inline size_t link_buf_len(const struct link_buf *b)
{
	return b->to - b->from;
}

/* Drop `n` bytes at the front. */
static inline void link_buf_take(struct link_buf *b, size_t n)
{
	b->from += n;
}

/* Undo every take since link_buf_compact. */
static inline void link_buf_rewind(struct link_buf *b)
{
	b->from = 0;
}

static inline size_t link_buf_taken(const struct link_buf *b)
{
	return b->from;
}

/* Forget what was taken; an empty queue keeps no memory. */
void link_buf_compact(struct link_buf *b);
void link_buf_free(struct link_buf *b);

#endif
