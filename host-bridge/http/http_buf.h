/*
 * A growable byte buffer, for the parts of the HTTP server: read-ahead, collected bodies,
 * header text. Zero-initialised is empty and holds no memory. It never frees what it was
 * told to append.
 */
#ifndef SANDGATE_HTTP_BUF_H
#define SANDGATE_HTTP_BUF_H

#include <stddef.h>

struct http_buf {
	char *data;
	size_t len;
	size_t cap;
};

/* Append; capacity doubles. -1 when memory is out: the buffer is unchanged. */
int http_buf_add(struct http_buf *b, const void *data, size_t len);
int http_buf_addc(struct http_buf *b, char c);
/* Remove `n` bytes from the front; an emptied buffer gives its memory back. */
void http_buf_drop(struct http_buf *b, size_t n);
void http_buf_free(struct http_buf *b);

#endif
