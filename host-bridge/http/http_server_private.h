/*
 * Inside the HTTP server: what all connections share, and what they wait for. Included by
 * http_*.c, and by tests that shorten deadlines; nobody else.
 */
#ifndef SANDGATE_HTTP_SERVER_PRIVATE_H
#define SANDGATE_HTTP_SERVER_PRIVATE_H

#include <stdbool.h>
#include <sys/queue.h>
#include <time.h>

#include "host-bridge/http/http_server.h"

struct http_conn;

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

/* Flush this connection before the loop sleeps. */
void http_server_mark(struct http_conn *c);
/* Watch for the hang-up of a connection whose input is not read. */
void http_server_wait_hangup(struct http_conn *c, bool on);
/* Wait for `kind`; a wait of the same kind goes on, unless `anew`. */
void http_server_await(struct http_conn *c, enum http_deadline kind, bool anew);
void http_server_conn_closed(struct http_server *s);
/* RFC 9110 date of this second. */
const char *http_server_date(struct http_server *s);

#endif
