/*
 * The HTTP/1.1 server: connections, llhttp, limits, keep-alive and pipelining, chunked
 * both ways, back-pressure, hang-up watch, lingering close. It knows nothing of
 * sandboxes, routes or tokens: the owner gives it one callback and answers exchanges.
 *
 * One exchange is one request and its response. Pipelined requests are parsed one at a
 * time: the next exchange starts when the previous response has been written.
 *
 *   head parsed ── on_request ──► http_collect / http_stream ──► body ──► reply
 *        └── http_reply at once (the body is then discarded, the connection closed)
 *
 * Lifetime: an exchange lives from on_request until http_reply/http_end/http_abort was
 * called or on_gone has returned, whichever comes first. After either it must not be
 * touched. Malformed requests never reach on_request; they are answered here (400, 408,
 * 413, 417, 431) through `on_refused`, so that the body is the API's error envelope. A body
 * that turns out malformed, too large or too slow is answered so too; on_gone then follows.
 *
 * No function here calls back: handlers run from the event loop only.
 */
#ifndef SANDGATE_HTTP_H
#define SANDGATE_HTTP_H

#include <ev.h>
#include <stdbool.h>
#include <stddef.h>

#include "proto/err.h"

struct http_server;
struct http_exchange;

enum http_method {
	HTTP_M_GET,
	HTTP_M_POST,
	HTTP_M_PUT,
	HTTP_M_PATCH,
	HTTP_M_DELETE,
	HTTP_M_HEAD,
	HTTP_M_OPTIONS,
	HTTP_M_OTHER
};

struct http_handlers {
	/* The head of a request is complete. Must call http_collect, http_stream,
	 * http_no_body or http_reply before it returns. */
	void (*on_request)(struct http_exchange *x, void *arg);
	/* A request was refused by the parser or a limit: write its error body (JSON) into
	 * buf and return its length. `x` is NULL: there is no exchange. */
	size_t (*on_refused)(int status, const char *reason, char *buf, size_t room, void *arg);
	void *arg;
};

/* ---- server ---- */

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

/* ---- request ---- */

enum http_method http_method(const struct http_exchange *x);
const char *http_method_name(const struct http_exchange *x);
/* Path, percent-decoded once, without the query; never contains a NUL. */
const char *http_path(const struct http_exchange *x);
/* The decoded value of the query parameter `key`, or NULL; "" when it has no value.
 * A malformed escape or a NUL in the query was refused before on_request. */
const char *http_query(const struct http_exchange *x, const char *key);
/* The n-th query key, or NULL past the last: for refusing unknown ones. */
const char *http_query_key(const struct http_exchange *x, size_t n);
/* A header by lower-case name, or NULL. A name given twice is joined with ", ". */
const char *http_header(const struct http_exchange *x, const char *name);
/* "127.0.0.1:5555" or "unix". */
const char *http_peer(const struct http_exchange *x);
/* Whether the request has (or may have) a body: Content-Length > 0 or chunked. */
bool http_has_body(const struct http_exchange *x);

/* ---- body: one of these, once, inside on_request ---- */

/* No body is wanted: a small one is read past, a larger one is answered 413. */
void http_no_body(struct http_exchange *x);
/* Gather the body, then call on_body; over `max` bytes the request is answered 413. The
 * bytes are NUL-terminated past `len` and live until the exchange ends. */
void http_collect(struct http_exchange *x, size_t max,
                  void (*on_body)(struct http_exchange *x, char *data, size_t len, void *owner),
                  void *owner);
/* Hand the body over as it arrives. on_data is never called while paused; on_end comes
 * once, after the last byte. Such a body may be as slow as it likes, but a pause of more
 * than HTTP_PAUSE_MAX_S ends it (408, on_gone): a paused peer's FIN may be out of sight. */
void http_stream(struct http_exchange *x,
                 void (*on_data)(struct http_exchange *x, const char *data, size_t len,
                                 void *owner),
                 void (*on_end)(struct http_exchange *x, void *owner), void *owner);
void http_stream_pause(struct http_exchange *x);
void http_stream_resume(struct http_exchange *x);

/* ---- response ---- */

/* Who hears of the client's going and of room in the output. `on_gone` comes at most
 * once: FIN, reset, or a stalled peer, pending or streaming, idle or not; it is the last
 * call for this exchange. `on_room` comes when the unsent output fell under the low
 * watermark after http_write had returned false. Either may be NULL. */
void http_watch(struct http_exchange *x, void (*on_gone)(struct http_exchange *x, void *owner),
                void (*on_room)(struct http_exchange *x, void *owner), void *owner);

/* Add a response header, before http_reply or http_begin. Copied. Values with CR, LF or NUL
 * are refused by assertion: they would be our bug. */
void http_set_header(struct http_exchange *x, const char *name, const char *value);
/* A whole response; the bytes are copied. `type` NULL for no body (204). */
void http_reply(struct http_exchange *x, int status, const char *type, const void *body,
                size_t len);
/* The same, taking over `body` (malloc'd) to spare the copy. */
void http_reply_take(struct http_exchange *x, int status, const char *type, void *body,
                     size_t len);
/* Start a streamed response (chunked for 1.1, until close for 1.0). */
void http_begin(struct http_exchange *x, int status, const char *type);
bool http_begun(const struct http_exchange *x);
/* Queue bytes; sends are coalesced to one a loop turn. False: over the high watermark,
 * stop until on_room (what was given is queued all the same). */
bool http_write(struct http_exchange *x, const void *data, size_t len);
/* Unsent response bytes of this exchange. */
size_t http_unsent(const struct http_exchange *x);
/* The response is complete. */
void http_end(struct http_exchange *x);
/* Break the connection off without a proper end (the reader sees a truncated body). */
void http_abort(struct http_exchange *x);

#endif
