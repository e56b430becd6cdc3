/*
 * Inside the HTTP server: a connection. Included by http_*.c, and by tests that shorten
 * deadlines; nobody else.
 *
 *   OPEN ──► FINISHING ──► LINGERING ──► destroyed
 *     │      last response   our side is shut, input is discarded until the client's FIN
 *     │      is being sent   or the deadline, so that no reset destroys the response
 *     └────► BROKEN: destroyed by the next flush
 *
 * Functions that the owner calls (http_write, http_reply …) only record and mark the
 * connection dirty. Owner callbacks run, and connections die, only in event callbacks.
 */
#ifndef SANDGATE_HTTP_CONN_H
#define SANDGATE_HTTP_CONN_H

#include "host-bridge/http/http_exchange.h"
#include "host-bridge/http/http_out.h"
#include "host-bridge/http/http_parse.h"
#include "host-bridge/http/http_server_private.h"

enum http_state { HTTP_OPEN, HTTP_FINISHING, HTTP_LINGERING, HTTP_BROKEN };

struct http_conn {
	struct http_server *server;
	int fd;
	enum http_state state;
	struct ev_io readable, writable;
	struct http_parse parse;
	struct http_exchange *x; /* the request in progress, or NULL */
	struct http_buf in;      /* bytes read but not parsed yet */
	struct http_out out;
	bool eof;     /* the peer's FIN was read */
	bool blocked; /* the socket took less than all of `out` */
	bool dirty;   /* on the server's list for the next flush */
	bool watched; /* in the hang-up set, since `readable` is stopped */
	enum http_deadline deadline;
	ev_tstamp due;
	size_t window_bytes; /* body bytes in this HTTP_D_BODY window */
	LIST_ENTRY(http_conn) link;
	TAILQ_ENTRY(http_conn) dirty_link, due_link;
	char peer[56];
};

void http_conn_create(struct http_server *s, int fd, const char *peer);
void http_conn_destroy(struct http_conn *c);
/* For http_server.c: the flush of this turn, a deadline that passed, a FIN or (`broken`) a
 * reset seen while input was not read. */
void http_conn_flush(struct http_conn *c);
void http_conn_expire(struct http_conn *c);
void http_conn_hangup(struct http_conn *c, bool broken);
/* The exchange is answered: forget it, and close or go on. */
void http_conn_answered(struct http_conn *c, bool keep_alive);
/* Destroy it at the next flush, so that the reader sees the response of `x` cut off where it is
 * now: nothing more of it is sent. */
void http_conn_break(struct http_conn *c);
/* Whether the rest of the request body can be read past at little cost. */
bool http_conn_can_skip_body(const struct http_conn *c);

/* http_respond.c: the response to a refused request, with or without an exchange. */
void http_respond_refusal(struct http_conn *c, int status, const char *reason);

#endif
