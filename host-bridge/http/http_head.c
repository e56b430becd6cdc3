#include "host-bridge/http/http_head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/limits.h"

struct pair {
	const char *name, *value;
};

static int refuse(const char **reason, int status, const char *text)
{
	*reason = text;
	return status;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Append `len` bytes percent-decoded, and a NUL. -1 on a bad escape or an escaped NUL; -2
 * when memory is out. */
static int add_decoded(struct http_buf *out, const char *s, size_t len, bool plus_is_space)
{
	for (size_t i = 0; i < len; i++) {
		char c = s[i];

		if (c == '%') {
			int high = i + 2 < len ? hex(s[i + 1]) : -1;
			int low = i + 2 < len ? hex(s[i + 2]) : -1;

			if (high < 0 || low < 0 || (high | low) == 0)
				return -1;
			c = (char)(high << 4 | low);
			i += 2;
		} else if (c == '+' && plus_is_space) {
			c = ' ';
		}
		if (http_buf_addc(out, c) < 0)
			return -2;
	}
	return http_buf_addc(out, '\0') < 0 ? -2 : 0;
}

static int add_query(struct http_head *h, struct http_buf *out, const char *query)
{
	while (*query) {
		size_t len = strcspn(query, "&");
		const char *eq = memchr(query, '=', len);
		size_t key = eq ? (size_t)(eq - query) : len;
		size_t value_at = eq ? key + 1 : len;
		int rc;

		if (len > 0) {
			rc = add_decoded(out, query, key, true);
			if (rc == 0)
				rc = add_decoded(out, query + value_at, len - value_at, true);
			if (rc < 0)
				return rc;
			h->n_query++;
		}
		query += len + (query[len] == '&');
	}
	return 0;
}

/* The path and query of a target in origin or absolute form, or "*". NULL: neither. */
static const char *origin_form(const char *target, bool is_options)
{
	static const char *const schemes[] = {"http://", "https://"};

	if (strchr(target, '#'))
		return NULL;
	if (target[0] == '/' || (is_options && strcmp(target, "*") == 0))
		return target;
	for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
		size_t len = strlen(schemes[i]);

		if (strncasecmp(target, schemes[i], len) == 0) {
			target += len;
			if (*target == '/' || *target == '?' || *target == '\0')
				return NULL;
			target += strcspn(target, "/?");
			return *target ? target : "/";
		}
	}
	return NULL;
}

static int add_target(struct http_head *h, struct http_buf *out, const char *target,
                      const char **reason)
{
	const char *origin = origin_form(target, h->method == HTTP_M_OPTIONS);
	size_t path;
	int rc;

	if (!origin)
		return refuse(reason, 400, "malformed request target");
	path = strcspn(origin, "?");
	/* "http://host?query" has an empty path, which stands for "/". */
	rc = path > 0 ? add_decoded(out, origin, path, false) : add_decoded(out, "/", 1, false);
	h->query_at = (unsigned)out->len;
	if (rc == 0 && origin[path] == '?')
		rc = add_query(h, out, origin + path + 1);
	if (rc == -1)
		return refuse(reason, 400, "malformed escape in the request target");
	return rc < 0 ? refuse(reason, 503, "out of memory") : 0;
}

/* Append each name once, the values of equal names joined with ", ". Marks the pairs that
 * it has used up by a NULL name. */
static int add_headers(struct http_head *h, struct http_buf *out, struct pair *pairs,
                       unsigned n)
{
	h->headers_at = (unsigned)out->len;
	for (unsigned i = 0; i < n; i++) {
		if (!pairs[i].name)
			continue;
		if (http_buf_add(out, pairs[i].name, strlen(pairs[i].name) + 1) < 0 ||
		    http_buf_add(out, pairs[i].value, strlen(pairs[i].value)) < 0)
			return -1;
		for (unsigned j = i + 1; j < n; j++) {
			if (!pairs[j].name || strcmp(pairs[i].name, pairs[j].name) != 0)
				continue;
			if (http_buf_add(out, ", ", 2) < 0 ||
			    http_buf_add(out, pairs[j].value, strlen(pairs[j].value)) < 0)
				return -1;
			pairs[j].name = NULL;
		}
		if (http_buf_addc(out, '\0') < 0)
			return -1;
		h->n_headers++;
	}
	return 0;
}

static unsigned count(const struct pair *pairs, unsigned n, const char *name)
{
	unsigned found = 0;

	for (unsigned i = 0; i < n; i++)
		found += strcmp(pairs[i].name, name) == 0;
	return found;
}

static enum http_method method_of(uint8_t llhttp_method)
{
	switch (llhttp_method) {
	case HTTP_GET:
		return HTTP_M_GET;
	case HTTP_POST:
		return HTTP_M_POST;
	case HTTP_PUT:
		return HTTP_M_PUT;
	case HTTP_PATCH:
		return HTTP_M_PATCH;
	case HTTP_DELETE:
		return HTTP_M_DELETE;
	case HTTP_HEAD:
		return HTTP_M_HEAD;
	case HTTP_OPTIONS:
		return HTTP_M_OPTIONS;
	default:
		return HTTP_M_OTHER;
	}
}

/* The rules on names that must or must not be there. */
static int check_names(const llhttp_t *ll, const struct pair *pairs, unsigned n,
                       const char **reason)
{
	unsigned hosts = count(pairs, n, "host");
	unsigned codings = count(pairs, n, "transfer-encoding");

	if (count(pairs, n, "") > 0) /* llhttp lets an empty name pass */
		return refuse(reason, 400, "header without a name");
	if (ll->http_major != 1)
		return refuse(reason, 400, "unsupported HTTP version");
	if (ll->method == HTTP_CONNECT)
		return refuse(reason, 400, "CONNECT is not supported");
	if (hosts > 1 || (hosts == 0 && ll->http_minor > 0))
		return refuse(reason, 400, "exactly one Host header is needed");
	if (codings > 1 || (codings == 1 && ll->http_minor == 0))
		return refuse(reason, 400, "unsupported Transfer-Encoding");
	if (codings == 1 && count(pairs, n, "content-length") > 0)
		return refuse(reason, 400, "Content-Length with Transfer-Encoding");
	return 0;
}

/* The rules on values, and what they set. */
static int check_values(struct http_head *h, const char **reason)
{
	const char *coding = http_head_header(h, "transfer-encoding");
	const char *expect = http_head_header(h, "expect");
	const char *length = http_head_header(h, "content-length");

	h->chunked = coding != NULL;
	if (coding && strcasecmp(coding, "chunked") != 0)
		return refuse(reason, 400, "unsupported Transfer-Encoding");
	if (length && !*length) /* llhttp takes it for 0 */
		return refuse(reason, 400, "empty Content-Length");
	if (expect && !h->version_1_0) {
		if (strcasecmp(expect, "100-continue") != 0)
			return refuse(reason, 417, "unsupported Expect");
		h->expects_continue = h->chunked || h->content_length > 0;
	}
	return 0;
}

int http_head_build(struct http_head *h, const llhttp_t *ll, const struct http_buf *raw,
                    unsigned n_headers, const char **reason)
{
	struct pair pairs[HTTP_HEADERS_MAX];
	struct http_buf out = {0};
	const char *s = raw->data;
	int rc;

	*h = (struct http_head){
	    .method = method_of(ll->method),
	    .method_name = llhttp_method_name(ll->method),
	    .keep_alive = llhttp_should_keep_alive(ll),
	    .version_1_0 = ll->http_minor == 0,
	    .content_length = ll->flags & F_CONTENT_LENGTH ? ll->content_length : 0,
	};
	for (unsigned i = 0; i < n_headers; i++) {
		pairs[i].name = s = s + strlen(s) + 1;
		pairs[i].value = s = s + strlen(s) + 1;
	}
	rc = check_names(ll, pairs, n_headers, reason);
	if (rc == 0)
		rc = add_target(h, &out, raw->data, reason);
	if (rc == 0 && add_headers(h, &out, pairs, n_headers) < 0)
		rc = refuse(reason, 503, "out of memory");
	h->text = out.data;
	if (rc == 0)
		rc = check_values(h, reason);
	if (rc != 0)
		http_head_free(h);
	return rc;
}

/* The value of the pair called `key` among the `n` pairs from offset `at`. */
static const char *find(const struct http_head *h, unsigned at, unsigned n, const char *key)
{
	const char *s = h->text + at;

	for (unsigned i = 0; i < n; i++) {
		const char *value = s + strlen(s) + 1;

		if (strcmp(s, key) == 0)
			return value;
		s = value + strlen(value) + 1;
	}
	return NULL;
}

const char *http_head_query(const struct http_head *h, const char *key)
{
	return find(h, h->query_at, h->n_query, key);
}

const char *http_head_header(const struct http_head *h, const char *name)
{
	return find(h, h->headers_at, h->n_headers, name);
}

const char *http_head_query_key(const struct http_head *h, size_t n)
{
	const char *s = h->text + h->query_at;

	if (n >= h->n_query)
		return NULL;
	for (size_t i = 0; i < 2 * n; i++)
		s += strlen(s) + 1;
	return s;
}

void http_head_free(struct http_head *h)
{
	free(h->text);
	*h = (struct http_head){0};
}
