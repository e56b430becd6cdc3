#include "host-bridge/http/http_conn.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "proto/limits.h"

/* ---- life ---- */

struct http_exchange *http_exchange_create(struct http_conn *c)
{
	struct http_exchange *x = calloc(1, sizeof *x);

	if (!x)
		return NULL;
	x->conn = c;
	x->head = c->parse.head;
	c->parse.head = (struct http_head){0};
	x->keep_alive = x->head.keep_alive;
	x->owes_continue = x->head.expects_continue;
	c->server->n_exchanges++;
	return x;
}

void http_exchange_free(struct http_exchange *x)
{
	x->conn->server->n_exchanges--;
	http_head_free(&x->head);
	http_buf_free(&x->body);
	http_buf_free(&x->headers);
	free(x);
}

void http_exchange_gone(struct http_exchange *x)
{
	x->gone = true;
	if (x->on_gone)
		x->on_gone(x, x->watch_owner);
	x->conn->x = NULL;
	http_exchange_free(x);
}

/* ---- request ---- */

enum http_method http_method(const struct http_exchange *x)
{
	return x->head.method;
}

const char *http_method_name(const struct http_exchange *x)
{
	return x->head.method_name;
}

const char *http_path(const struct http_exchange *x)
{
	return x->head.text;
}

const char *http_query(const struct http_exchange *x, const char *key)
{
	return http_head_query(&x->head, key);
}

const char *http_query_key(const struct http_exchange *x, size_t n)
{
	return http_head_query_key(&x->head, n);
}

const char *http_header(const struct http_exchange *x, const char *name)
{
	return http_head_header(&x->head, name);
}

const char *http_peer(const struct http_exchange *x)
{
	return x->conn->peer;
}

/* ---- body ---- */

static void want_body(struct http_exchange *x, enum http_body_mode mode, size_t max,
                      void *owner)
{
	static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";

	assert(x->mode == HTTP_BODY_UNASKED);
	x->mode = mode;
	x->body_max = max;
	x->body_owner = owner;
	if (!x->owes_continue || x->head.content_length > max)
		return;
	x->owes_continue = false;
	if (http_out_add(&x->conn->out, go_on, sizeof go_on - 1) < 0)
		http_conn_break(x->conn);
	http_server_mark(x->conn);
}

void http_no_body(struct http_exchange *x)
{
	want_body(x, HTTP_BODY_DISCARD, HTTP_READAHEAD_MAX, NULL);
}

void http_collect(struct http_exchange *x, size_t max,
                  void (*on_body)(struct http_exchange *x, char *data, size_t len, void *owner),
                  void *owner)
{
	x->on_body = on_body;
	want_body(x, HTTP_BODY_COLLECT, max, owner);
}

void http_stream(struct http_exchange *x,
                 void (*on_data)(struct http_exchange *x, const char *data, size_t len,
                                 void *owner),
                 void (*on_end)(struct http_exchange *x, void *owner), void *owner)
{
	x->on_data = on_data;
	x->on_end = on_end;
	want_body(x, HTTP_BODY_STREAM, SIZE_MAX, owner);
}

void http_stream_pause(struct http_exchange *x)
{
	x->paused = true;
}

void http_stream_resume(struct http_exchange *x)
{
	x->paused = false;
	http_server_mark(x->conn);
}

int http_exchange_data(struct http_exchange *x, const char *data, size_t len,
                       const char **reason)
{
	x->owes_continue = false;
	if (x->mode == HTTP_BODY_STREAM) {
		x->on_data(x, data, len, x->body_owner);
	} else if (x->conn->parse.body_len > x->body_max) {
		*reason = "request body too large";
		return 413;
	} else if (x->mode == HTTP_BODY_COLLECT && http_buf_add(&x->body, data, len) < 0) {
		*reason = "out of memory";
		return 503;
	}
	return 0;
}

int http_exchange_end(struct http_exchange *x, const char **reason)
{
	x->body_done = true;
	if (x->mode == HTTP_BODY_STREAM) {
		x->on_end(x, x->body_owner);
	} else if (x->mode == HTTP_BODY_COLLECT) {
		if (http_buf_addc(&x->body, '\0') < 0) {
			*reason = "out of memory";
			return 503;
		}
		x->on_body(x, x->body.data, x->body.len - 1, x->body_owner);
	}
	return 0;
}

void http_watch(struct http_exchange *x, void (*on_gone)(struct http_exchange *x, void *owner),
                void (*on_room)(struct http_exchange *x, void *owner), void *owner)
{
	x->on_gone = on_gone;
	x->on_room = on_room;
	x->watch_owner = owner;
}
