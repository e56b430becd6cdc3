/*
 * One exchange is one request and its response: here what was asked, and the body. The
 * response is in http_respond.h, the server in http_server.h.
 *
 *   head parsed ── on_request ──► http_collect / http_stream ──► body ──► reply
 *        └── http_reply at once (the body is then discarded, the connection closed)
 *
 * Lifetime: an exchange lives from on_request until http_reply/http_end/http_abort was
 * called or on_gone has returned, whichever comes first. After either it must not be
 * touched. No function here calls back: handlers run from the event loop only.
 */
#ifndef SANDGATE_HTTP_H
#define SANDGATE_HTTP_H

#include <stdbool.h>
#include <stddef.h>

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

#endif
