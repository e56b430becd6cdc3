/*
 * A whole agent in the test's process, without listeners: sessions are socketpairs, the
 * test is the host and turns the agent's own loop until the next frame. Check forks every
 * test, so each has its agent for itself.
 */
#ifndef SANDGATE_AGENT_FIXTURE_H
#define SANDGATE_AGENT_FIXTURE_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest-agent/agent.h"
#include "proto/frame.h"
#include "proto/limits.h"
#include "tests/suite_fixture.h"

#define FIXTURE_PATIENCE_S 20.0
#define AT_ONCE_MS 10000 /* far less than what would be waited for, on a busy machine, too */

#define BYTES(s) ((ProtobufCBinaryData){sizeof(s) - 1, (uint8_t *)(s)})

static struct config fixture_config;
static struct agent *fixture_agent;

/* The host's end of one session. */
struct host {
	int fd;
	uint8_t *in;
	size_t len, room, taken;
	ev_io io;
};

static void on_host_event(struct ev_loop *loop, ev_io *w, int revents)
{
	(void)loop, (void)w, (void)revents;
}

static void on_tick(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)w, (void)revents;
}

static inline void fixture_setup(void)
{
	struct err e = {0};
	config_init(&fixture_config);
	fixture_config.port = 0;
	fixture_config.log_level = LOG_ERROR;
	log_setup(LOG_ERROR, false);
	fixture_agent = agent_create(&fixture_config, &e);
	ck_assert_msg(fixture_agent != NULL, "%s", e.msg);
}

static inline struct ev_loop *fixture_loop(void)
{
	return agent_loop(fixture_agent);
}

/* Turn the loop until `done` says so, which may be of something that the loop is not told of;
 * fails the test when that takes too long. */
static inline void turn_until(bool (*done)(void *arg), void *arg)
{
	ev_tstamp end = ev_time() + FIXTURE_PATIENCE_S;
	ev_timer tick;
	ev_timer_init(&tick, on_tick, 0.02, 0.02);
	ev_now_update(fixture_loop());
	ev_timer_start(fixture_loop(), &tick);
	while (!done(arg)) {
		ev_run(fixture_loop(), EVRUN_ONCE);
		ck_assert_msg(ev_time() < end, "nothing happened for %g s", FIXTURE_PATIENCE_S);
	}
	ev_timer_stop(fixture_loop(), &tick);
}

static bool is_past(void *end)
{
	return ev_time() >= *(ev_tstamp *)end;
}

/* Let the agent live for `seconds`. */
static inline void turn_for(double seconds)
{
	ev_tstamp end = ev_time() + seconds;
	turn_until(is_past, &end);
}

static inline struct host *host_connect(void)
{
	int fds[2];
	struct host *h = calloc(1, sizeof(*h));
	ck_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
	h->fd = fds[0];
	ev_io_init(&h->io, on_host_event, h->fd, EV_READ);
	agent_adopt(fixture_agent, fds[1]);
	return h;
}

static inline void host_close(struct host *h)
{
	ev_io_stop(fixture_loop(), &h->io);
	close(h->fd);
	free(h->in);
	free(h);
	ev_run(fixture_loop(), EVRUN_NOWAIT);
}

static inline void host_send_bytes(struct host *h, const void *data, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = send(h->fd, (const char *)data + done, len - done, MSG_NOSIGNAL);
		if (n > 0)
			done += (size_t)n;
		else if (errno == EAGAIN)
			ev_run(fixture_loop(), EVRUN_NOWAIT);
		else
			return; /* the agent closed: its last frame says why */
	}
}

static inline void host_send(struct host *h, Sandgate__HostFrame__BodyCase body, void *message)
{
	Sandgate__HostFrame f = SANDGATE__HOST_FRAME__INIT;
	f.body_case = body;
	f.open = message;
	uint8_t *buf = malloc(frame_size(&f.base));
	host_send_bytes(h, buf, frame_write(&f.base, buf));
	free(buf);
}

static inline void host_open(struct host *h, Sandgate__Open__OpCase op, void *message)
{
	Sandgate__Open o = SANDGATE__OPEN__INIT;
	o.protocol_version = PROTOCOL_VERSION;
	o.op_case = op;
	o.exec = message;
	host_send(h, SANDGATE__HOST_FRAME__BODY_OPEN, &o);
}

static bool host_has_news(void *arg)
{
	struct host *h = arg;
	if (h->room - h->len < 2 * FRAME_MAX_TO_HOST) {
		h->room = h->room * 2 + 2 * FRAME_MAX_TO_HOST;
		h->in = realloc(h->in, h->room);
	}
	ssize_t n = read(h->fd, h->in + h->len, 2 * FRAME_MAX_TO_HOST);
	if (n > 0)
		h->len += (size_t)n;
	return n >= 0 || errno != EAGAIN;
}

/* The next frame, to be freed by host_free(); NULL when the agent closed the session. */
static inline Sandgate__GuestFrame *host_next(struct host *h)
{
	struct frame f;
	if (h->taken > 0)
		memmove(h->in, h->in + h->taken, h->len -= h->taken);
	h->taken = 0;
	while (frame_parse(h->in, h->len, FRAME_MAX_TO_HOST, &f) == FRAME_NEED_MORE) {
		size_t before = h->len;
		ev_io_start(fixture_loop(), &h->io);
		turn_until(host_has_news, h);
		ev_io_stop(fixture_loop(), &h->io);
		if (h->len == before)
			return NULL;
	}
	ck_assert(frame_parse(h->in, h->len, FRAME_MAX_TO_HOST, &f) == FRAME_OK);
	h->taken = f.consumed;
	Sandgate__GuestFrame *g = sandgate__guest_frame__unpack(NULL, f.payload_len, f.payload);
	ck_assert(g != NULL);
	return g;
}

static inline void host_free(Sandgate__GuestFrame *g)
{
	sandgate__guest_frame__free_unpacked(g, NULL);
}

static inline Sandgate__GuestFrame *host_expect(struct host *h,
                                                Sandgate__GuestFrame__BodyCase body)
{
	Sandgate__GuestFrame *g = host_next(h);
	ck_assert_msg(g != NULL, "closed where frame %d was due", body);
	if (g->body_case == SANDGATE__GUEST_FRAME__BODY_REFUSED && g->body_case != body)
		ck_abort_msg("refused: %s (%s)", g->refused->message, g->refused->field);
	ck_assert_int_eq(g->body_case, body);
	return g;
}

static inline void host_expect_only(struct host *h, Sandgate__GuestFrame__BodyCase body)
{
	host_free(host_expect(h, body));
}

static inline void host_expect_end(struct host *h)
{
	ck_assert(host_next(h) == NULL);
	host_close(h);
}

/* A session of any operation, up to Opened. */
static inline struct host *host_opened(Sandgate__Open__OpCase op, void *message)
{
	struct host *h = host_connect();
	host_open(h, op, message);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	return h;
}

/* The only answer to an operation; to be freed. */
static inline Sandgate__GuestFrame *host_ask(Sandgate__Open__OpCase op, void *message,
                                             Sandgate__GuestFrame__BodyCase body)
{
	struct host *h = host_opened(op, message);
	Sandgate__GuestFrame *g = host_expect(h, body);
	host_expect_end(h);
	return g;
}

static inline void host_ask_only(Sandgate__Open__OpCase op, void *message,
                                 Sandgate__GuestFrame__BodyCase body)
{
	host_free(host_ask(op, message, body));
}

/* All that an owner or watcher gets up to Exit. */
struct transcript {
	char *out[2];
	size_t len[2];
	uint64_t gap_bytes, gaps;
	bool started, existing;
	Sandgate__GuestFrame *last; /* Exit, or Refused */
	const Sandgate__Result *result;
	uint64_t end;
};

static inline void transcript_free(struct transcript *t)
{
	free(t->out[0]);
	free(t->out[1]);
	host_free(t->last);
}

/* Read to the last frame, checking that sequences leave nothing out. */
static inline struct transcript host_read_all(struct host *h, uint64_t from)
{
	struct transcript t = {.end = from};
	for (;;) {
		Sandgate__GuestFrame *g = host_next(h);
		ck_assert_msg(g != NULL, "closed without a last frame");
		switch (g->body_case) {
		case SANDGATE__GUEST_FRAME__BODY_STARTED:
			t.started = true;
			t.existing = g->started->existing;
			break;
		case SANDGATE__GUEST_FRAME__BODY_OUTPUT: {
			int s = g->output->stream == SANDGATE__STREAM__STREAM_STDERR;
			size_t n = g->output->data.len;
			ck_assert_uint_eq(g->output->sequence, t.end);
			t.end += n;
			t.out[s] = realloc(t.out[s], t.len[s] + n + 1);
			memcpy(t.out[s] + t.len[s], g->output->data.data, n);
			t.len[s] += n;
			t.out[s][t.len[s]] = '\0';
			break;
		}
		case SANDGATE__GUEST_FRAME__BODY_GAP:
			ck_assert_uint_eq(g->gap->sequence, t.end);
			t.end += g->gap->bytes;
			t.gap_bytes += g->gap->bytes;
			t.gaps++;
			break;
		case SANDGATE__GUEST_FRAME__BODY_EXIT:
			ck_assert_uint_eq(g->exit->sequence, t.end);
			t.result = g->exit->result;
			t.last = g;
			return t;
		case SANDGATE__GUEST_FRAME__BODY_REFUSED:
			t.last = g;
			return t;
		default:
			break;
		}
		host_free(g);
	}
}

static inline struct transcript host_finish(struct host *h, uint64_t from)
{
	struct transcript t = host_read_all(h, from);
	host_close(h);
	return t;
}

/* An Exec with the bridge's usual defaults. */
static inline Sandgate__Exec exec_message(const char *id, const char *cmd)
{
	Sandgate__Exec m = SANDGATE__EXEC__INIT;
	m.exec_id = (char *)id;
	m.cmd = (ProtobufCBinaryData){strlen(cmd), (uint8_t *)cmd};
	m.grace_ms = 200;
	m.timeout_ms = 30000;
	m.link_grace_ms = 30000;
	return m;
}

static inline struct host *host_exec(Sandgate__Exec *m)
{
	struct host *h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_EXEC, m);
	return h;
}

static inline struct host *host_attach(const char *id, Sandgate__Role role, uint64_t offset)
{
	Sandgate__Attach m = SANDGATE__ATTACH__INIT;
	struct host *h = host_connect();
	m.exec_id = (char *)id;
	m.role = role;
	m.offset = offset;
	host_open(h, SANDGATE__OPEN__OP_ATTACH, &m);
	return h;
}

static inline struct exec *find_exec(const char *id)
{
	struct err e = {0};
	struct exec *x = exec_table_find(agent_table(fixture_agent), id, &e);
	ck_assert_msg(x != NULL, "%s", e.msg);
	return x;
}

/* Run `m` to its end as its owner. */
static inline struct transcript host_run(Sandgate__Exec *m)
{
	struct host *h = host_exec(m);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	struct transcript t = host_finish(h, 0);
	ck_assert_msg(t.result != NULL, "refused: %s", t.last->refused->message);
	return t;
}

static inline struct transcript host_run_cmd(const char *cmd)
{
	Sandgate__Exec m = exec_message("x", cmd);
	return host_run(&m);
}

/* Refused with `code` and `field` is the next thing that is said, and the last. */
static inline void host_expect_refused(struct host *h, enum err_code code, const char *field)
{
	Sandgate__GuestFrame *g = host_next(h);
	ck_assert(g != NULL);
	ck_assert_int_eq(g->body_case, SANDGATE__GUEST_FRAME__BODY_REFUSED);
	ck_assert_int_eq(g->refused->code, code);
	ck_assert_str_eq(g->refused->field, field);
	host_free(g);
	host_expect_end(h);
}

/* Start an exec, up to Started. */
static inline struct host *host_start(Sandgate__Exec *m)
{
	struct host *h = host_exec(m);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_STARTED);
	return h;
}

/* Attach, up to Opened. */
static inline struct host *host_attached(const char *id, Sandgate__Role role, uint64_t offset)
{
	struct host *h = host_attach(id, role, offset);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	return h;
}

static inline void host_forget(const char *id)
{
	Sandgate__ForgetExec m = SANDGATE__FORGET_EXEC__INIT;
	m.exec_id = (char *)id;
	host_ask_only(SANDGATE__OPEN__OP_FORGET_EXEC, &m, SANDGATE__GUEST_FRAME__BODY_DONE);
}

static inline void host_cancel(struct host *h, Sandgate__CancelReason reason)
{
	Sandgate__Cancel c = SANDGATE__CANCEL__INIT;
	c.reason = reason;
	host_send(h, SANDGATE__HOST_FRAME__BODY_CANCEL, &c);
}

static inline void host_expect_output(struct host *h, const char *text)
{
	size_t got = 0;
	while (got < strlen(text)) {
		Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_OUTPUT);
		ck_assert(memcmp(g->output->data.data, text + got, g->output->data.len) == 0);
		got += g->output->data.len;
		host_free(g);
	}
}

static inline void host_send_stdin(struct host *h, const char *text, const uint64_t *offset)
{
	Sandgate__Stdin m = SANDGATE__STDIN__INIT;
	Sandgate__Uint64Value at = SANDGATE__UINT64_VALUE__INIT;
	m.data = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
	if (offset != NULL) {
		at.value = *offset;
		m.offset = &at;
	}
	host_send(h, SANDGATE__HOST_FRAME__BODY_STDIN, &m);
}

/* All that a watcher gets of an exec, once it is over. */
static inline struct transcript host_outcome_of(const char *id)
{
	struct transcript t = host_finish(host_attach(id, SANDGATE__ROLE__ROLE_OUTPUT, 0), 0);
	ck_assert(t.result != NULL);
	return t;
}

/* An exec ends by `reason`; after how long (ms). */
static inline uint64_t host_expect_cancelled(const char *id, Sandgate__CancelReason reason)
{
	struct transcript t = host_outcome_of(id);
	uint64_t took = t.result->duration_ms;
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	ck_assert_int_eq(t.result->cancel_reason, reason);
	transcript_free(&t);
	return took;
}

#endif
