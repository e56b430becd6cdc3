/*
 * The response of an exchange: whole, or streamed with back-pressure; and word of a client
 * that goes. Functions here only queue: bytes leave at the end of the loop's turn.
 */
#ifndef SANDGATE_HTTP_RESPOND_H
#define SANDGATE_HTTP_RESPOND_H

#include <stdbool.h>
#include <stddef.h>

struct http_exchange;

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
/* What comes next could not be made: the response ends here, and on_gone follows as if the
 * client had left; what is written until then is dropped. */
void http_break(struct http_exchange *x);
/* The response is complete. */
void http_end(struct http_exchange *x);
/* Break the connection off without a proper end (the reader sees a truncated body). */
void http_abort(struct http_exchange *x);

#endif
