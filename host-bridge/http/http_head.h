/*
 * What a request head says, made from the raw strings that the parser gathered: target
 * decoded and split, headers joined, and every head refused that two readers could take
 * for two different requests (RFC 9112 sections 3.2, 6.1 and 11.2). Pure.
 */
#ifndef SANDGATE_HTTP_HEAD_H
#define SANDGATE_HTTP_HEAD_H

#include <llhttp.h>
#include <stdbool.h>
#include <stdint.h>

#include "host-bridge/http/http.h"
#include "host-bridge/http/http_buf.h"

/* `text` is one allocation of NUL-terminated strings: the decoded path, `n_query` pairs of
 * decoded key and value, `n_headers` pairs of lower-case name and value, each name once. */
struct http_head {
	char *text;
	unsigned query_at, headers_at; /* offsets into text */
	unsigned n_query, n_headers;
	enum http_method method;
	const char *method_name;
	uint64_t content_length;
	bool chunked;
	bool keep_alive;
	bool version_1_0;
	bool expects_continue;
};

/* Fill in `h` from the parser's state and `raw`: the target, then `n_headers` pairs of
 * name and value, each ended by NUL. 0, or the status of the refusal with `*reason`. */
int http_head_build(struct http_head *h, const llhttp_t *ll, const struct http_buf *raw,
                    unsigned n_headers, const char **reason);
const char *http_head_query(const struct http_head *h, const char *key);
const char *http_head_header(const struct http_head *h, const char *name);
/* The n-th query key, or NULL past the last. */
const char *http_head_query_key(const struct http_head *h, size_t n);
void http_head_free(struct http_head *h);

#endif
