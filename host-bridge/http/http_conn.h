/*
 * Inside the HTTP server: the structs that its files share. Included by http_*.c, and by
 * tests that shorten deadlines; nobody else.
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

#include <sys/queue.h>

#include "host-bridge/http/http.h"
#include "host-bridge/http/http_out.h"
#include "host-bridge/http/http_parse.h"

/* What a connection may be waiting for; each kind has one duration, so its queue is in
 * order of expiry and costs one timer whatever its length. */
enum http_deadline {
	HTTP_D_IDLE,   /* the first byte of the next request */
	HTTP_D_HEAD,   /* the end of the head, from its first byte */
	HTTP_D_BODY,   /* the end of a window in which the body must have its minimum */
	HTTP_D_PAUSE,  /* the owner, to take more of a streamed body */
	HTTP_D_STALL,  /* the peer, to take any byte of the response */
	HTTP_D_LINGER, /* the peer's FIN */
	HTTP_D_COUNT,
	HTTP_D_NONE = HTTP_D_COUNT,
};

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

enum http_body_mode {
	HTTP_BODY_UNASKED,
	HTTP_BODY_COLLECT,
	HTTP_BODY_STREAM,
	HTTP_BODY_DISCARD
};

struct http_exchange {
	struct http_conn *conn;
	struct http_head head;
	enum http_body_mode mode;
	struct http_buf body; /* HTTP_BODY_COLLECT */
	size_t body_max;
	void (*on_body)(struct http_exchange *x, char *data, size_t len, void *owner);
	void (*on_data)(struct http_exchange *x, const char *data, size_t len, void *owner);
	void (*on_end)(struct http_exchange *x, void *owner);
	void *body_owner;
	void (*on_gone)(struct http_exchange *x, void *owner);
	void (*on_room)(struct http_exchange *x, void *owner);
	void *watch_owner;
	struct http_buf headers; /* of the response, as lines */
	bool body_done;
	bool paused;
	bool owes_continue; /* the client waits for 100 before it sends the body */
	bool begun;
	bool chunked;
	bool keep_alive;
	bool wants_room;
	bool gone; /* on_gone is running: whatever is written is dropped */
};

TAILQ_HEAD(http_conn_queue, http_conn);

struct http_server {
	struct ev_loop *loop;
	struct http_handlers handlers;
	LIST_HEAD(, http_listener) listeners;
	struct ev_timer accept_again; /* after descriptors ran out */
	LIST_HEAD(, http_conn) conns;
	size_t n_conns, n_exchanges, max_conns;
	bool draining;
	struct ev_prepare flush;
	struct ev_idle no_sleep; /* while somebody is dirty */
	struct http_conn_queue dirty;
	size_t n_dirty;
	struct http_due {
		struct http_conn_queue queue;
		struct ev_timer timer;
		double seconds;
	} due[HTTP_D_COUNT];
	int hangup_fd; /* epoll set of the connections that are not being read */
	struct ev_io hangup;
	char *scratch; /* HTTP_READAHEAD_MAX bytes: every connection reads into it */
	time_t date_at;
	char date[32];
};

/* http_conn.c: the connection's input, output and end. */
void http_conn_create(struct http_server *s, int fd, const char *peer);
void http_conn_destroy(struct http_conn *c);
/* For http_server.c: the flush of this turn, a deadline that passed, a FIN or (`broken`) a
 * reset seen while input was not read. */
void http_conn_flush(struct http_conn *c);
void http_conn_expire(struct http_conn *c);
void http_conn_hangup(struct http_conn *c, bool broken);
/* The exchange is answered: forget it, and close or go on. */
void http_conn_answered(struct http_conn *c, bool keep_alive);
/* Destroy it at the next flush, so that the reader sees the response of `x` cut off. */
void http_conn_break(struct http_conn *c);
/* Whether the rest of the request body can be read past at little cost. */
bool http_conn_can_skip_body(const struct http_conn *c);

/* http_exchange.c: body bytes and the end of the body for the owner; the end of an
 * exchange whose client is gone or was answered here. */
struct http_exchange *http_exchange_create(struct http_conn *c);
/* 0, or the status of a refusal with `*reason`; after 0 the exchange may be over. */
int http_exchange_data(struct http_exchange *x, const char *data, size_t len,
                       const char **reason);
int http_exchange_end(struct http_exchange *x, const char **reason);
void http_exchange_gone(struct http_exchange *x);
void http_exchange_free(struct http_exchange *x);

/* http_respond.c: the response to a refused request, with or without an exchange. */
void http_respond_refusal(struct http_conn *c, int status, const char *reason);

/* http_server.c: what connections wait for. Flush this one before the loop sleeps. */
void http_server_mark(struct http_conn *c);
/* Watch for the hang-up of a connection whose input is not read. */
void http_server_wait_hangup(struct http_conn *c, bool on);
/* Wait for `kind`; a wait of the same kind goes on, unless `anew`. */
void http_server_await(struct http_conn *c, enum http_deadline kind, bool anew);
void http_server_conn_closed(struct http_server *s);
/* RFC 9110 date of this second. */
const char *http_server_date(struct http_server *s);

#endif
