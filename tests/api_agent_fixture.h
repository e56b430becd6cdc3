/*
 * For api_fixture.h: an agent in the test's own thread that knows one exec, "x", whose output
 * and end the test scripts. What it was asked and told is counted.
 */
#ifndef SANDGATE_API_AGENT_FIXTURE_H
#define SANDGATE_API_AGENT_FIXTURE_H

#include <check.h>
#include <ev.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/frame.h"
#include "proto/limits.h"
#include "proto/sandgate.pb-c.h"

#define AGENT_SESSIONS 256

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
	bool follows;             /* agent: it is told of ends */
	uint64_t next;            /* agent: next byte to send */
	bool exited, eof;
};

static bool agent_tells; /* who follows of ends: set before it starts */

static struct {
	int fd; /* where it listens */
	struct peer sessions[AGENT_SESSIONS];
	size_t session_count; /* accepted so far */
	ev_timer tick;
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
} agent;

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

/* ---- what it says ---- */

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
	static char *features[] = {(char *)"follow"};
	i.protocol_version = PROTOCOL_VERSION;
	i.features = features;
	i.n_features = agent_tells;
	f.info = &i;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_INFO);
}

static inline void put_state(struct peer *p)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__ExecState s = SANDGATE__EXEC_STATE__INIT;
	Sandgate__Result r = SANDGATE__RESULT__INIT;
	s.exec_id = (char *)"x";
	s.phase = agent.finished ? SANDGATE__EXEC_PHASE__PHASE_FINISHED
	                         : SANDGATE__EXEC_PHASE__PHASE_RUNNING;
	s.end_sequence = agent.output.len;
	s.stdin_offset = agent.stdin_taken;
	s.result = agent.finished ? &r : NULL;
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
	a.offset = agent.stdin_taken;
	a.closed = agent.stdin_closed;
	f.stdin_ack = &a;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
}

static inline void put_list(struct peer *p)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__ExecList l = SANDGATE__EXEC_LIST__INIT;
	Sandgate__ExecState s = SANDGATE__EXEC_STATE__INIT, *execs[] = {&s};
	Sandgate__Result r = SANDGATE__RESULT__INIT;
	r.outcome = SANDGATE__OUTCOME__OUTCOME_EXITED;
	s.exec_id = (char *)"x";
	s.has_deadline = !agent.finished;
	s.phase = agent.finished ? SANDGATE__EXEC_PHASE__PHASE_FINISHED
	                         : SANDGATE__EXEC_PHASE__PHASE_RUNNING;
	s.result = agent.finished ? &r : NULL;
	l.execs = execs;
	l.n_execs = !agent.vanished;
	f.exec_list = &l;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_EXEC_LIST);
	put_done(p);
	agent.listed++;
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
	while (p->next < agent.output.len) {
		Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
		Sandgate__Output o = SANDGATE__OUTPUT__INIT;
		size_t n = agent.output.len - p->next < CHUNK_MAX ? agent.output.len - p->next
		                                                  : CHUNK_MAX;
		o.sequence = p->next;
		o.data = (ProtobufCBinaryData){n, agent.output.data + p->next};
		f.output = &o;
		put(p, &f, SANDGATE__GUEST_FRAME__BODY_OUTPUT);
		p->next += n;
	}
	if (!agent.finished || p->exited)
		return;
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Exit x = SANDGATE__EXIT__INIT;
	Sandgate__Result r = SANDGATE__RESULT__INIT;
	r.outcome = SANDGATE__OUTCOME__OUTCOME_EXITED;
	r.exit_code = 7;
	r.stdout_bytes = agent.output.len;
	x.sequence = agent.output.len;
	x.result = &r;
	f.exit = &x;
	put(p, &f, SANDGATE__GUEST_FRAME__BODY_EXIT);
	p->exited = true;
}

/* ---- what it is told ---- */

static inline void agent_open(struct peer *p, const Sandgate__Open *o)
{
	bool asks = o->op_case == SANDGATE__OPEN__OP_ATTACH ||
	            o->op_case == SANDGATE__OPEN__OP_EXEC_INFO;
	bool known = !asks || !agent.vanished;
	if (agent.hang_ups > 0) {
		agent.hang_ups--;
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
		p->follows = o->list_execs->follow;
		put_list(p);
		break;
	case SANDGATE__OPEN__OP_EXEC:
		agent.started++;
		agent.keeps = o->exec->keep_output;
		p->watches = true;
		p->owns = !agent.exists;
		put_started(p, agent.exists, p->owns);
		break;
	case SANDGATE__OPEN__OP_ATTACH:
		agent.attached++;
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
		agent.cancelled += ends;
		agent.reason = h->cancel->reason;
		put_done(p);
	}
	if (h->body_case == SANDGATE__HOST_FRAME__BODY_RELEASE)
		agent.released++;
	if (h->body_case == SANDGATE__HOST_FRAME__BODY_STDIN) {
		agent.stdin_taken += agent.stdin_closed ? 0 : h->stdin->data.len;
		put_stdin_ack(p);
	}
	if (h->body_case == SANDGATE__HOST_FRAME__BODY_CLOSE_STDIN) {
		agent.stdin_closed = true;
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

/* Break off every session that is attached to the exec, or follows. */
static inline void agent_cut(void)
{
	for (size_t i = 0; i < agent.session_count; i++)
		if (agent.sessions[i].watches || agent.sessions[i].follows)
			peer_close(&agent.sessions[i]);
}

/* Sessions that follow now; each is told that the exec has ended, if it has. */
static inline size_t agent_followers(void)
{
	size_t n = 0;
	for (size_t i = 0; i < agent.session_count; i++) {
		struct peer *p = &agent.sessions[i];
		if (p->fd < 0 || !p->follows)
			continue;
		n++;
		if (agent.finished && !p->exited)
			put_state(p);
		p->exited = agent.finished;
	}
	return n;
}

/* Sessions that are attached to the exec's output now. */
static inline size_t agent_watchers(void)
{
	size_t n = 0;
	for (size_t i = 0; i < agent.session_count; i++)
		n += agent.sessions[i].fd >= 0 && agent.sessions[i].watches;
	return n;
}

/* Everything that was written is out of the agent's hands. */
static inline bool agent_is_drained(void)
{
	for (size_t i = 0; i < agent.session_count; i++) {
		const struct peer *p = &agent.sessions[i];
		if (p->fd >= 0 && p->watches && (p->next < agent.output.len || p->out.len > 0))
			return false;
	}
	return true;
}

static inline void on_agent_tick(struct ev_loop *loop, ev_timer *w, int revents)
{
	int fd;
	(void)loop;
	(void)w;
	(void)revents;
	while ((fd = accept(agent.fd, NULL, NULL)) >= 0) {
		ck_assert_uint_lt(agent.session_count, AGENT_SESSIONS);
		agent.sessions[agent.session_count++] = (struct peer){.fd = fd};
	}
	for (size_t i = 0; i < agent.session_count; i++)
		agent_pump(&agent.sessions[i]);
}

static inline void agent_writes(const char *text)
{
	bytes_add(&agent.output, text, strlen(text));
}

/* `fd` listens, and is the agent's from now on. */
static inline void agent_start(struct ev_loop *loop, int fd)
{
	memset(&agent, 0, sizeof(agent));
	agent.fd = fd;
	ev_timer_init(&agent.tick, on_agent_tick, 0., 0.001);
	ev_timer_start(loop, &agent.tick);
}

static inline void agent_stop(struct ev_loop *loop)
{
	for (size_t i = 0; i < agent.session_count; i++)
		peer_close(&agent.sessions[i]);
	free(agent.output.data);
	ev_timer_stop(loop, &agent.tick);
	close(agent.fd);
}

#endif
