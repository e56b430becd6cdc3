/* What a session's frames ask for, and what an exec has for its session. */
#include <stdlib.h>
#include <string.h>

#include "guest-agent/agent.h"
#include "guest-agent/session_private.h"
#include "proto/clock.h"
#include "proto/frame.h"
#include "proto/limits.h"

static struct exec_table *table_of(const struct session *s)
{
	return agent_table(s->set->agent);
}

void session_put_opened(struct session *s)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Opened o = SANDGATE__OPENED__INIT;
	agent_fill_opened(s->set->agent, &o);
	g.body_case = SANDGATE__GUEST_FRAME__BODY_OPENED;
	g.opened = &o;
	session_put(s, &g);
}

void session_put_done(struct session *s)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Done d = SANDGATE__DONE__INIT;
	g.body_case = SANDGATE__GUEST_FRAME__BODY_DONE;
	g.done = &d;
	session_put(s, &g);
}

static void put_exec_state(struct session *s, const struct exec *x)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__ExecState state;
	exec_describe(x, &state);
	g.body_case = SANDGATE__GUEST_FRAME__BODY_EXEC_STATE;
	g.exec_state = &state;
	session_put(s, &g);
}

void session_put_stdin_ack(struct session *s)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__StdinAck a = SANDGATE__STDIN_ACK__INIT;
	a.offset = exec_stdin_offset(s->peer.exec);
	a.closed = exec_stdin_closed(s->peer.exec);
	g.body_case = SANDGATE__GUEST_FRAME__BODY_STDIN_ACK;
	g.stdin_ack = &a;
	session_put(s, &g);
}

static void put_started(struct session *s)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Started m = SANDGATE__STARTED__INIT;
	m.exec_id = (char *)exec_request(s->peer.exec)->id;
	m.started_at_ms = exec_started_at(s->peer.exec);
	m.existing = s->existing;
	m.owner = s->peer.role == SANDGATE__ROLE__ROLE_OWNER;
	g.body_case = SANDGATE__GUEST_FRAME__BODY_STARTED;
	g.started = &m;
	session_put(s, &g);
}

/* ---- what the exec has for us ---- */

static void on_news(struct exec_peer *p)
{
	session_touch((struct session *)((char *)p - offsetof(struct session, peer)));
}

static void on_replaced(struct exec_peer *p)
{
	struct session *s = (struct session *)((char *)p - offsetof(struct session, peer));
	struct err e = {0};
	err_field(&e, ERR_EXEC_ID_CONFLICT, "exec_id", "another owner took the exec over");
	session_refuse(s, &e, NULL);
}

void session_ops_init(struct session *s)
{
	s->peer.on_news = on_news;
	s->peer.on_replaced = on_replaced;
}

/* Write nothing for so long, unless what is waited for comes before: a command that ends at
 * once costs one packet, not three. */
static void hold(struct session *s, unsigned ms)
{
	s->holds = true;
	ev_timer_stop(s->set->loop, &s->timer);
	ev_timer_set(&s->timer, ms / 1000.0, 0);
	ev_timer_start(s->set->loop, &s->timer);
}

void session_pull(struct session *s)
{
	struct exec *x = s->peer.exec;
	if (x == NULL)
		return;
	if (s->acks_owed > 0 && !exec_stdin_full(x))
		for (; s->acks_owed > 0; s->acks_owed--)
			session_put_stdin_ack(s);
	if (s->peer.role == SANDGATE__ROLE__ROLE_CONTROL || exec_state(x) == EXEC_STARTING)
		return;
	bool now = s->only_start || s->peer.cursor.seq < ring_end(exec_ring(x)) ||
	           exec_result(x) != NULL;
	if (s->started_sent) {
		if (now)
			session_unhold(s);
		return;
	}
	if (exec_was_started(x))
		put_started(s);
	s->started_sent = true;
	if (now)
		session_unhold(s);
	else if (s->holds)
		hold(s, STARTED_HOLD_MS);
	if (s->only_start && exec_was_started(x))
		session_close_when_sent(s);
}

bool session_wants_exit(const struct session *s, const struct ring_cursor *at)
{
	const struct exec *x = s->peer.exec;
	return !s->exit_sent && exec_result(x) != NULL && at->seq >= ring_end(exec_ring(x));
}

void session_exit_frame(const struct session *s, Sandgate__GuestFrame *g, Sandgate__Exit *m)
{
	m->sequence = ring_end(exec_ring(s->peer.exec));
	m->result = (Sandgate__Result *)exec_result(s->peer.exec);
	g->body_case = SANDGATE__GUEST_FRAME__BODY_EXIT;
	g->exit = m;
}

/* ---- operations ---- */

static int attach(struct session *s, struct exec *x, Sandgate__Role role, uint64_t offset,
                  struct err *e)
{
	if (offset > ring_end(exec_ring(x)))
		return err_field(e, ERR_INVALID_FIELD, "offset", "offset is beyond the output");
	exec_attach(x, &s->peer, role, offset);
	session_put_opened(s);
	if (role == SANDGATE__ROLE__ROLE_CONTROL) {
		put_exec_state(s, x);
	} else if (exec_state(x) == EXEC_STARTING) {
		hold(s, OPENED_HOLD_MS);
	}
	return 0;
}

/* A detached exec has no owner from the start: its session only waits for Started. A
 * repeated start takes the exec from nobody. */
static int op_exec(struct session *s, Sandgate__Exec *m, struct err *e)
{
	struct exec *x = exec_table_start(table_of(s), m, &s->existing, e);
	if (x == NULL)
		return -1;
	s->only_start = exec_request(x)->detached;
	return attach(
	    s, x, s->only_start ? SANDGATE__ROLE__ROLE_OUTPUT : SANDGATE__ROLE__ROLE_STANDBY, 0,
	    e);
}

static int op_attach(struct session *s, const Sandgate__Attach *m, struct err *e)
{
	struct exec *x = exec_table_find(table_of(s), m->exec_id, e);
	if (x == NULL)
		return -1;
	if (m->role > SANDGATE__ROLE__ROLE_STANDBY)
		return err_field(e, ERR_INVALID_FIELD, "role", "unknown role");
	s->existing = true;
	return attach(s, x, m->role, m->offset, e);
}

/* A list is sent in as many frames as it needs, each well under the cap; Done follows. */
struct listing {
	struct session *s;
	Sandgate__ExecList list;
	Sandgate__ExecState states[LIST_FRAME_EXECS], *pointers[LIST_FRAME_EXECS];
};

static void put_list(struct listing *l)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	g.body_case = SANDGATE__GUEST_FRAME__BODY_EXEC_LIST;
	g.exec_list = &l->list;
	session_put(l->s, &g);
	l->list.n_execs = 0;
}

static void on_listed(struct exec *x, void *arg)
{
	struct listing *l = arg;
	if (l->list.n_execs == LIST_FRAME_EXECS)
		put_list(l);
	size_t i = l->list.n_execs++;
	exec_describe(x, &l->states[i]);
	l->pointers[i] = &l->states[i];
}

static int op_list(struct session *s, const Sandgate__ListExecs *m, struct err *e)
{
	struct listing *l = calloc(1, sizeof(*l));
	if (l == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	l->s = s;
	sandgate__exec_list__init(&l->list);
	l->list.execs = l->pointers;
	session_put_opened(s);
	exec_table_each(table_of(s), on_listed, l);
	put_list(l);
	session_put_done(s);
	free(l);
	s->follows = m->follow;
	s->set->followers += s->follows;
	if (!s->follows)
		session_close_when_sent(s);
	return 0;
}

void session_set_exec_ended(const struct exec *x, void *arg)
{
	struct session_set *set = arg;
	struct session *s;
	if (set->followers == 0)
		return;
	TAILQ_FOREACH (s, &set->all, in_all) {
		if (!s->follows || s->state != SESSION_SERVING)
			continue;
		put_exec_state(s, x);
		if (outq_len(&s->out) > FOLLOW_QUEUE_MAX)
			s->broken = true;
	}
}

static int op_exec_info(struct session *s, const Sandgate__ExecInfo *m, struct err *e)
{
	const struct exec *x = exec_table_find(table_of(s), m->exec_id, e);
	if (x == NULL)
		return -1;
	session_put_opened(s);
	put_exec_state(s, x);
	session_close_when_sent(s);
	return 0;
}

static int op_forget(struct session *s, const Sandgate__ForgetExec *m, struct err *e)
{
	if (exec_table_forget(table_of(s), m->exec_id, e) < 0)
		return -1;
	session_put_opened(s);
	session_put_done(s);
	session_close_when_sent(s);
	return 0;
}

static void on_shut_down(void *arg)
{
	struct session *s = arg;
	session_put_done(s);
	session_close_when_sent(s);
}

static int op_shutdown(struct session *s, const Sandgate__Shutdown *m, struct err *e)
{
	if (m->grace_ms > EXEC_GRACE_MAX_S * 1000ull)
		return err_field(e, ERR_INVALID_FIELD, "grace_seconds", "over %d s",
		                 EXEC_GRACE_MAX_S);
	session_put_opened(s);
	s->watches_shutdown = true;
	agent_shutdown(s->set->agent, m->grace_ms, on_shut_down, s);
	return 0;
}

static int op_info(struct session *s, Sandgate__Open__OpCase op)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__InfoReply info = SANDGATE__INFO_REPLY__INIT;
	Sandgate__MetricsReply metrics = SANDGATE__METRICS_REPLY__INIT;
	Sandgate__Pong pong = SANDGATE__PONG__INIT;

	session_put_opened(s);
	if (op == SANDGATE__OPEN__OP_INFO) {
		agent_fill_info(s->set->agent, &info);
		g.body_case = SANDGATE__GUEST_FRAME__BODY_INFO;
		g.info = &info;
	} else if (op == SANDGATE__OPEN__OP_METRICS) {
		agent_fill_metrics(s->set->agent, &metrics);
		g.body_case = SANDGATE__GUEST_FRAME__BODY_METRICS;
		g.metrics = &metrics;
	} else {
		pong.monotonic_us = clock_us(CLOCK_MONOTONIC);
		g.body_case = SANDGATE__GUEST_FRAME__BODY_PONG;
		g.pong = &pong;
	}
	session_put(s, &g);
	session_close_when_sent(s);
	return 0;
}

static int unknown_op(const ProtobufCMessage *m, struct err *e)
{
	return err_set(e, ERR_INCOMPATIBLE, "operation %u is not known to this agent",
	               m->n_unknown_fields > 0 ? m->unknown_fields[0].tag : 0);
}

static bool token_is_right(ProtobufCBinaryData got, const struct config *c)
{
	uint8_t differs = got.len != c->token_len;
	for (size_t i = 0; i < got.len && c->token_len > 0; i++)
		differs |= got.data[i] ^ c->token[i % c->token_len];
	return !differs;
}

static int check_open(const struct session *s, const Sandgate__Open *open, struct err *e)
{
	const struct config *c = agent_config(s->set->agent);

	if (open->protocol_version < PROTOCOL_VERSION_MIN)
		return err_set(e, ERR_INCOMPATIBLE, "protocol version %u is too old",
		               open->protocol_version);
	if (c->token == NULL && c->token_file == NULL)
		return 0; /* a file that could not be read lets nobody in */
	if (open->token.len == 0)
		return err_set(e, ERR_MISSING_TOKEN, "this agent asks for a token");
	if (!token_is_right(open->token, c))
		return err_set(e, ERR_INVALID_TOKEN, "the token is wrong");
	return 0;
}

/* Between Prepare and Resume what would change or outlive the snapshot has to wait. */
static int check_state(const struct session *s, const Sandgate__Open *open, struct err *e)
{
	if (snapshot_takes_work(agent_snapshot(s->set->agent)) ||
	    open->op_case >= SANDGATE__OPEN__OP_INFO || open->op_case == 0)
		return 0;
	return err_set(e, ERR_INVALID_STATE, "the guest is prepared for a snapshot");
}

static int dispatch(struct session *s, Sandgate__Open *open, struct err *e)
{
	if (check_open(s, open, e) < 0 || check_state(s, open, e) < 0)
		return -1;
	switch (open->op_case) {
	case SANDGATE__OPEN__OP_EXEC:
		return op_exec(s, open->exec, e);
	case SANDGATE__OPEN__OP_ATTACH:
		return op_attach(s, open->attach, e);
	case SANDGATE__OPEN__OP_LIST_EXECS:
		return op_list(s, open->list_execs, e);
	case SANDGATE__OPEN__OP_EXEC_INFO:
		return op_exec_info(s, open->exec_info, e);
	case SANDGATE__OPEN__OP_FORGET_EXEC:
		return op_forget(s, open->forget_exec, e);
	case SANDGATE__OPEN__OP_SHUTDOWN:
		return op_shutdown(s, open->shutdown, e);
	case SANDGATE__OPEN__OP_PREPARE:
		return session_prepare(s, e);
	case SANDGATE__OPEN__OP_RESUME:
		return session_resume(s, open->resume, e);
	case SANDGATE__OPEN__OP_INFO:
	case SANDGATE__OPEN__OP_METRICS:
	case SANDGATE__OPEN__OP_PING:
		return op_info(s, open->op_case);
	default:
		return unknown_op(&open->base, e);
	}
}

void session_open(struct session *s, Sandgate__Open *open)
{
	struct err e = {0};
	if (dispatch(s, open, &e) < 0)
		session_refuse(s, &e, NULL);
}
