/* Opening: version, token, order, and operations that this version does not know. */
#include <string.h>

#include "proto/frame.h"
#include "proto/limits.h"
#include "tests/conformance/ask.h"

static void opened_tells(const struct target *t)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	struct conn *c = conn_dial(t);

	conn_send(c, ask_open(t, SANDGATE__OPEN__OP_PING, &ping));
	Sandgate__Opened *o = ask_next(c, SANDGATE__GUEST_FRAME__BODY_OPENED)->opened;
	expect(o->protocol_version == PROTOCOL_VERSION, "it speaks version %u",
	       o->protocol_version);
	expect(o->agent_instance.len == 16, "an agent_instance of %zu bytes",
	       o->agent_instance.len);
}

static struct conn *try_version(const struct target *t, uint32_t version)
{
	static Sandgate__Ping ping = SANDGATE__PING__INIT;
	Sandgate__HostFrame *frame = ask_open(t, SANDGATE__OPEN__OP_PING, &ping);
	struct conn *c = conn_dial(t);

	frame->open->protocol_version = version;
	conn_send(c, frame);
	return c;
}

static void older_version(const struct target *t)
{
	ask_next_refused(try_version(t, PROTOCOL_VERSION_MIN - 1), ERR_INCOMPATIBLE);
}

static void newer_version(const struct target *t)
{
	struct conn *c = try_version(t, 999999);
	Sandgate__Opened *o = ask_next(c, SANDGATE__GUEST_FRAME__BODY_OPENED)->opened;

	expect(o->protocol_version == PROTOCOL_VERSION, "it claims to speak version %u",
	       o->protocol_version);
}

static void wrong_token(const struct target *t)
{
	static char wrong[] = "wrong";
	struct target with = *t;
	Sandgate__Ping ping = SANDGATE__PING__INIT;

	if (t->token_len == 0)
		skip("the agent has no token");
	memcpy(with.token, wrong, sizeof(wrong));
	with.token_len = strlen(wrong);
	ask_refused(&with, SANDGATE__OPEN__OP_PING, &ping, ERR_INVALID_TOKEN);
	with = *t;
	with.token[with.token_len - 1] ^= 1;
	ask_refused(&with, SANDGATE__OPEN__OP_PING, &ping, ERR_INVALID_TOKEN);
	with.token_len = 0;
	ask_refused(&with, SANDGATE__OPEN__OP_PING, &ping, ERR_NONE);
}

static void first_is_not_open(const struct target *t)
{
	Sandgate__HostFrame frame = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Cancel cancel = SANDGATE__CANCEL__INIT;
	struct conn *c = conn_dial(t);

	frame.body_case = SANDGATE__HOST_FRAME__BODY_CANCEL;
	frame.cancel = &cancel;
	conn_send(c, &frame);
	ask_next_refused(c, ERR_PROTOCOL);
}

static void second_open(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60");
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	struct conn *c = ask_start(t, &e);

	conn_send(c, ask_open(t, SANDGATE__OPEN__OP_PING, &ping));
	ask_next_refused(c, ERR_PROTOCOL);
	ask_forget(t, e.exec_id);
}

/* HostFrame{Open{protocol_version 1, field `op` = {}}}, written by hand because the
 * generated code knows no such operation. */
static void unknown_operation(const struct target *t)
{
	static const uint8_t ops[] = {19, 22, 99};

	for (size_t i = 0; i < sizeof(ops); i++) {
		uint8_t tag[2] = {(uint8_t)((ops[i] << 3 | 2) & 0x7f) | 0x80, ops[i] >> 4};
		uint8_t bytes[] = {0,      0,      0, 7, 0x0a, 5, 0x08, PROTOCOL_VERSION,
		                   tag[0], tag[1], 0};
		struct conn *c = conn_dial(t);
		if (t->token_len > 0)
			skip("written for an agent without a token");
		conn_write(c, bytes, sizeof(bytes));
		ask_next_refused(c, ERR_NONE);
	}
}

static void no_operation(const struct target *t)
{
	struct conn *c = conn_dial(t);

	conn_send(c, ask_open(t, SANDGATE__OPEN__OP__NOT_SET, NULL));
	ask_next_refused(c, ERR_NONE);
}

/* HostFrame{field 15 = {}} inside a session. */
static void unknown_request(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60");
	struct conn *c = ask_start(t, &e);

	conn_write(c, (uint8_t[]){0, 0, 0, 2, 15 << 3 | 2, 0}, 6);
	ask_next_refused(c, ERR_NONE);
	ask_forget(t, e.exec_id);
}

static void silent_session(const struct target *t)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	struct conn *spare = conn_dial(t);

	expect(!conn_readable(spare, 500), "the agent spoke first, or closed");
	conn_send(spare, ask_open(t, SANDGATE__OPEN__OP_PING, &ping));
	ask_next(spare, SANDGATE__GUEST_FRAME__BODY_OPENED);
	ask_next(spare, SANDGATE__GUEST_FRAME__BODY_PONG);
}

static void many_silent_sessions(const struct target *t)
{
	struct conn *spares[SESSIONS_UNOPENED_MAX + 20];
	size_t count = sizeof(spares) / sizeof(spares[0]);

	for (size_t i = 0; i < count; i++)
		spares[i] = conn_dial(t);
	for (int i = 0; i < 100 && !conn_readable(spares[0], 100); i++)
		ask_alive(t); /* one more connection, until the oldest is old enough */
	expect(conn_readable(spares[0], 0) && !conn_recv(spares[0], CONN_WAIT_MS),
	       "the oldest silent session is still open past the cap");
	expect(!conn_readable(spares[count - 1], 0), "the newest silent session was closed");
}

static const struct check checks[] = {
    {13, "Opened tells version and instance", opened_tells},
    {11, "a version that is too old is refused", older_version},
    {11, "a newer host is answered in the agent's version", newer_version},
    {12, "a wrong or missing token is refused", wrong_token},
    {10, "a first frame that is not Open is refused", first_is_not_open},
    {10, "a second Open is refused", second_open},
    {4, "an unknown operation is refused", unknown_operation},
    {4, "an Open without an operation is refused", no_operation},
    {4, "an unknown request inside a session is refused", unknown_request},
    {6, "a spare session waits for its Open", silent_session},
    {6, "past the cap the oldest spare session is closed", many_silent_sessions},
};
CHECK_TABLE(checks_open, checks);
