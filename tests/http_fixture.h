/*
 * For check_http_*.c: a server on a loopback port, its loop, and raw TCP clients in the
 * same thread. A client never blocks: `until` turns the loop until a condition holds or a
 * generous deadline has passed.
 */
#ifndef SANDGATE_HTTP_FIXTURE_H
#define SANDGATE_HTTP_FIXTURE_H

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host-bridge/http/http_conn.h"
#include "tests/suite_fixture.h"

#define PATIENCE_S 10.0

/* What the handlers saw, and what the next request is to meet. */
struct seen {
	int requests, bodies, gone, rooms, refusals;
	size_t body_len, data_len;
	char path[256];
	struct http_exchange *x; /* the pending one */
};

static struct seen seen;
static struct ev_loop *loop;
static struct http_server *server;
static int port;

static void on_refused(struct http_refusal *f, void *arg)
{
	(void)arg;
	seen.refusals++;
	strcpy(f->headers, "X-Refused: yes\r\n");
	f->len = (size_t)snprintf(f->body, sizeof f->body, "{\"refused\":%d,\"why\":\"%s\"}",
	                          f->status, f->reason);
}

static inline void serve(void (*on_request)(struct http_exchange *x, void *arg))
{
	struct http_handlers handlers = {.on_request = on_request, .on_refused = on_refused};
	struct sockaddr_in in = {.sin_family = AF_INET,
	                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof in;
	struct err e;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	memset(&seen, 0, sizeof seen);
	loop = ev_loop_new(EVFLAG_AUTO);
	server = http_server_create(loop, &handlers, &e);
	ck_assert(server != NULL);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
	ck_assert_int_eq(listen(fd, 128), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&in, &len), 0);
	port = ntohs(in.sin_port);
	ck_assert_int_eq(http_server_listen(server, fd, &e), 0);
}

static inline void unserve(void)
{
	http_server_destroy(server);
	ev_loop_destroy(loop);
}

static inline int client(void)
{
	struct sockaddr_in in = {.sin_family = AF_INET,
	                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	                         .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	ck_assert_int_eq(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
	ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	return fd;
}

/* One turn of the loop, at most 10 ms long. */
static void on_turn(EV_P_ struct ev_timer *w, int revents)
{
	(void)w;
	(void)revents;
	ev_break(EV_A_ EVBREAK_ONE);
}

static inline void turn(void)
{
	struct ev_timer t;

	ev_timer_init(&t, on_turn, 0.01, 0);
	ev_timer_start(loop, &t);
	ev_run(loop, EVRUN_ONCE);
	ev_timer_stop(loop, &t);
}

#define until(condition)                                                            \
	do {                                                                        \
		ev_tstamp start_ = ev_time();                                       \
		while (!(condition)) {                                              \
			ck_assert_msg(ev_time() - start_ < PATIENCE_S, "never: %s", \
			              #condition);                                  \
			turn();                                                     \
		}                                                                   \
	} while (0)

/* What the server does by itself, it has done. */
static inline void settle(void)
{
	for (int i = 0; i < 5; i++)
		turn();
}

/* Send all of it, serving meanwhile. False when the server has reset the connection. */
static inline bool say_n(int fd, const char *data, size_t len)
{
	ev_tstamp start = ev_time();

	while (len > 0) {
		ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

		if (n < 0 && errno != EAGAIN)
			return false;
		if (n > 0) {
			data += n;
			len -= (size_t)n;
		}
		ck_assert_msg(ev_time() - start < PATIENCE_S, "the server takes no input");
		turn();
	}
	return true;
}

static inline void say(int fd, const char *text)
{
	say_n(fd, text, strlen(text));
}

/* Send `data` over and over, until the server has taken none of it for a while. */
static inline void flood(int fd, const char *data, size_t len)
{
	size_t sent = 0;

	for (int idle = 0; idle < 20; turn()) {
		ssize_t n = send(fd, data + sent % len, len - sent % len, MSG_NOSIGNAL);

		idle = n > 0 ? 0 : idle + 1;
		sent += n > 0 ? (size_t)n : 0;
		ck_assert_uint_lt(sent, 64u << 20);
	}
}

struct answer {
	char text[1 << 20];
	size_t len;
	bool closed, reset;
};

/* Read what is there. */
static inline void hear_some(int fd, struct answer *a)
{
	ssize_t n;

	turn();
	do {
		n = recv(fd, a->text + a->len, sizeof a->text - 1 - a->len, 0);
		if (n > 0)
			a->len += (size_t)n;
	} while (n > 0);
	a->text[a->len] = '\0';
	a->reset |= n < 0 && errno == ECONNRESET;
	a->closed |= a->reset || (n == 0 && a->len < sizeof a->text - 1);
}

/* Read until the text contains `needle`. */
static inline void hear(int fd, struct answer *a, const char *needle)
{
	ev_tstamp start = ev_time();

	for (hear_some(fd, a); !strstr(a->text, needle); hear_some(fd, a))
		ck_assert_msg(!a->closed && ev_time() - start < PATIENCE_S, "no '%s' in '%s'%s",
		              needle, a->text, a->closed ? ", closed" : "");
}

/* Read until the server has closed. */
static inline void hear_all(int fd, struct answer *a)
{
	ev_tstamp start = ev_time();

	for (hear_some(fd, a); !a->closed; hear_some(fd, a))
		ck_assert_msg(ev_time() - start < PATIENCE_S, "still open after '%s'", a->text);
}

static inline void assert_status(const struct answer *a, int status)
{
	char line[16];

	snprintf(line, sizeof line, "HTTP/1.1 %d ", status);
	ck_assert_msg(strncmp(a->text, line, strlen(line)) == 0, "got '%s'", a->text);
}

static inline void reset(int fd)
{
	struct linger l = {.l_onoff = 1};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
	close(fd);
}

static inline size_t occurrences(const char *text, const char *needle)
{
	size_t n = 0;

	for (const char *s = text; (s = strstr(s, needle)); s += strlen(needle))
		n++;
	return n;
}

#endif
