#include "host-bridge/link/link_buf.h"

#include <stdlib.h>
#include <string.h>

uint8_t *link_buf_room(struct link_buf *b, size_t n)
{
	if (b->cap - b->to < n) {
		uint8_t *grown = realloc(b->bytes, b->to + n);
		if (grown == NULL)
			return NULL;
		b->bytes = grown;
		b->cap = b->to + n;
	}
	return b->bytes + b->to;
}

void link_buf_compact(struct link_buf *b)
{
	if (b->from == b->to) {
		link_buf_free(b);
	} else if (b->from > 0) {
		memmove(b->bytes, b->bytes + b->from, b->to - b->from);
		b->to -= b->from;
		b->from = 0;
	}
}

void link_buf_free(struct link_buf *b)
{
	free(b->bytes);
	*b = (struct link_buf){0};
}
