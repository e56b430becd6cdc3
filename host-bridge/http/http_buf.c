#include "host-bridge/http/http_buf.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAP 256

static int reserve(struct http_buf *b, size_t more)
{
	size_t cap = b->cap ? b->cap : FIRST_CAP;
	char *data;

	if (more <= b->cap - b->len)
		return 0;
	while (cap - b->len < more)
		cap *= 2;
	data = realloc(b->data, cap);
	if (!data)
		return -1;
	b->data = data;
	b->cap = cap;
	return 0;
}

int http_buf_add(struct http_buf *b, const void *data, size_t len)
{
	if (len == 0)
		return 0;
	if (reserve(b, len) < 0)
		return -1;
	memcpy(b->data + b->len, data, len);
	b->len += len;
	return 0;
}

int http_buf_addc(struct http_buf *b, char c)
{
	return http_buf_add(b, &c, 1);
}

void http_buf_drop(struct http_buf *b, size_t n)
{
	if (n == 0)
		return;
	b->len -= n;
	if (b->len == 0)
		http_buf_free(b);
	else
		memmove(b->data, b->data + n, b->len);
}

void http_buf_free(struct http_buf *b)
{
	free(b->data);
	*b = (struct http_buf){0};
}
