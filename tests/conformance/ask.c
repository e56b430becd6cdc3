#include "tests/conformance/ask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "proto/limits.h"

static void *allocate(size_t n)
{
	void *p = calloc(1, n);

	if (!p)
		fail("out of memory");
	return p;
}

ProtobufCBinaryData ask_text(const char *s)
{
	return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)strdup(s)};
}

Sandgate__Uint64Value *ask_number(uint64_t value)
{
	Sandgate__Uint64Value *v = allocate(sizeof(*v));

	sandgate__uint64_value__init(v);
	v->value = value;
	return v;
}

char *ask_id(void)
{
	uint64_t random;
	char *id = allocate(EXEC_ID_MAX + 1);

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		fail("getrandom");
	snprintf(id, EXEC_ID_MAX + 1, "conformance-%016llx", (unsigned long long)random);
	return id;
}

static Sandgate__Exec new_exec(void)
{
	Sandgate__Exec e = SANDGATE__EXEC__INIT;

	e.exec_id = ask_id();
	e.request_digest = ask_text(e.exec_id);
	e.timeout_ms = 10000;
	e.grace_ms = 200;
	e.link_grace_ms = 1000;
	return e;
}

Sandgate__Exec ask_sh(const char *cmd)
{
	Sandgate__Exec e = new_exec();

	e.cmd = ask_text(cmd);
	return e;
}

Sandgate__Exec ask_argv(const char *const argv[])
{
	Sandgate__Exec e = new_exec();

	while (argv[e.n_argv])
		e.n_argv++;
	e.argv = allocate(e.n_argv * sizeof(*e.argv));
	for (size_t i = 0; i < e.n_argv; i++)
		e.argv[i] = ask_text(argv[i]);
	return e;
}

Sandgate__HostFrame *ask_open(const struct target *t, Sandgate__Open__OpCase op, void *body)
{
	Sandgate__HostFrame *frame = allocate(sizeof(*frame));
	Sandgate__Open *open = allocate(sizeof(*open));

	sandgate__host_frame__init(frame);
	sandgate__open__init(open);
	open->protocol_version = PROTOCOL_VERSION;
	open->token.data = (uint8_t *)t->token;
	open->token.len = t->token_len;
	open->op_case = op;
	open->ping = body; /* the members of the union are all pointers to a message */
	frame->body_case = SANDGATE__HOST_FRAME__BODY_OPEN;
	frame->open = open;
	return frame;
}

/* The descriptors have no names: they would take room in the agent. */
static const char *name_of(Sandgate__GuestFrame__BodyCase body)
{
	static const char *const names[] = {
	    "no body", "opened",    "refused",   "started",    "output",    "gap",
	    "exit",    "stdin_ack", "done",      "exec_state", "exec_list", "info",
	    "pong",    "metrics",   "suspended", "prepared",   "resumed"};

	return body < sizeof(names) / sizeof(names[0]) ? names[body] : "an unknown frame";
}

static const char *kind(const Sandgate__GuestFrame *m)
{
	static char text[300];

	if (!m)
		return "the connection's end";
	if (m->body_case == SANDGATE__GUEST_FRAME__BODY_REFUSED) {
		snprintf(text, sizeof(text), "refused (%u %s, field '%s': %.120s)",
		         m->refused->code, err_name(err_from_wire(m->refused->code)),
		         m->refused->field, m->refused->message);
		return text;
	}
	return name_of(m->body_case);
}

Sandgate__GuestFrame *ask_next(struct conn *c, Sandgate__GuestFrame__BodyCase want)
{
	Sandgate__GuestFrame *m = conn_recv(c, CONN_WAIT_MS);

	if (!m || m->body_case != want)
		fail("expected %s, got %s", name_of(want), kind(m));
	return m;
}

struct conn *ask_session(const struct target *t, Sandgate__Open__OpCase op, void *body)
{
	struct conn *c = conn_dial(t);

	if (!conn_send(c, ask_open(t, op, body)))
		fail("the agent closed before it had read Open");
	ask_next(c, SANDGATE__GUEST_FRAME__BODY_OPENED);
	return c;
}

Sandgate__GuestFrame *ask_once(const struct target *t, Sandgate__Open__OpCase op, void *body,
                               Sandgate__GuestFrame__BodyCase want)
{
	struct conn *c = ask_session(t, op, body);
	Sandgate__GuestFrame *m = ask_next(c, want);

	conn_close(c);
	return m;
}

Sandgate__Refused *ask_next_refused(struct conn *c, enum err_code code)
{
	Sandgate__GuestFrame *m = conn_recv(c, CONN_WAIT_MS);

	while (m && (m->body_case == SANDGATE__GUEST_FRAME__BODY_OPENED ||
	             m->body_case == SANDGATE__GUEST_FRAME__BODY_STARTED))
		m = conn_recv(c, CONN_WAIT_MS);
	if (!m || m->body_case != SANDGATE__GUEST_FRAME__BODY_REFUSED)
		fail("expected refused, got %s", kind(m));
	if (code != ERR_NONE && m->refused->code != code)
		fail("expected refused with %s, got %s", err_name(code), kind(m));
	if (conn_recv(c, CONN_WAIT_MS))
		fail("a frame follows refused");
	return m->refused;
}

Sandgate__Refused *ask_refused(const struct target *t, Sandgate__Open__OpCase op, void *body,
                               enum err_code code)
{
	struct conn *c = conn_dial(t);

	conn_send(c, ask_open(t, op, body));
	return ask_next_refused(c, code);
}

void ask_alive(const struct target *t)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;

	ask_once(t, SANDGATE__OPEN__OP_PING, &ping, SANDGATE__GUEST_FRAME__BODY_PONG);
}

bool ask_feature(const struct target *t, const char *name)
{
	Sandgate__Info info = SANDGATE__INFO__INIT;
	Sandgate__GuestFrame *m =
	    ask_once(t, SANDGATE__OPEN__OP_INFO, &info, SANDGATE__GUEST_FRAME__BODY_INFO);

	for (size_t i = 0; i < m->info->n_features; i++)
		if (strcmp(m->info->features[i], name) == 0)
			return true;
	return false;
}

struct conn *ask_start(const struct target *t, Sandgate__Exec *e)
{
	struct conn *c = ask_session(t, SANDGATE__OPEN__OP_EXEC, e);
	Sandgate__GuestFrame *m = ask_next(c, SANDGATE__GUEST_FRAME__BODY_STARTED);

	if (strcmp(m->started->exec_id, e->exec_id) != 0)
		fail("started names another exec: %s", m->started->exec_id);
	return c;
}

struct conn *ask_attach(const struct target *t, const char *id, Sandgate__Role role,
                        uint64_t offset)
{
	Sandgate__Attach attach = SANDGATE__ATTACH__INIT;

	attach.exec_id = (char *)id;
	attach.role = role;
	attach.offset = offset;
	return ask_session(t, SANDGATE__OPEN__OP_ATTACH, &attach);
}

static void take_output(struct ask_end *end, const Sandgate__Output *o)
{
	unsigned s = o->stream;

	if (s > 1)
		fail("output of an unknown stream %u", s);
	if (o->data.len == 0 || o->data.len > CHUNK_MAX)
		fail("a chunk of %zu bytes", o->data.len);
	if (o->sequence != end->sequence)
		fail("output at sequence %llu where %llu was due",
		     (unsigned long long)o->sequence, (unsigned long long)end->sequence);
	size_t needed = end->len[s] + o->data.len + 1;
	if (needed > end->room[s]) {
		end->room[s] = 2 * needed;
		end->bytes[s] = realloc(end->bytes[s], end->room[s]);
	}
	if (!end->bytes[s])
		fail("out of memory");
	memcpy(end->bytes[s] + end->len[s], o->data.data, o->data.len);
	end->len[s] += o->data.len;
	end->bytes[s][end->len[s]] = '\0';
	end->sequence += o->data.len;
}

static void take_gap(struct ask_end *end, const Sandgate__Gap *g)
{
	if (g->bytes == 0 || g->sequence != end->sequence)
		fail("a gap of %llu at %llu where %llu was due", (unsigned long long)g->bytes,
		     (unsigned long long)g->sequence, (unsigned long long)end->sequence);
	end->gap += g->bytes;
	end->sequence += g->bytes;
}

struct ask_end ask_end(struct conn *c, uint64_t offset)
{
	struct ask_end end = {.sequence = offset};
	Sandgate__GuestFrame *m;

	end.bytes[0] = allocate(1);
	end.bytes[1] = allocate(1);
	for (;; protobuf_c_message_free_unpacked(&m->base, NULL)) {
		m = conn_recv(c, 2 * CONN_WAIT_MS);
		Sandgate__GuestFrame__BodyCase body = m ? m->body_case : 0;
		if (body == SANDGATE__GUEST_FRAME__BODY_OUTPUT)
			take_output(&end, m->output);
		else if (body == SANDGATE__GUEST_FRAME__BODY_GAP)
			take_gap(&end, m->gap);
		else if (body == SANDGATE__GUEST_FRAME__BODY_EXIT)
			break;
		else if (body != SANDGATE__GUEST_FRAME__BODY_STDIN_ACK &&
		         body != SANDGATE__GUEST_FRAME__BODY_DONE &&
		         body != SANDGATE__GUEST_FRAME__BODY_STARTED)
			fail("expected output or exit, got %s", kind(m));
	}
	if (m->exit->sequence != end.sequence)
		fail("exit at sequence %llu where %llu was due",
		     (unsigned long long)m->exit->sequence, (unsigned long long)end.sequence);
	end.result = m->exit->result;
	if (!end.result || end.result->outcome == SANDGATE__OUTCOME__OUTCOME_UNSPECIFIED)
		fail("exit without an outcome");
	return end;
}

struct ask_end ask_run(const struct target *t, Sandgate__Exec *e)
{
	return ask_end(ask_session(t, SANDGATE__OPEN__OP_EXEC, e), 0);
}

struct ask_end ask_run_sh(const struct target *t, const char *cmd)
{
	Sandgate__Exec e = ask_sh(cmd);

	return ask_run(t, &e);
}

bool ask_lives(const struct target *t, const char *pid)
{
	char cmd[96];

	snprintf(cmd, sizeof(cmd), "grep '^State:.[^ZX]' /proc/%d/status", atoi(pid));
	return ask_run_sh(t, cmd).result->exit_code == 0;
}

void ask_until(struct conn *c, const char *word)
{
	struct ask_end seen = {0};

	while (!seen.len[0] || !strstr((char *)seen.bytes[0], word)) {
		Sandgate__GuestFrame *m = conn_recv(c, CONN_WAIT_MS);
		if (m && m->body_case == SANDGATE__GUEST_FRAME__BODY_STARTED)
			continue;
		if (!m || m->body_case != SANDGATE__GUEST_FRAME__BODY_OUTPUT)
			fail("expected output holding '%s', got %s", word, kind(m));
		seen.sequence = m->output->sequence;
		take_output(&seen, m->output);
	}
}

struct conn *ask_start_until(const struct target *t, Sandgate__Exec *e, const char *word)
{
	struct conn *c = ask_start(t, e);
	ask_until(c, word);
	return c;
}

Sandgate__ExecState *ask_state(const struct target *t, const char *id)
{
	Sandgate__ExecInfo info = SANDGATE__EXEC_INFO__INIT;

	info.exec_id = (char *)id;
	return ask_once(t, SANDGATE__OPEN__OP_EXEC_INFO, &info,
	                SANDGATE__GUEST_FRAME__BODY_EXEC_STATE)
	    ->exec_state;
}

Sandgate__ExecState *ask_finished(const struct target *t, const char *id)
{
	for (int i = 0; i < 1000; i++, ask_pause()) {
		Sandgate__ExecState *s = ask_state(t, id);
		if (s->phase != SANDGATE__EXEC_PHASE__PHASE_FINISHED)
			continue;
		if (!s->result)
			fail("a finished exec has no result");
		return s;
	}
	fail("the exec does not end");
}

Sandgate__ExecState *ask_cancelled(const struct target *t, const char *id,
                                   Sandgate__CancelReason reason)
{
	Sandgate__ExecState *s = ask_finished(t, id);

	expect(s->result->outcome == SANDGATE__OUTCOME__OUTCOME_CANCELLED &&
	           s->result->cancel_reason == reason,
	       "outcome %d, reason %d", s->result->outcome, s->result->cancel_reason);
	return s;
}

void ask_forget(const struct target *t, const char *id)
{
	Sandgate__ForgetExec forget = SANDGATE__FORGET_EXEC__INIT;

	forget.exec_id = (char *)id;
	ask_once(t, SANDGATE__OPEN__OP_FORGET_EXEC, &forget, SANDGATE__GUEST_FRAME__BODY_DONE);
}

void ask_cancel(struct conn *c, Sandgate__CancelReason reason)
{
	Sandgate__HostFrame frame = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Cancel cancel = SANDGATE__CANCEL__INIT;

	cancel.reason = reason;
	frame.body_case = SANDGATE__HOST_FRAME__BODY_CANCEL;
	frame.cancel = &cancel;
	conn_send(c, &frame);
}

void ask_feed(struct conn *c, const char *text)
{
	Sandgate__HostFrame frame = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Stdin body = SANDGATE__STDIN__INIT;

	body.data = ask_text(text);
	frame.body_case = SANDGATE__HOST_FRAME__BODY_STDIN;
	frame.stdin = &body;
	conn_send(c, &frame);
}

void ask_pause(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
}

void ask_expect(const struct ask_end *end, Sandgate__Outcome outcome, int exit_code)
{
	const Sandgate__Result *r = end->result;

	if (r->outcome == outcome && r->exit_code == exit_code)
		return;
	fail("expected outcome %d with exit code %d, got %d with %d, signal %u%s%s%s; stderr: "
	     "%.80s",
	     outcome, exit_code, r->outcome, r->exit_code, r->signal,
	     r->spawn_error ? ", stage " : "", r->spawn_error ? r->spawn_error->stage : "",
	     r->spawn_error ? r->spawn_error->message : "", (char *)end->bytes[1]);
}

void ask_expect_text(const struct ask_end *end, Sandgate__Stream stream, const char *text)
{
	if (strcmp((char *)end->bytes[stream], text) != 0)
		fail("expected %s '%.80s', got '%.80s'", stream ? "stderr" : "stdout", text,
		     (char *)end->bytes[stream]);
}
