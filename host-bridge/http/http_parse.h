/*
 * The request parser: llhttp (strict) with the limits and refusals that it lacks. Pure:
 * bytes in, one event out at a time; it owns no descriptor and calls nobody, so that a
 * fuzzer can drive it. A connection has one and uses it for one request after another.
 *
 *   MORE*  HEAD  (MORE | DATA)*  DONE  ── http_parse_next() ──► MORE* HEAD …
 *   BAD at any point, for ever: answer `status`, close.
 */
#ifndef SANDGATE_HTTP_PARSE_H
#define SANDGATE_HTTP_PARSE_H

#include <llhttp.h>
#include <stdint.h>

#include "host-bridge/http/http_buf.h"
#include "host-bridge/http/http_head.h"

enum http_event { HTTP_EV_MORE, HTTP_EV_HEAD, HTTP_EV_DATA, HTTP_EV_DONE, HTTP_EV_BAD };

enum http_stage { HTTP_IN_HEAD, HTTP_IN_BODY, HTTP_COMPLETE };

struct http_parse {
	llhttp_t ll;
	enum http_stage stage;
	enum http_event event;
	struct http_head head; /* after HEAD; the caller may take it (and zero it) */
	const char *data;      /* after DATA: a part of what was fed */
	size_t data_len;
	uint64_t body_len; /* body bytes so far */
	size_t head_len;   /* raw head bytes so far */
	size_t framing; /* chunk sizes, extensions and trailers, less what the body excuses */
	struct http_buf raw; /* target, names and values as they come */
	unsigned n_headers;
	char last;  /* last raw byte of the head: a fold may straddle two reads */
	int status; /* after BAD */
	const char *reason;
};

void http_parse_init(struct http_parse *p);
/* Parse up to the next event; `*used` bytes were consumed. Feeding nothing is allowed: an
 * event may be due without a further byte. MORE always consumes everything. */
enum http_event http_parse_feed(struct http_parse *p, const char *data, size_t len,
                                size_t *used);
/* After DONE: get ready for the next request. */
void http_parse_next(struct http_parse *p);
void http_parse_free(struct http_parse *p);

#endif
