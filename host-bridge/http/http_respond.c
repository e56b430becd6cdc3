#include "host-bridge/http/http_conn.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"

/* The body's length where it is not a number of bytes. */
#define LENGTH_CHUNKED (-1)
#define LENGTH_UNTIL_CLOSE (-2)
#define LENGTH_NONE (-3) /* the status has no body */

static const char *reason_phrase(int status)
{
	static const struct {
		int status;
		const char *text;
	} known[] = {
	    {200, "OK"},
	    {201, "Created"},
	    {202, "Accepted"},
	    {204, "No Content"},
	    {304, "Not Modified"},
	    {400, "Bad Request"},
	    {401, "Unauthorized"},
	    {403, "Forbidden"},
	    {404, "Not Found"},
	    {405, "Method Not Allowed"},
	    {408, "Request Timeout"},
	    {409, "Conflict"},
	    {410, "Gone"},
	    {413, "Content Too Large"},
	    {415, "Unsupported Media Type"},
	    {417, "Expectation Failed"},
	    {422, "Unprocessable Content"},
	    {429, "Too Many Requests"},
	    {431, "Request Header Fields Too Large"},
	    {500, "Internal Server Error"},
	    {502, "Bad Gateway"},
	    {503, "Service Unavailable"},
	    {504, "Gateway Timeout"},
	    {507, "Insufficient Storage"},
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].status == status)
			return known[i].text;
	return ""; /* the phrase may be empty (RFC 9112, 4) */
}

static bool bodiless(int status)
{
	return status == 204 || status == 304;
}

/* Queue the status line and headers. `connection` is the token of that header, or NULL;
 * `more` holds further lines. */
static int add_head(struct http_conn *c, int status, const char *type, long long length,
                    const char *connection, const struct http_buf *more)
{
	char text[512];
	size_t room = sizeof text;
	int n;

	n = snprintf(text, room, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status,
	             reason_phrase(status), http_server_date(c->server));
	if (type)
		n += snprintf(text + n, room - (size_t)n, "Content-Type: %s\r\n", type);
	if (length >= 0)
		n += snprintf(text + n, room - (size_t)n, "Content-Length: %lld\r\n", length);
	else if (length == LENGTH_CHUNKED)
		n += snprintf(text + n, room - (size_t)n, "Transfer-Encoding: chunked\r\n");
	if (connection)
		n += snprintf(text + n, room - (size_t)n, "Connection: %s\r\n", connection);
	assert((size_t)n < room);
	if (http_out_add(&c->out, text, (size_t)n) < 0 ||
	    (more && http_out_add(&c->out, more->data, more->len) < 0))
		return -1;
	return http_out_add(&c->out, "\r\n", 2);
}

/* Decide about keep-alive and queue the head of the response to `x`. */
static int start(struct http_exchange *x, int status, const char *type, long long length)
{
	struct http_conn *c = x->conn;
	const char *connection = NULL;

	if (c->server->draining || length == LENGTH_UNTIL_CLOSE || !http_conn_can_skip_body(c))
		x->keep_alive = false;
	if (!x->keep_alive)
		connection = "close";
	else if (x->head.version_1_0)
		connection = "keep-alive";
	x->begun = true;
	return add_head(c, status, type, length, connection, &x->headers);
}

/* The response is queued, or could not be (`rc`). */
static void answered(struct http_exchange *x, int rc)
{
	struct http_conn *c = x->conn;

	if (rc < 0)
		http_conn_break(c);
	http_conn_answered(c, x->keep_alive && http_conn_can_skip_body(c));
}

void http_set_header(struct http_exchange *x, const char *name, const char *value)
{
	assert(!x->begun && name[strcspn(name, "\r\n: ")] == '\0');
	assert(value[strcspn(value, "\r\n")] == '\0');
	if (http_buf_add(&x->headers, name, strlen(name)) < 0 ||
	    http_buf_add(&x->headers, ": ", 2) < 0 ||
	    http_buf_add(&x->headers, value, strlen(value)) < 0 ||
	    http_buf_add(&x->headers, "\r\n", 2) < 0)
		http_conn_break(x->conn);
}

void http_reply_take(struct http_exchange *x, int status, const char *type, void *body,
                     size_t len)
{
	bool sends_body = !bodiless(status) && x->head.method != HTTP_M_HEAD;
	int rc;

	if (x->gone) {
		free(body);
		return;
	}
	assert(!x->begun);
	rc = start(x, status, type, bodiless(status) ? LENGTH_NONE : (long long)len);
	if (rc < 0 || !sends_body)
		free(body);
	else
		rc = http_out_take(&x->conn->out, body, len);
	answered(x, rc);
}

void http_reply(struct http_exchange *x, int status, const char *type, const void *body,
                size_t len)
{
	bool sends_body = !bodiless(status) && x->head.method != HTTP_M_HEAD;
	int rc;

	if (x->gone)
		return;
	assert(!x->begun);
	rc = start(x, status, type, bodiless(status) ? LENGTH_NONE : (long long)len);
	if (rc == 0 && sends_body)
		rc = http_out_add(&x->conn->out, body, len);
	answered(x, rc);
}

void http_begin(struct http_exchange *x, int status, const char *type)
{
	if (x->gone)
		return;
	assert(!x->begun && !bodiless(status));
	x->chunked = !x->head.version_1_0;
	if (start(x, status, type, x->chunked ? LENGTH_CHUNKED : LENGTH_UNTIL_CLOSE) < 0)
		http_conn_break(x->conn);
	http_server_mark(x->conn);
}

bool http_begun(const struct http_exchange *x)
{
	return x->begun;
}

static int add_chunk(struct http_exchange *x, const void *data, size_t len)
{
	struct http_out *out = &x->conn->out;
	char size[20];
	int n;

	if (!x->chunked)
		return http_out_add(out, data, len);
	n = snprintf(size, sizeof size, "%zx\r\n", len);
	if (http_out_add(out, size, (size_t)n) < 0 || http_out_add(out, data, len) < 0)
		return -1;
	return http_out_add(out, "\r\n", 2);
}

bool http_write(struct http_exchange *x, const void *data, size_t len)
{
	struct http_conn *c = x->conn;

	if (x->gone)
		return false;
	assert(x->begun);
	if (len > 0 && x->head.method != HTTP_M_HEAD) {
		if (add_chunk(x, data, len) < 0)
			http_conn_break(c);
		http_server_mark(c);
	}
	if (c->out.len > HTTP_HIGH_WATER)
		x->wants_room = true;
	return !x->wants_room;
}

void http_break(struct http_exchange *x)
{
	if (!x->gone)
		http_conn_break(x->conn);
}

size_t http_unsent(const struct http_exchange *x)
{
	return x->conn->out.len;
}

void http_end(struct http_exchange *x)
{
	bool terminated = x->chunked && x->head.method != HTTP_M_HEAD;

	if (x->gone)
		return;
	assert(x->begun);
	answered(x, terminated ? http_out_add(&x->conn->out, "0\r\n\r\n", 5) : 0);
}

void http_abort(struct http_exchange *x)
{
	if (x->gone)
		return;
	http_conn_break(x->conn);
	http_conn_answered(x->conn, false);
}

void http_respond_refusal(struct http_conn *c, int status, const char *reason)
{
	const struct http_handlers *h = &c->server->handlers;
	struct http_refusal f = {.status = status, .reason = reason};
	bool sends_body = !c->x || c->x->head.method != HTTP_M_HEAD;
	struct http_buf lines = {.data = f.headers};

	f.owner = c->x ? c->x->watch_owner : NULL;
	h->on_refused(&f, h->arg);
	lines.len = strlen(f.headers);
	if (f.len == 0 ||
	    add_head(c, status, "application/json", (long long)f.len, "close", &lines) < 0 ||
	    (sends_body && http_out_add(&c->out, f.body, f.len) < 0))
		http_out_free(&c->out);
}
