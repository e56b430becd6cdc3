/*
 * The HTTP/1.1 server: connections, llhttp, limits, keep-alive and pipelining, chunked
 * both ways, back-pressure, hang-up watch, lingering close. It knows nothing of
 * sandboxes, routes or tokens: the owner gives it one callback and answers exchanges.
 *
 * Pipelined requests are parsed one at a time: the next exchange starts when the previous
 * response has been written. Malformed requests never reach on_request; they are answered
 * here (400, 408, 413, 417, 431) through `on_refused`, so that the body is the API's error
 * envelope. A body that turns out malformed, too large or too slow is answered so too;
 * on_gone then follows.
 */
#ifndef SANDGATE_HTTP_SERVER_H
#define SANDGATE_HTTP_SERVER_H

#include <ev.h>
#include <stddef.h>

#include "proto/err.h"

struct http_server;
struct http_exchange;

/* The answer to a request that the parser or a limit refused; headers, body and len are for
 * the owner to fill in. */
struct http_refusal {
	int status;
	const char *reason;
	void *owner;       /* http_watch's; NULL when there is no exchange */
	char headers[256]; /* whole lines, each ended by CRLF */
	char body[1024];   /* JSON */
	size_t len;        /* 0: it could not be made, and nothing is answered */
};

struct http_handlers {
	/* The head of a request is complete. Must call http_collect, http_stream,
	 * http_no_body or http_reply before it returns. */
	void (*on_request)(struct http_exchange *x, void *arg);
	void (*on_refused)(struct http_refusal *f, void *arg);
	void *arg;
};

/* Serve on the listening descriptor `fd` (TCP or Unix; taken over, made non-blocking). A
 * server may have several. NULL with err set when memory or epoll fails. */
struct http_server *http_server_create(struct ev_loop *loop, const struct http_handlers *h,
                                       struct err *e);
int http_server_listen(struct http_server *s, int fd, struct err *e);
/* Stop accepting; keep-alive connections are closed after their current response. */
void http_server_drain(struct http_server *s);
/* Close everything at once; every open exchange gets on_gone. */
void http_server_destroy(struct http_server *s);
/* Open connections, exchanges in progress. */
size_t http_server_connections(const struct http_server *s);
size_t http_server_exchanges(const struct http_server *s);

#endif
