#include "host-bridge/http/http_conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/limits.h"

/* Bytes sent by one connection in one turn, so that none holds up the rest. */
#define SEND_BUDGET (4 * HTTP_HIGH_WATER)

static void settle(struct http_conn *c);

bool http_conn_can_skip_body(const struct http_conn *c)
{
	const struct http_exchange *x = c->x;

	if (x->body_done)
		return true;
	return !x->head.chunked && !x->owes_continue &&
	       x->head.content_length - c->parse.body_len <= HTTP_READAHEAD_MAX;
}

void http_conn_answered(struct http_conn *c, bool keep_alive)
{
	http_exchange_free(c->x);
	c->x = NULL;
	if (!keep_alive && c->state == HTTP_OPEN)
		c->state = HTTP_FINISHING;
	else if (c->parse.stage == HTTP_COMPLETE)
		http_parse_next(&c->parse);
	http_server_mark(c);
}

void http_conn_break(struct http_conn *c)
{
	struct linger reset = {.l_onoff = 1};

	c->out.closed = true;
	/* Where the end of the connection would pass for the end of the body. */
	if (c->x->begun && !c->x->chunked)
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
	c->state = HTTP_BROKEN;
	http_server_mark(c);
}

/* Answer a request that breaks a rule, then close. A response that has begun cannot be
 * taken back: its reader must see it broken off. */
static void refuse(struct http_conn *c, int status, const char *reason)
{
	struct http_exchange *x = c->x;

	if (x && x->begun) {
		http_conn_break(c);
	} else {
		http_respond_refusal(c, status, reason);
		c->state = HTTP_FINISHING;
	}
	if (x)
		http_exchange_gone(x);
	http_server_mark(c);
}

static void on_head(struct http_conn *c)
{
	struct http_server *s = c->server;

	http_server_await(c, HTTP_D_NONE, false);
	c->window_bytes = 0;
	c->x = http_exchange_create(c);
	if (!c->x) {
		refuse(c, 503, "out of memory");
		return;
	}
	s->handlers.on_request(c->x, s->handlers.arg);
	/* A declared length over the limit is refused before a byte of it is read. */
	if (c->x && c->x->head.content_length > c->x->body_max)
		refuse(c, 413, "request body too large");
}

static void on_data(struct http_conn *c)
{
	const char *reason;
	int status;

	c->window_bytes += c->parse.data_len;
	if (!c->x)
		return;
	status = http_exchange_data(c->x, c->parse.data, c->parse.data_len, &reason);
	if (status != 0)
		refuse(c, status, reason);
}

static void on_done(struct http_conn *c)
{
	const char *reason;
	int status;

	if (!c->x) {
		http_parse_next(&c->parse);
		return;
	}
	status = http_exchange_end(c->x, &reason);
	if (status != 0)
		refuse(c, status, reason);
}

/* Whether the next input byte can be used now. */
static bool can_parse(const struct http_conn *c)
{
	if (c->state != HTTP_OPEN)
		return false;
	if (c->x)
		return !c->x->body_done && !c->x->paused;
	return c->out.len < HTTP_HIGH_WATER;
}

/* Parse what can be used now; the number of bytes used. */
static size_t consume(struct http_conn *c, const char *data, size_t len)
{
	size_t used = 0;

	while (can_parse(c)) {
		size_t n;
		enum http_event event = http_parse_feed(&c->parse, data + used, len - used, &n);

		used += n;
		if (event == HTTP_EV_MORE)
			break;
		else if (event == HTTP_EV_HEAD)
			on_head(c);
		else if (event == HTTP_EV_DATA)
			on_data(c);
		else if (event == HTTP_EV_DONE)
			on_done(c);
		else
			refuse(c, c->parse.status, c->parse.reason);
	}
	return c->state == HTTP_OPEN ? used : len;
}

/* Take bytes from the socket. -1: the connection is to be broken off. */
static int input(struct http_conn *c, const char *data, size_t len)
{
	if (c->state != HTTP_OPEN)
		return 0;
	if (c->in.len == 0) {
		size_t used = consume(c, data, len);

		if (http_buf_add(&c->in, data + used, len - used) < 0)
			return -1;
	} else if (http_buf_add(&c->in, data, len) < 0) {
		return -1;
	}
	return 0;
}

static void on_readable(EV_P_ struct ev_io *w, int revents)
{
	struct http_conn *c = w->data;
	char *scratch = c->server->scratch;
	ssize_t n = read(c->fd, scratch, HTTP_READAHEAD_MAX);

	(void)revents;
	(void)EV_A;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n == 0)
		c->eof = true;
	if (n < 0 || (n > 0 && input(c, scratch, (size_t)n) < 0))
		http_conn_destroy(c);
	else
		settle(c);
}

/* Send what the socket takes. -1: the peer is gone. */
static int send_out(struct http_conn *c)
{
	size_t sent = 0;

	while (c->out.len > 0 && sent < SEND_BUDGET) {
		ssize_t n = http_out_send(&c->out, c->fd);

		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return -1;
		if (n < 0)
			break;
		sent += (size_t)n;
	}
	c->blocked = c->out.len > 0;
	if (sent > 0 && c->deadline == HTTP_D_STALL)
		http_server_await(c, HTTP_D_STALL, true);
	return 0;
}

void http_conn_flush(struct http_conn *c)
{
	if (send_out(c) < 0 || c->state == HTTP_BROKEN)
		http_conn_destroy(c);
	else
		settle(c);
}

static void on_writable(EV_P_ struct ev_io *w, int revents)
{
	(void)revents;
	(void)EV_A;
	http_conn_flush(w->data);
}

static enum http_deadline deadline_of(const struct http_conn *c)
{
	bool in_body = c->parse.stage == HTTP_IN_BODY;

	if (c->state == HTTP_LINGERING)
		return HTTP_D_LINGER;
	if (c->state == HTTP_OPEN && in_body && !(c->x && c->x->mode == HTTP_BODY_STREAM))
		return HTTP_D_BODY;
	if (c->blocked)
		return HTTP_D_STALL;
	if (c->x)
		return in_body && c->x->paused ? HTTP_D_PAUSE : HTTP_D_NONE;
	return c->parse.head_len > 0 ? HTTP_D_HEAD : HTTP_D_IDLE;
}

/* Whether to read on: for a FIN or reset to be seen, unless there is no room. Who pipelines
 * more than that is watched for a hang-up instead; one who fills the socket's buffer, too,
 * hides his FIN behind it. */
static bool wants_input(const struct http_conn *c)
{
	if (c->eof)
		return false;
	if (c->state != HTTP_OPEN)
		return true;
	if (c->x && c->x->body_done)
		return c->in.len < HTTP_READAHEAD_MAX;
	return can_parse(c) && c->in.len == 0;
}

static void watch(struct http_conn *c)
{
	struct ev_loop *loop = c->server->loop;
	bool reading = wants_input(c);

	if (reading)
		ev_io_start(loop, &c->readable);
	else
		ev_io_stop(loop, &c->readable);
	if (c->blocked)
		ev_io_start(loop, &c->writable);
	else
		ev_io_stop(loop, &c->writable);
	http_server_wait_hangup(c, !reading && !c->eof);
	http_server_await(c, deadline_of(c), false);
}

/* The last response is out: shut our side and wait for the peer's FIN. */
static int finish(struct http_conn *c)
{
	if (shutdown(c->fd, SHUT_WR) < 0)
		return -1;
	http_buf_free(&c->in);
	c->state = HTTP_LINGERING;
	return 0;
}

/* After every event: use stashed input, tell of room, close when that is due, and
 * recompute what the connection waits for. May destroy it. */
static void settle(struct http_conn *c)
{
	struct http_exchange *x = c->x;

	if (x && x->wants_room && c->out.len <= HTTP_LOW_WATER) {
		x->wants_room = false;
		if (x->on_room)
			x->on_room(x, x->watch_owner);
	}
	if (can_parse(c))
		http_buf_drop(&c->in, consume(c, c->in.data ? c->in.data : "", c->in.len));
	if (c->state == HTTP_OPEN && !c->x && c->server->draining && c->parse.head_len == 0)
		c->state = HTTP_FINISHING;
	/* With an exchange open, a FIN counts as the client's going. */
	if ((c->eof && (c->x || c->out.len == 0)) ||
	    (c->state == HTTP_FINISHING && c->out.len == 0 && finish(c) < 0))
		http_conn_destroy(c);
	else
		watch(c);
}

static bool body_is_slow(struct http_conn *c)
{
	double seconds = c->server->due[HTTP_D_BODY].seconds;
	bool slow = (double)c->window_bytes < seconds * HTTP_BODY_MIN_RATE;

	c->window_bytes = 0;
	return slow;
}

void http_conn_hangup(struct http_conn *c, bool broken)
{
	/* A mere FIN without an exchange may have pipelined requests before it. */
	if (broken || c->x)
		http_conn_destroy(c);
}

void http_conn_expire(struct http_conn *c)
{
	enum http_deadline kind = c->deadline;

	if (kind == HTTP_D_BODY && !body_is_slow(c)) {
		http_server_await(c, kind, true);
		return;
	}
	http_server_await(c, HTTP_D_NONE, false);
	if ((kind == HTTP_D_BODY && c->x) || kind == HTTP_D_HEAD || kind == HTTP_D_PAUSE) {
		refuse(c, 408, "request timeout");
		settle(c);
	} else {
		http_conn_destroy(c);
	}
}

void http_conn_create(struct http_server *s, int fd, const char *peer)
{
	struct http_conn *c = calloc(1, sizeof *c);

	if (!c) {
		close(fd);
		return;
	}
	c->server = s;
	c->fd = fd;
	c->deadline = HTTP_D_NONE;
	strncpy(c->peer, peer, sizeof c->peer - 1);
	http_parse_init(&c->parse);
	ev_io_init(&c->readable, on_readable, fd, EV_READ);
	ev_io_init(&c->writable, on_writable, fd, EV_WRITE);
	c->readable.data = c->writable.data = c;
	LIST_INSERT_HEAD(&s->conns, c, link);
	s->n_conns++;
	watch(c);
}

void http_conn_destroy(struct http_conn *c)
{
	struct http_server *s = c->server;

	if (c->x)
		http_exchange_gone(c->x);
	ev_io_stop(s->loop, &c->readable);
	ev_io_stop(s->loop, &c->writable);
	http_server_wait_hangup(c, false);
	http_server_await(c, HTTP_D_NONE, false);
	if (c->dirty) {
		TAILQ_REMOVE(&s->dirty, c, dirty_link);
		s->n_dirty--;
	}
	LIST_REMOVE(c, link);
	close(c->fd);
	http_parse_free(&c->parse);
	http_buf_free(&c->in);
	http_out_free(&c->out);
	free(c);
	http_server_conn_closed(s);
}
