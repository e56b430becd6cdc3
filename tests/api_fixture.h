/*
 * For check_hub.c, check_vigil.c, check_call.c, check_idle.c and check_exec_calls.c: the API
 * over its real HTTP server, links and sandboxes, with an agent and clients in the same thread.
 * The agent knows one exec, "x", whose output and end the test scripts. `until` turns the loop
 * until a condition holds.
 */
#ifndef SANDGATE_API_FIXTURE_H
#define SANDGATE_API_FIXTURE_H

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "host-bridge/api/api.h"
#include "host-bridge/api/audit.h"
#include "host-bridge/api/call.h"
#include "host-bridge/api/hub.h"
#include "host-bridge/api/metrics.h"
#include "host-bridge/api/quota.h"
#include "host-bridge/api/vigil.h"
#include "proto/frame.h"
#include "tests/suite_fixture.h"

#define PEERS_MAX 256
#define PATIENCE_S 20.0

/* ---- growable bytes ---- */

struct bytes {
	uint8_t *data;
	size_t len, room;
};

static inline void bytes_add(struct bytes *b, const void *data, size_t len)
{
	if (b->len + len + 1 > b->room) {
		b->room = 2 * (b->len + len + 1);
		b->data = realloc(b->data, b->room);
	}
	memcpy(b->data + b->len, data, len);
	b->len += len;
	b->data[b->len] = '\0';
}

static inline void bytes_drop(struct bytes *b, size_t n)
{
	memmove(b->data, b->data + n, b->len - n);
	b->len -= n;
}

/* One connection, of the agent or of a client. */
struct peer {
	int fd; /* -1: closed */
	struct bytes in, out;
	bool watches, owns, deaf; /* agent: its role; client: it does not read */
	uint64_t next;            /* agent: next byte to send */
	bool exited, eof;
};

static struct {
	struct ev_loop *loop;
	struct api api;
	struct settings settings;
	char dir[64], id[128];
	int agent_fd;
	struct peer agents[PEERS_MAX];
	size_t agent_count;
	/* the exec "x" */
	struct bytes output;
	bool finished, vanished;
	bool exists; /* a start is a repetition: it stands by */
	bool keeps;  /* the start said that its output outlives Release */
	unsigned released;
	unsigned hang_ups; /* so many sessions are closed unanswered */
	unsigned cancelled, started, attached, listed;
	uint64_t stdin_taken;
	bool stdin_closed;
	Sandgate__CancelReason reason;
	ev_timer tick;
} fx;

static inline void peer_close(struct peer *p)
{
	if (p->fd >= 0)
		close(p->fd);
	free(p->in.data);
	free(p->out.data);
	*p = (struct peer){.fd = -1};
}

/* Move what can be moved without blocking. */
static inline void peer_pump(struct peer *p)
{
	uint8_t buf[65536];
	ssize_t n;
	if (p->fd < 0)
		return;
	while (p->out.len > 0 &&
	       (n = send(p->fd, p->out.data, p->out.len, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
		bytes_drop(&p->out, (size_t)n);
	while (!p->deaf && (n = recv(p->fd, buf, sizeof(buf), MSG_DONTWAIT)) >= 0) {
		if (n == 0) {
			p->eof = true;
			break;
		}
		bytes_add(&p->in, buf, (size_t)n);
	}
}

/* ---- the agent ---- */

static inline void put(struct peer *p, Sandgate__GuestFrame *f,
                       Sandgate__GuestFrame__BodyCase body)
{
	f->body_case = body;
	uint8_t *wire = malloc(frame_size(&f->base));
	size_t n = frame_write(&f->base, wire);
	bytes_add(&p->out, wire, n);
	free(wire);
}

static inline void put_opened(struct peer *p)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Opened o = SANDGATE__OPENED__INIT;
	o.protocol_version = PROTOCOL_VERSION;
	f.opened = &o;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_OPENED);
}

static inline void put_started(struct peer *p, bool existing, bool owner)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Started s = SANDGATE__STARTED__INIT;
	s.exec_id = (char *)"x";
	s.started_at_ms = 1;
	s.existing = existing;
	s.owner = owner;
	f.started = &s;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_STARTED);
}

static inline void put_info(struct peer *p)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__InfoReply i = SANDGATE__INFO_REPLY__INIT;
	i.protocol_version = PROTOCOL_VERSION;
	f.info = &i;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_INFO);
}

static inline void put_state(struct peer *p)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__ExecState s = SANDGATE__EXEC_STATE__INIT;
	Sandgate__Result r = SANDGATE__RESULT__INIT;
	s.exec_id = (char *)"x";
	s.phase = fx.finished ? SANDGATE__EXEC_PHASE__PHASE_FINISHED
	                      : SANDGATE__EXEC_PHASE__PHASE_RUNNING;
	s.end_sequence = fx.output.len;
	s.stdin_offset = fx.stdin_taken;
	s.result = fx.finished ? &r : NULL;
	r.outcome = SANDGATE__OUTCOME__OUTCOME_EXITED;
	f.exec_state = &s;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE);
}

static inline void put_done(struct peer *p)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Done d = SANDGATE__DONE__INIT;
	f.done = &d;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_DONE);
}

static inline void put_stdin_ack(struct peer *p)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__StdinAck a = SANDGATE__STDIN_ACK__INIT;
	a.offset = fx.stdin_taken;
	a.closed = fx.stdin_closed;
	f.stdin_ack = &a;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
}

static inline void put_list(struct peer *p)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__ExecList l = SANDGATE__EXEC_LIST__INIT;
	Sandgate__ExecState s = SANDGATE__EXEC_STATE__INIT, *execs[] = {&s};
	s.exec_id = (char *)"x";
	s.has_deadline = !fx.finished;
	l.execs = execs;
	l.n_execs = 1;
	f.exec_list = &l;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_EXEC_LIST);
	put_done(p);
	fx.listed++;
}

static inline void put_not_found(struct peer *p)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Refused r = SANDGATE__REFUSED__INIT;
	r.code = ERR_EXEC_NOT_FOUND;
	r.message = (char *)"no such exec";
	f.refused = &r;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_REFUSED);
}

static inline void put_output(struct peer *p)
{
	while (p->next < fx.output.len) {
		Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
		Sandgate__Output o = SANDGATE__OUTPUT__INIT;
		size_t n =
		    fx.output.len - p->next < CHUNK_MAX ? fx.output.len - p->next : CHUNK_MAX;
		o.sequence = p->next;
		o.data = (ProtobufCBinaryData){n, fx.output.data + p->next};
		f.output = &o;
		put(p, &f, SANDGATE__GUEST_FRAME__BODY_OUTPUT);
		p->next += n;
	}
	if (!fx.finished || p->exited)
		return;
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Exit x = SANDGATE__EXIT__INIT;
	Sandgate__Result r = SANDGATE__RESULT__INIT;
	r.outcome = SANDGATE__OUTCOME__OUTCOME_EXITED;
	r.exit_code = 7;
	r.stdout_bytes = fx.output.len;
	x.sequence = fx.output.len;
	x.result = &r;
	f.exit = &x;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_EXIT);
	p->exited = true;
}

static inline void agent_open(struct peer *p, const Sandgate__Open *o)
{
	bool asks = o->op_case == SANDGATE__OPEN__OP_ATTACH ||
	            o->op_case == SANDGATE__OPEN__OP_EXEC_INFO;
	bool known = !asks || !fx.vanished;
	if (fx.hang_ups > 0) {
		fx.hang_ups--;
		p->eof = true;
		return;
	}
	if (!known) {
		put_not_found(p);
		return;
	}
	put_opened(p);
	switch (o->op_case) {
	case SANDGATE__OPEN__OP_INFO:
		put_info(p);
		break;
	case SANDGATE__OPEN__OP_EXEC_INFO:
		put_state(p);
		break;
	case SANDGATE__OPEN__OP_LIST_EXECS:
		put_list(p);
		break;
	case SANDGATE__OPEN__OP_EXEC:
		fx.started++;
		fx.keeps = o->exec->keep_output;
		p->watches = true;
		p->owns = !fx.exists;
		put_started(p, fx.exists, p->owns);
		break;
	case SANDGATE__OPEN__OP_ATTACH:
		fx.attached++;
		p->watches = o->attach->role != SANDGATE__ROLE__ROLE_CONTROL;
		p->owns = o->attach->role == SANDGATE__ROLE__ROLE_OWNER;
		p->next = o->attach->offset;
		if (p->watches)
			put_started(p, true, p->owns);
		else
			put_state(p);
		break;
	default:
		break;
	}
}

static inline void agent_frame(struct peer *p, const Sandgate__HostFrame *h)
{
	if (h->body_case == SANDGATE__HOST_FRAME__BODY_OPEN)
		agent_open(p, h->open);
	if (h->body_case == SANDGATE__HOST_FRAME__BODY_CANCEL) {
		bool ends =
		    p->owns || h->cancel->reason != SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE;
		fx.cancelled += ends;
		fx.reason = h->cancel->reason;
		put_done(p);
	}
	if (h->body_case == SANDGATE__HOST_FRAME__BODY_RELEASE)
		fx.released++;
	if (h->body_case == SANDGATE__HOST_FRAME__BODY_STDIN) {
		fx.stdin_taken += fx.stdin_closed ? 0 : h->stdin->data.len;
		put_stdin_ack(p);
	}
	if (h->body_case == SANDGATE__HOST_FRAME__BODY_CLOSE_STDIN) {
		fx.stdin_closed = true;
		put_stdin_ack(p);
	}
}

static inline void agent_pump(struct peer *p)
{
	struct frame f;
	peer_pump(p);
	while (p->fd >= 0 && p->in.len > 0 &&
	       frame_parse(p->in.data, p->in.len, FRAME_MAX_TO_GUEST, &f) == FRAME_OK) {
		Sandgate__HostFrame *h =
		    sandgate__host_frame__unpack(NULL, f.payload_len, f.payload);
		agent_frame(p, h);
		sandgate__host_frame__free_unpacked(h, NULL);
		bytes_drop(&p->in, f.consumed);
	}
	if (p->fd >= 0 && p->watches)
		put_output(p);
	if (p->eof)
		peer_close(p);
}

/* Break off every session that is attached to the exec. */
static inline void agent_cut(void)
{
	for (size_t i = 0; i < fx.agent_count; i++)
		if (fx.agents[i].watches)
			peer_close(&fx.agents[i]);
}

/* Sessions that are attached to the exec's output now. */
static inline size_t agent_watchers(void)
{
	size_t n = 0;
	for (size_t i = 0; i < fx.agent_count; i++)
		n += fx.agents[i].fd >= 0 && fx.agents[i].watches;
	return n;
}

static inline void on_tick(struct ev_loop *loop, ev_timer *w, int revents)
{
	int fd;
	(void)loop;
	(void)w;
	(void)revents;
	while ((fd = accept(fx.agent_fd, NULL, NULL)) >= 0) {
		ck_assert_uint_lt(fx.agent_count, PEERS_MAX);
		fx.agents[fx.agent_count++] = (struct peer){.fd = fd};
	}
	for (size_t i = 0; i < fx.agent_count; i++)
		agent_pump(&fx.agents[i]);
}

/* ---- the whole ---- */

static inline int listen_at(const char *name)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s/%s", fx.dir, name);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(fd, 512), 0);
	return fd;
}

/* Turn the loop and the given clients until `condition` (of `arg`) holds. */
static inline void until(bool (*condition)(void *arg), void *arg, struct peer *clients,
                         size_t count)
{
	ev_tstamp deadline = ev_time() + PATIENCE_S;
	while (!condition(arg)) {
		ck_assert_msg(ev_time() < deadline, "the condition never came true");
		ev_run(fx.loop, EVRUN_ONCE);
		for (size_t i = 0; i < count; i++)
			peer_pump(&clients[i]);
	}
}

static inline bool sandbox_runs(void *arg)
{
	return sandbox_status(arg) == SANDBOX_RUNNING;
}

static inline void on_created(struct sandbox *s, const struct err *e, void *arg)
{
	(void)s;
	(void)arg;
	ck_assert_msg(e == NULL, "%s", e != NULL ? e->msg : "");
}

static inline void fixture_setup(void)
{
	struct err e;
	memset(&fx, 0, sizeof(fx));
	strcpy(fx.dir, "/tmp/check_api.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(fx.dir));
	ck_assert_int_ge(sodium_init(), 0);
	fx.agent_fd = listen_at("agent");
	fx.loop = ev_loop_new(EVFLAG_AUTO);
	ev_timer_init(&fx.tick, on_tick, 0., 0.001);
	ev_timer_start(fx.loop, &fx.tick);

	struct sandbox_set_config set = {.state_dir = fx.dir,
	                                 .rootfs_dir = fx.dir,
	                                 .node = "test",
	                                 .launcher = "local",
	                                 .agent_path = "/bin/true"};
	struct http_handlers handlers = api_handlers;
	fx.api = (struct api){.loop = fx.loop, .settings = &fx.settings};
	fx.api.metrics = metrics_create();
	fx.api.calls = call_set_create();
	fx.api.hubs = hub_set_create();
	fx.api.vigils = vigil_set_create();
	fx.api.auth = auth_create(fx.loop, "", "t", &e);
	fx.api.audit = audit_open("", &e);
	fx.api.sandboxes = sandbox_set_create(fx.loop, &set, &e);
	ck_assert_msg(fx.api.sandboxes != NULL, "%s", e.msg);
	fx.api.quota = quota_create(&fx.api, &e);
	handlers.arg = &fx.api;
	fx.api.http = http_server_create(fx.loop, &handlers, &e);
	ck_assert_int_eq(http_server_listen(fx.api.http, listen_at("http"), &e), 0);

	struct sandbox_spec spec = {.workspace = "default", .attach = true};
	spec.metadata = json_object();
	spec.endpoint.kind = TRANSPORT_UNIX;
	snprintf(spec.endpoint.path, sizeof(spec.endpoint.path), "%s/agent", fx.dir);
	struct sandbox *s = sandbox_create(fx.api.sandboxes, &spec, on_created, NULL, &e);
	json_decref(spec.metadata);
	ck_assert_msg(s != NULL, "%s", e.msg);
	strcpy(fx.id, sandbox_id(s));
	until(sandbox_runs, s, NULL, 0);
}

static inline void fixture_teardown(void)
{
	http_server_destroy(fx.api.http);
	call_set_destroy(fx.api.calls);
	hub_set_destroy(fx.api.hubs);
	vigil_set_destroy(fx.api.vigils);
	quota_destroy(fx.api.quota);
	sandbox_set_destroy(fx.api.sandboxes);
	audit_close(fx.api.audit);
	auth_destroy(fx.api.auth);
	metrics_destroy(fx.api.metrics);
	for (size_t i = 0; i < fx.agent_count; i++)
		peer_close(&fx.agents[i]);
	free(fx.output.data);
	ev_timer_stop(fx.loop, &fx.tick);
	ev_run(fx.loop, 0); /* links that linger for their last word */
	ev_loop_destroy(fx.loop);
	close(fx.agent_fd);
	remove_tree(fx.dir);
}

/* ---- clients ---- */

/* Send a request; `path` is what follows the sandbox's own. */
static inline void request(struct peer *c, const char *method, const char *path,
                           const char *headers, const char *body)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char head[1024];
	snprintf(a.sun_path, sizeof(a.sun_path), "%s/http", fx.dir);
	*c = (struct peer){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	ck_assert_int_eq(connect(c->fd, (struct sockaddr *)&a, sizeof(a)), 0);
	int n = snprintf(head, sizeof(head),
	                 "%s /v1/sandboxes/%s%s HTTP/1.1\r\nHost: x\r\n"
	                 "Authorization: Bearer t\r\nContent-Length: %zu\r\n%s\r\n",
	                 method, fx.id, path, strlen(body), headers);
	bytes_add(&c->out, head, (size_t)n);
	bytes_add(&c->out, body, strlen(body));
	peer_pump(c);
}

static inline bool has(const struct peer *c, const char *text)
{
	return c->in.len > 0 && memmem(c->in.data, c->in.len, text, strlen(text)) != NULL;
}

static inline void agent_writes(const char *text)
{
	bytes_add(&fx.output, text, strlen(text));
}

#endif
