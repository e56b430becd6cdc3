#include "host-bridge/http/http_conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "host-bridge/steady.h"
#include "proto/limits.h"
#include "proto/log.h"

/* Connections accepted, and hang-ups taken, in one turn. */
#define ACCEPTS_A_TURN 64
#define HANGUPS_A_TURN 64

/* When descriptors or memory ran out: how long until accept is tried again (seconds). */
#define ACCEPT_RETRY_S 0.1

/* A peer that vanished without a FIN is probed after so long, so often (seconds). */
#define KEEPALIVE_IDLE_S 30
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_PROBES 3

struct http_listener {
	struct http_server *server;
	struct ev_io io;
	LIST_ENTRY(http_listener) link;
};

/* ---- accepting ---- */

static void accept_start(struct http_server *s)
{
	struct http_listener *l;

	ev_timer_stop(s->loop, &s->accept_again);
	LIST_FOREACH (l, &s->listeners, link)
		ev_io_start(s->loop, &l->io);
}

static void accept_pause(struct http_server *s)
{
	struct http_listener *l;

	LIST_FOREACH (l, &s->listeners, link)
		ev_io_stop(s->loop, &l->io);
}

static void on_accept_again(EV_P_ struct ev_timer *w, int revents)
{
	(void)EV_A;
	(void)revents;
	accept_start(w->data);
}

static bool is_full(const struct http_server *s)
{
	return s->n_conns >= s->max_conns;
}

/* Full, and somebody waits: the connection that has been idle longest makes room. */
static void make_room(struct http_server *s)
{
	struct http_conn *idle = TAILQ_FIRST(&s->due[HTTP_D_IDLE].queue);

	if (idle)
		http_conn_destroy(idle);
	else
		accept_pause(s); /* until a connection closes */
}

void http_server_conn_closed(struct http_server *s)
{
	if (s->n_conns-- == s->max_conns && !ev_is_active(&s->accept_again))
		accept_start(s);
}

static void describe_peer(const struct sockaddr_storage *ss, char *text, size_t room)
{
	char host[INET6_ADDRSTRLEN] = "";

	if (ss->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)ss;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
		snprintf(text, room, "%s:%u", host, ntohs(in->sin_port));
	} else if (ss->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)ss;

		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
		snprintf(text, room, "[%s]:%u", host, ntohs(in6->sin6_port));
	} else {
		snprintf(text, room, "unix");
	}
}

static void set_option(int fd, int level, int option, int value)
{
	setsockopt(fd, level, option, &value, sizeof value);
}

static void setup_tcp(int fd)
{
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
	set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
	set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
	set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, HTTP_STALL_S * 1000);
}

static bool ran_out(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

static void on_acceptable(EV_P_ struct ev_io *w, int revents)
{
	struct http_listener *l = w->data;
	struct http_server *s = l->server;

	(void)revents;
	if (is_full(s))
		make_room(s);
	for (int i = 0; i < ACCEPTS_A_TURN && !is_full(s); i++) {
		struct sockaddr_storage ss = {0};
		socklen_t len = sizeof ss;
		char peer[INET6_ADDRSTRLEN + 10];
		int fd;

		fd = accept4(w->fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0 && ran_out(errno)) {
			log_warn("http", NULL, "accept: %s", strerror(errno));
			accept_pause(s);
			ev_timer_set(&s->accept_again, ACCEPT_RETRY_S, 0);
			ev_timer_start(EV_A_ & s->accept_again);
		}
		if (fd < 0)
			return;
		describe_peer(&ss, peer, sizeof peer);
		if (ss.ss_family != AF_UNIX)
			setup_tcp(fd);
		http_conn_create(s, fd, peer);
	}
}

int http_server_listen(struct http_server *s, int fd, struct err *e)
{
	struct http_listener *l = calloc(1, sizeof *l);

	if (!l || fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
		int error = errno;

		free(l);
		close(fd);
		return err_errno(e, ERR_INTERNAL, error, "cannot serve on descriptor %d", fd);
	}
	l->server = s;
	ev_io_init(&l->io, on_acceptable, fd, EV_READ);
	l->io.data = l;
	LIST_INSERT_HEAD(&s->listeners, l, link);
	ev_io_start(s->loop, &l->io);
	return 0;
}

static void close_listeners(struct http_server *s)
{
	struct http_listener *l;

	ev_timer_stop(s->loop, &s->accept_again);
	while ((l = LIST_FIRST(&s->listeners))) {
		LIST_REMOVE(l, link);
		ev_io_stop(s->loop, &l->io);
		close(l->io.fd);
		free(l);
	}
}

/* ---- the flush of a turn ---- */

static void on_flush(EV_P_ struct ev_prepare *w, int revents)
{
	struct http_server *s = w->data;

	(void)revents;
	/* Those that become dirty meanwhile have their turn after the poll. */
	for (size_t n = s->n_dirty; n > 0 && s->n_dirty > 0; n--) {
		struct http_conn *c = TAILQ_FIRST(&s->dirty);

		TAILQ_REMOVE(&s->dirty, c, dirty_link);
		s->n_dirty--;
		c->dirty = false;
		http_conn_flush(c);
	}
	if (s->n_dirty == 0) {
		ev_prepare_stop(EV_A_ w);
		ev_idle_stop(EV_A_ & s->no_sleep);
	}
}

static void on_no_sleep(EV_P_ struct ev_idle *w, int revents)
{
	(void)EV_A;
	(void)w;
	(void)revents;
}

void http_server_mark(struct http_conn *c)
{
	struct http_server *s = c->server;

	if (c->dirty)
		return;
	c->dirty = true;
	TAILQ_INSERT_TAIL(&s->dirty, c, dirty_link);
	s->n_dirty++;
	ev_prepare_start(s->loop, &s->flush);
	ev_idle_start(s->loop, &s->no_sleep);
}

/* ---- deadlines ---- */

static void on_due(EV_P_ struct ev_timer *w, int revents)
{
	struct http_due *due = w->data;
	struct http_conn *c;

	(void)revents;
	while ((c = TAILQ_FIRST(&due->queue)) && c->due <= steady_now())
		http_conn_expire(c);
	if (c) {
		ev_timer_stop(EV_A_ w);
		ev_timer_set(w, c->due - steady_now(), 0);
		ev_timer_start(EV_A_ w);
	}
}

void http_server_await(struct http_conn *c, enum http_deadline kind, bool anew)
{
	struct http_server *s = c->server;
	struct http_due *due;

	if (c->deadline == kind && !anew)
		return;
	if (c->deadline != HTTP_D_NONE)
		TAILQ_REMOVE(&s->due[c->deadline].queue, c, due_link);
	c->deadline = kind;
	if (kind == HTTP_D_NONE)
		return;
	due = &s->due[kind];
	c->due = steady_now() + due->seconds;
	TAILQ_INSERT_TAIL(&due->queue, c, due_link);
	/* A timer that fires for a wait long over looks for the next one. */
	if (!ev_is_active(&due->timer)) {
		ev_timer_set(&due->timer, due->seconds, 0);
		ev_timer_start(s->loop, &due->timer);
	}
}

/* ---- hang-ups of connections that are not read ---- */

/* libev cannot ask for EPOLLRDHUP; an epoll set of our own, itself watched by libev, can.
 * Edge-triggered: a FIN is told once, however long its connection stays unread. */
void http_server_wait_hangup(struct http_conn *c, bool on)
{
	struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = c};

	if (on == c->watched)
		return;
	c->watched = on;
	epoll_ctl(c->server->hangup_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, c->fd, &ev);
}

static void on_hangup(EV_P_ struct ev_io *w, int revents)
{
	struct epoll_event events[HANGUPS_A_TURN];
	int n = epoll_wait(w->fd, events, HANGUPS_A_TURN, 0);

	(void)EV_A;
	(void)revents;
	for (int i = 0; i < n; i++)
		http_conn_hangup(events[i].data.ptr,
		                 (events[i].events & (EPOLLERR | EPOLLHUP)) != 0);
}

/* ---- life ---- */

const char *http_server_date(struct http_server *s)
{
	time_t now = (time_t)ev_now(s->loop);
	struct tm tm;

	if (now != s->date_at) {
		s->date_at = now;
		gmtime_r(&now, &tm);
		strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
	}
	return s->date;
}

static size_t connections_allowed(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) < 0 || rl.rlim_cur <= 2 * HTTP_FD_RESERVE)
		return HTTP_FD_RESERVE;
	return rl.rlim_cur - HTTP_FD_RESERVE;
}

static void init_deadlines(struct http_server *s)
{
	static const double seconds[HTTP_D_COUNT] = {
	    [HTTP_D_IDLE] = HTTP_IDLE_S,        [HTTP_D_HEAD] = HTTP_HEAD_DEADLINE_S,
	    [HTTP_D_BODY] = HTTP_BODY_WINDOW_S, [HTTP_D_PAUSE] = HTTP_PAUSE_MAX_S,
	    [HTTP_D_STALL] = HTTP_STALL_S,      [HTTP_D_LINGER] = HTTP_LINGER_S,
	};

	for (int i = 0; i < HTTP_D_COUNT; i++) {
		TAILQ_INIT(&s->due[i].queue);
		s->due[i].seconds = seconds[i];
		ev_init(&s->due[i].timer, on_due);
		s->due[i].timer.data = &s->due[i];
	}
}

struct http_server *http_server_create(struct ev_loop *loop, const struct http_handlers *h,
                                       struct err *e)
{
	struct http_server *s = calloc(1, sizeof *s);

	if (s)
		s->scratch = malloc(HTTP_READAHEAD_MAX);
	if (!s || !s->scratch || (s->hangup_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) {
		err_errno(e, ERR_INTERNAL, errno, "cannot make an HTTP server");
		if (s)
			free(s->scratch);
		free(s);
		return NULL;
	}
	s->loop = loop;
	s->handlers = *h;
	s->max_conns = connections_allowed();
	LIST_INIT(&s->listeners);
	LIST_INIT(&s->conns);
	TAILQ_INIT(&s->dirty);
	init_deadlines(s);
	ev_prepare_init(&s->flush, on_flush);
	ev_idle_init(&s->no_sleep, on_no_sleep);
	ev_init(&s->accept_again, on_accept_again);
	ev_io_init(&s->hangup, on_hangup, s->hangup_fd, EV_READ);
	s->flush.data = s->accept_again.data = s;
	ev_io_start(loop, &s->hangup);
	return s;
}

void http_server_drain(struct http_server *s)
{
	struct http_conn *c;

	s->draining = true;
	close_listeners(s);
	LIST_FOREACH (c, &s->conns, link)
		http_server_mark(c);
}

void http_server_destroy(struct http_server *s)
{
	struct http_conn *c;

	close_listeners(s);
	while ((c = LIST_FIRST(&s->conns)))
		http_conn_destroy(c);
	for (int i = 0; i < HTTP_D_COUNT; i++)
		ev_timer_stop(s->loop, &s->due[i].timer);
	ev_timer_stop(s->loop, &s->accept_again);
	ev_prepare_stop(s->loop, &s->flush);
	ev_idle_stop(s->loop, &s->no_sleep);
	ev_io_stop(s->loop, &s->hangup);
	close(s->hangup_fd);
	free(s->scratch);
	free(s);
}

size_t http_server_connections(const struct http_server *s)
{
	return s->n_conns;
}

size_t http_server_exchanges(const struct http_server *s)
{
	return s->n_exchanges;
}
