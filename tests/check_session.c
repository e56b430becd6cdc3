#include <signal.h>
#include <stdio.h>

#include "tests/agent_fixture.h"

static void expect_refused(struct host *h, enum err_code code, const char *field)
{
	Sandgate__GuestFrame *g = host_next(h);
	ck_assert(g != NULL);
	if (g->body_case == SANDGATE__GUEST_FRAME__BODY_OPENED) {
		host_free(g);
		g = host_next(h);
	}
	ck_assert_int_eq(g->body_case, SANDGATE__GUEST_FRAME__BODY_REFUSED);
	ck_assert_int_eq(g->refused->code, code);
	ck_assert_str_eq(g->refused->field, field);
	host_free(g);
	ck_assert(host_next(h) == NULL);
	host_close(h);
}

static void expect_exec_refused(Sandgate__Exec *m, enum err_code code, const char *field)
{
	expect_refused(host_exec(m), code, field);
	struct exec_table_counts c = exec_table_counts(agent_table(fixture_agent));
	ck_assert_uint_eq(c.running + c.retained, 0);
}

static struct host *start(Sandgate__Exec *m)
{
	struct host *h = host_exec(m);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_STARTED);
	return h;
}

static struct host *attach(const char *id, Sandgate__Role role, uint64_t offset)
{
	struct host *h = host_attach(id, role, offset);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	return h;
}

static void cancel(struct host *h, Sandgate__CancelReason reason)
{
	Sandgate__Cancel c = SANDGATE__CANCEL__INIT;
	c.reason = reason;
	host_send(h, SANDGATE__HOST_FRAME__BODY_CANCEL, &c);
}

static void expect_output(struct host *h, const char *text)
{
	size_t got = 0;
	while (got < strlen(text)) {
		Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_OUTPUT);
		ck_assert(memcmp(g->output->data.data, text + got, g->output->data.len) == 0);
		got += g->output->data.len;
		host_free(g);
	}
}

static void send_stdin(struct host *h, const char *text, const uint64_t *offset)
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

/* ---- refusals ---- */

#define BYTES(s) ((ProtobufCBinaryData){sizeof(s) - 1, (uint8_t *)(s)})

START_TEST(a_nul_is_refused_wherever_it_is)
{
	Sandgate__EnvVar v = SANDGATE__ENV_VAR__INIT, *env[] = {&v};
	ProtobufCBinaryData argv[] = {BYTES("a\0b")};
	Sandgate__Exec m = exec_message("x", "true");

	m.cmd = BYTES("echo a\0; echo b");
	expect_exec_refused(&m, ERR_INVALID_FIELD, "cmd");
	m = exec_message("x", "");
	m.argv = argv;
	m.n_argv = 1;
	expect_exec_refused(&m, ERR_INVALID_FIELD, "argv");
	m = exec_message("x", "true");
	m.cwd = BYTES("/\0tmp");
	expect_exec_refused(&m, ERR_INVALID_FIELD, "cwd");
	m = exec_message("x", "true");
	m.user = BYTES("root\0x");
	expect_exec_refused(&m, ERR_INVALID_FIELD, "user");
	m = exec_message("x", "true");
	m.env = env;
	m.n_env = 1;
	v.name = BYTES("A");
	v.value = BYTES("b\0c");
	expect_exec_refused(&m, ERR_INVALID_FIELD, "env");
	v.name = BYTES("A\0B");
	v.value = BYTES("b");
	expect_exec_refused(&m, ERR_INVALID_FIELD, "env");
}
END_TEST

START_TEST(faulty_fields_are_named)
{
	Sandgate__Limits l = SANDGATE__LIMITS__INIT;
	Sandgate__Uint64Value zero = SANDGATE__UINT64_VALUE__INIT;
	Sandgate__Exec m = exec_message("no/slash", "true");
	expect_exec_refused(&m, ERR_INVALID_FIELD, "exec_id");
	m = exec_message("", "true");
	expect_exec_refused(&m, ERR_INVALID_FIELD, "exec_id");
	m = exec_message("x", "");
	expect_exec_refused(&m, ERR_MISSING_FIELD, "cmd");
	m = exec_message("x", "true");
	m.cwd = BYTES("tmp");
	expect_exec_refused(&m, ERR_INVALID_FIELD, "cwd");
	m = exec_message("x", "true");
	m.timeout_ms = EXEC_TIMEOUT_MAX_S * 1000ull + 1;
	expect_exec_refused(&m, ERR_INVALID_FIELD, "timeout_seconds");
	m = exec_message("x", "true");
	m.limits = &l;
	l.memory_bytes = &zero;
	expect_exec_refused(&m, ERR_INVALID_FIELD, "limits.memory_mib");
}
END_TEST

START_TEST(an_unknown_operation_is_refused)
{
	/* Open{protocol_version 1, field 99 ""} */
	static const uint8_t frame[] = {0, 0, 0, 7, 0x0a, 5, 0x08, 1, 0x9a, 6, 0};
	struct host *h = host_connect();
	host_send_bytes(h, frame, sizeof(frame));
	expect_refused(h, ERR_INCOMPATIBLE, "");
}
END_TEST

START_TEST(an_unknown_limit_is_refused)
{
	/* Open{1, exec{id "x", cmd "true", limits{field 99: 1}}} */
	static const uint8_t frame[] = {0,   0,    0, 22,  0x0a, 20, 0x08, 1,   0x52,
	                                16,  0x0a, 1, 'x', 0x1a, 4,  't',  'r', 'u',
	                                'e', 0x8a, 1, 3,   0x98, 6,  1};
	uint8_t fixed[sizeof(frame)];
	struct host *h = host_connect();
	memcpy(fixed, frame, sizeof(frame));
	fixed[3] = sizeof(frame) - 4;
	fixed[5] = sizeof(frame) - 6;
	fixed[9] = sizeof(frame) - 10;
	host_send_bytes(h, fixed, sizeof(fixed));
	expect_refused(h, ERR_LIMIT_UNSUPPORTED, "limits");
}
END_TEST

START_TEST(a_frame_over_the_cap_is_refused_by_its_header)
{
	static const uint8_t header[] = {0, 0x40, 0, 1, 0x0a};
	struct host *h = host_connect();
	host_send_bytes(h, header, sizeof(header));
	expect_refused(h, ERR_TOO_LARGE, "");
}
END_TEST

START_TEST(a_frame_at_the_cap_is_served)
{
	char *cmd = calloc(1, FRAME_MAX_TO_GUEST);
	memset(cmd, ' ', FRAME_MAX_TO_GUEST - 64);
	memcpy(cmd, "exit 4", 6);
	Sandgate__Exec m = exec_message("x", cmd);
	struct host *h = host_exec(&m);
	struct transcript t = host_read_all(h, 0);
	ck_assert_int_eq(t.result->exit_code, 4);
	transcript_free(&t);
	host_close(h);
	free(cmd);
}
END_TEST

START_TEST(garbage_is_a_protocol_error)
{
	static const uint8_t junk[] = {0, 0, 0, 3, 0xff, 0xff, 0xff};
	struct host *h = host_connect();
	host_send_bytes(h, junk, sizeof(junk));
	expect_refused(h, ERR_PROTOCOL, "");
}
END_TEST

START_TEST(the_token_is_asked_for)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	Sandgate__Open o = SANDGATE__OPEN__INIT;
	fixture_config.token = (uint8_t *)strdup("secret");
	fixture_config.token_len = 6;
	struct host *h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_PING, &ping);
	expect_refused(h, ERR_MISSING_TOKEN, "");
	o.protocol_version = PROTOCOL_VERSION;
	o.op_case = SANDGATE__OPEN__OP_PING;
	o.ping = &ping;
	o.token = BYTES("secreT");
	h = host_connect();
	host_send(h, SANDGATE__HOST_FRAME__BODY_OPEN, &o);
	expect_refused(h, ERR_INVALID_TOKEN, "");
	o.token = BYTES("secret");
	h = host_connect();
	host_send(h, SANDGATE__HOST_FRAME__BODY_OPEN, &o);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_PONG);
	host_close(h);
}
END_TEST

/* ---- one-shot operations ---- */

START_TEST(info_and_metrics_describe_the_agent)
{
	Sandgate__Info m = SANDGATE__INFO__INIT;
	struct host *h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_INFO, &m);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_INFO);
	ck_assert_uint_eq(g->info->pid, (unsigned)getpid());
	ck_assert_uint_eq(g->info->agent_instance.len, 16);
	ck_assert_uint_gt(g->info->memory_bytes, MIB);
	host_free(g);
	ck_assert(host_next(h) == NULL);
	host_close(h);

	Sandgate__Metrics n = SANDGATE__METRICS__INIT;
	h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_METRICS, &n);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_METRICS);
	ck_assert_uint_eq(g->metrics->sessions, 1);
	ck_assert_uint_gt(g->metrics->agent_rss_bytes, 0);
	host_free(g);
	host_close(h);
}
END_TEST

START_TEST(a_list_is_complete_and_ends_with_done)
{
	Sandgate__ListExecs l = SANDGATE__LIST_EXECS__INIT;
	const unsigned count = LIST_FRAME_EXECS + 5;
	unsigned listed = 0;
	for (unsigned i = 0; i < count; i++) {
		char id[16];
		snprintf(id, sizeof(id), "e%u", i);
		Sandgate__Exec m = exec_message(id, "true");
		struct host *h = host_exec(&m);
		struct transcript t = host_read_all(h, 0);
		transcript_free(&t);
		host_close(h);
	}
	struct host *h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_LIST_EXECS, &l);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	Sandgate__GuestFrame *g;
	while ((g = host_next(h))->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_LIST) {
		listed += (unsigned)g->exec_list->n_execs;
		host_free(g);
	}
	ck_assert_int_eq(g->body_case, SANDGATE__GUEST_FRAME__BODY_DONE);
	ck_assert_uint_eq(listed, count);
	host_free(g);
	host_close(h);
}
END_TEST

/* ---- ids ---- */

START_TEST(a_start_is_idempotent_by_digest)
{
	Sandgate__Exec m = exec_message("x", "echo once; exit 3");
	m.request_digest = BYTES("d1");
	struct host *h = host_exec(&m);
	struct transcript t = host_read_all(h, 0);
	transcript_free(&t);
	host_close(h);

	h = host_exec(&m);
	t = host_read_all(h, 0);
	ck_assert(t.existing);
	ck_assert_str_eq(t.out[0], "once\n");
	ck_assert_int_eq(t.result->exit_code, 3);
	transcript_free(&t);
	host_close(h);

	m.request_digest = BYTES("d2");
	expect_refused(host_exec(&m), ERR_EXEC_ID_CONFLICT, "exec_id");
}
END_TEST

static void forget(const char *id)
{
	Sandgate__ForgetExec f = SANDGATE__FORGET_EXEC__INIT;
	struct host *h = host_connect();
	f.exec_id = (char *)id;
	host_open(h, SANDGATE__OPEN__OP_FORGET_EXEC, &f);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	host_close(h);
}

START_TEST(a_forgotten_id_refuses_a_late_start)
{
	Sandgate__Exec m = exec_message("late", "true");
	forget("late");
	expect_refused(host_exec(&m), ERR_EXEC_ID_CONFLICT, "exec_id");
	expect_refused(host_attach("late", SANDGATE__ROLE__ROLE_OWNER, 0), ERR_EXEC_NOT_FOUND,
	               "exec_id");
}
END_TEST

START_TEST(forgetting_kills_what_runs)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	struct host *h = start(&m);
	forget("x");
	struct transcript t = host_read_all(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	transcript_free(&t);
	host_close(h);
	turn_for(0.05);
	struct exec_table_counts c = exec_table_counts(agent_table(fixture_agent));
	ck_assert_uint_eq(c.running + c.retained, 0);
}
END_TEST

/* ---- attach ---- */

START_TEST(attach_replays_from_an_offset)
{
	Sandgate__Exec m = exec_message("x", "printf 0123456789; exit 2");
	struct host *h = host_exec(&m);
	struct transcript t = host_read_all(h, 0);
	transcript_free(&t);
	host_close(h);
	h = host_attach("x", SANDGATE__ROLE__ROLE_OUTPUT, 6);
	t = host_read_all(h, 6);
	ck_assert_str_eq(t.out[0], "6789");
	ck_assert_int_eq(t.result->exit_code, 2);
	transcript_free(&t);
	host_close(h);
	expect_refused(host_attach("x", SANDGATE__ROLE__ROLE_OUTPUT, 11), ERR_INVALID_FIELD,
	               "offset");
}
END_TEST

START_TEST(a_new_owner_takes_over)
{
	Sandgate__Exec m = exec_message("x", "echo a; read l; echo $l");
	m.stdin_open = 1;
	struct host *old = start(&m);
	expect_output(old, "a\n");
	struct host *new = attach("x", SANDGATE__ROLE__ROLE_OWNER, 2);
	expect_refused(old, ERR_EXEC_ID_CONFLICT, "exec_id");
	host_expect_only(new, SANDGATE__GUEST_FRAME__BODY_STARTED);
	send_stdin(new, "b\n", NULL);
	struct transcript t = host_read_all(new, 2);
	ck_assert_str_eq(t.out[0], "b\n");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	transcript_free(&t);
	host_close(new);
}
END_TEST

START_TEST(a_lost_owner_is_awaited_and_may_come_back)
{
	Sandgate__Exec m = exec_message("x", "echo a; sleep 0.3; echo b");
	struct host *h = start(&m);
	expect_output(h, "a\n");
	host_close(h);
	turn_for(0.1);
	h = attach("x", SANDGATE__ROLE__ROLE_OWNER, 2);
	struct transcript t = host_read_all(h, 2);
	ck_assert_str_eq(t.out[0], "b\n");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	transcript_free(&t);
	host_close(h);
}
END_TEST

static struct transcript outcome_of(const char *id)
{
	struct host *h = host_attach(id, SANDGATE__ROLE__ROLE_OUTPUT, 0);
	struct transcript t = host_read_all(h, 0);
	ck_assert(t.result != NULL);
	host_close(h);
	return t;
}

START_TEST(a_lost_owner_that_stays_away_ends_it)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	m.link_grace_ms = 100;
	host_close(start(&m));
	struct transcript t = outcome_of("x");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
	transcript_free(&t);
}
END_TEST

START_TEST(a_client_that_goes_ends_it_at_once)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	struct host *h = start(&m);
	cancel(h, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	host_close(h);
	struct transcript t = outcome_of("x");
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	ck_assert_uint_lt(t.result->duration_ms, 2000);
	transcript_free(&t);
}
END_TEST

START_TEST(on_disconnect_detach_survives_a_client_that_goes)
{
	Sandgate__Exec m = exec_message("x", "sleep 0.2; echo done");
	m.on_disconnect = SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH;
	struct host *h = start(&m);
	cancel(h, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	host_close(h);
	struct transcript t = outcome_of("x");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_str_eq(t.out[0], "done\n");
	transcript_free(&t);
}
END_TEST

/* Start the same once more, while it has an owner. */
static struct host *repeat(Sandgate__Exec *m)
{
	struct host *h = host_exec(m);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_STARTED);
	ck_assert(g->started->existing && !g->started->owner);
	host_free(g);
	return h;
}

/* In both ways that an owner can go: with a word, and without. */
static void leave(struct host *h, bool says_so)
{
	if (says_so)
		cancel(h, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	host_close(h);
}

START_TEST(a_repeated_start_keeps_it_when_the_first_goes)
{
	Sandgate__Exec m = exec_message("x", "echo a; read l; exit 3");
	m.link_grace_ms = 0;
	m.stdin_open = 1;
	struct host *first = start(&m), *second = repeat(&m), *third = repeat(&m);
	leave(first, _i);
	send_stdin(second, "\n", NULL);
	struct transcript t = host_read_all(second, 0);
	ck_assert(t.result != NULL);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_int_eq(t.result->exit_code, 3);
	ck_assert_str_eq(t.out[0], "a\n");
	transcript_free(&t);
	host_close(second);
	host_close(third);
}
END_TEST

START_TEST(a_repeated_start_that_waits_on_is_no_owner)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	struct host *first = start(&m), *second = repeat(&m), *third = repeat(&m);
	leave(first, true);
	send_stdin(third, "\n", NULL);
	expect_refused(third, ERR_PROTOCOL, "");
	leave(second, true);
	struct transcript t = outcome_of("x");
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	transcript_free(&t);
}
END_TEST

START_TEST(when_all_who_started_it_go_it_ends_at_once)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	struct host *h[] = {start(&m), repeat(&m), repeat(&m)};
	for (int i = 0; i < 3; i++)
		leave(h[_i == 0 ? i : 2 - i], true);
	struct transcript t = outcome_of("x");
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	ck_assert_uint_lt(t.result->duration_ms, 2000);
	transcript_free(&t);
}
END_TEST

START_TEST(a_lost_link_of_who_took_over_is_awaited_and_then_ends_it)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	m.link_grace_ms = 100;
	struct host *first = start(&m), *second = repeat(&m);
	leave(first, false);
	leave(second, false);
	struct transcript t = outcome_of("x");
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
	ck_assert_uint_ge(t.result->duration_ms, 100);
	transcript_free(&t);
}
END_TEST

START_TEST(who_stands_by_owns_an_exec_that_has_no_owner)
{
	Sandgate__Exec m = exec_message("x", "read l; exit 3");
	m.link_grace_ms = 1000;
	m.stdin_open = 1;
	host_close(start(&m));
	struct host *h = attach("x", SANDGATE__ROLE__ROLE_STANDBY, 0);
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_STARTED);
	ck_assert(g->started->existing && g->started->owner);
	host_free(g);
	send_stdin(h, "\n", NULL);
	struct transcript t = host_read_all(h, 0);
	ck_assert_int_eq(t.result->exit_code, 3);
	transcript_free(&t);
	host_close(h);
}
END_TEST

START_TEST(a_watchers_going_means_nothing)
{
	Sandgate__Exec m = exec_message("x", "sleep 0.2; exit 6");
	m.link_grace_ms = 0;
	struct host *h = start(&m);
	host_close(attach("x", SANDGATE__ROLE__ROLE_OUTPUT, 0));
	struct transcript t = host_read_all(h, 0);
	ck_assert_int_eq(t.result->exit_code, 6);
	transcript_free(&t);
	host_close(h);
}
END_TEST

START_TEST(a_detached_start_ends_with_started)
{
	Sandgate__Exec m = exec_message("x", "sleep 0.1; echo out");
	m.detached = 1;
	struct host *h = start(&m);
	ck_assert(host_next(h) == NULL);
	host_close(h);
	struct transcript t = outcome_of("x");
	ck_assert_str_eq(t.out[0], "out\n");
	transcript_free(&t);
}
END_TEST

START_TEST(a_detached_exec_survives_an_owner_that_came_and_went)
{
	Sandgate__Exec m = exec_message("x", "sleep 0.3; echo out");
	m.detached = 1;
	m.link_grace_ms = 10;
	host_close(start(&m));
	host_close(attach("x", SANDGATE__ROLE__ROLE_OWNER, 0));
	turn_for(0.1);
	struct transcript t = outcome_of("x");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	transcript_free(&t);
}
END_TEST

START_TEST(released_output_is_dropped_unless_kept)
{
	for (int keep = 0; keep < 2; keep++) {
		Sandgate__Release rel = SANDGATE__RELEASE__INIT;
		Sandgate__Exec m = exec_message(keep ? "kept" : "gone", "echo out");
		m.keep_output = keep;
		struct host *h = host_exec(&m);
		struct transcript t = host_read_all(h, 0);
		transcript_free(&t);
		host_send(h, SANDGATE__HOST_FRAME__BODY_RELEASE, &rel);
		host_close(h);
		t = outcome_of(m.exec_id);
		ck_assert_uint_eq(t.gap_bytes, keep ? 0 : 4);
		ck_assert_int_eq(t.result->exit_code, 0);
		transcript_free(&t);
	}
}
END_TEST

/* ---- control ---- */

START_TEST(control_feeds_stdin_by_offset)
{
	Sandgate__Exec m = exec_message("x", "cat");
	Sandgate__CloseStdin c = SANDGATE__CLOSE_STDIN__INIT;
	uint64_t at = 3;
	m.stdin_open = 1;
	m.stdin = BYTES("abc");
	struct host *h = start(&m);
	struct host *ctl = attach("x", SANDGATE__ROLE__ROLE_CONTROL, 0);
	Sandgate__GuestFrame *g = host_expect(ctl, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE);
	ck_assert_uint_eq(g->exec_state->stdin_offset, 3);
	host_free(g);
	send_stdin(ctl, "def", &at);
	g = host_expect(ctl, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	ck_assert_uint_eq(g->stdin_ack->offset, 6);
	ck_assert(!g->stdin_ack->closed);
	host_free(g);
	send_stdin(ctl, "def", &at); /* a retry */
	g = host_expect(ctl, SANDGATE__GUEST_FRAME__BODY_REFUSED);
	ck_assert_int_eq(g->refused->code, ERR_STDIN_OFFSET);
	ck_assert_uint_eq(g->refused->offset->value, 6);
	host_free(g);
	host_close(ctl);

	ctl = attach("x", SANDGATE__ROLE__ROLE_CONTROL, 0);
	host_expect_only(ctl, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE);
	host_send(ctl, SANDGATE__HOST_FRAME__BODY_CLOSE_STDIN, &c);
	g = host_expect(ctl, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	ck_assert(g->stdin_ack->closed);
	host_free(g);
	host_close(ctl);
	struct transcript t = host_read_all(h, 0);
	ck_assert_str_eq(t.out[0], "abcdef");
	transcript_free(&t);
	host_close(h);
}
END_TEST

START_TEST(input_that_is_not_read_delays_its_ack_and_nothing_else)
{
	char *text = calloc(1, 4 * STDIN_WINDOW);
	Sandgate__Exec m = exec_message("x", "sleep 60");
	memset(text, 'x', 4 * STDIN_WINDOW - 1);
	m.stdin_open = 1;
	struct host *h = start(&m);
	send_stdin(h, text, NULL);
	cancel(h, SANDGATE__CANCEL_REASON__CANCEL_KILLED);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	struct transcript t = host_read_all(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	transcript_free(&t);
	host_close(h);
	free(text);
}
END_TEST

START_TEST(a_signal_is_delivered_and_its_death_is_signaled)
{
	Sandgate__Exec m = exec_message("x", "sleep 60 & wait");
	Sandgate__Signal sig = SANDGATE__SIGNAL__INIT;
	struct host *h = start(&m);
	sig.signal = SIGUSR1;
	sig.all = 1;
	host_send(h, SANDGATE__HOST_FRAME__BODY_SIGNAL, &sig);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	struct transcript t = host_read_all(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_SIGNALED);
	ck_assert_uint_eq(t.result->signal, SIGUSR1);
	transcript_free(&t);
	host_close(h);
}
END_TEST

/* ---- back-pressure ---- */

static struct ring_budget *budget(void)
{
	return &exec_table_env(agent_table(fixture_agent))->budget;
}

START_TEST(a_slow_owner_holds_the_process_not_the_memory)
{
	Sandgate__Exec m = exec_message("x", "head -c 5000000 /dev/zero");
	struct host *h = start(&m);
	turn_for(0.4);
	ck_assert_uint_ge(budget()->used, OWNER_WINDOW);
	ck_assert_uint_lt(budget()->used, OWNER_WINDOW + MIB);
	struct exec_table_counts c = exec_table_counts(agent_table(fixture_agent));
	ck_assert_uint_eq(c.running, 1);
	struct transcript t = host_read_all(h, 0);
	ck_assert_uint_eq(t.len[0], 5000000);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
	host_close(h);
}
END_TEST

START_TEST(an_owner_that_never_reads_is_no_obstacle_to_the_timeout)
{
	Sandgate__Exec m = exec_message("x", "yes");
	m.timeout_ms = 300;
	struct host *h = start(&m);
	turn_for(1.0);
	ck_assert_uint_eq(exec_table_counts(agent_table(fixture_agent)).running, 0);
	ck_assert_uint_lt(budget()->used, 4 * MIB);
	struct transcript t = host_read_all(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
	host_close(h);
}
END_TEST

START_TEST(a_slow_watcher_gets_a_gap_and_stalls_nothing)
{
	Sandgate__Limits l = SANDGATE__LIMITS__INIT;
	Sandgate__Uint64Value keep = SANDGATE__UINT64_VALUE__INIT;
	Sandgate__Exec m = exec_message("x", "read l; head -c 9000000 /dev/zero");
	keep.value = 100000;
	l.output_bytes = &keep;
	m.limits = &l;
	m.stdin_open = 1;
	struct host *h = start(&m);
	struct host *slow = attach("x", SANDGATE__ROLE__ROLE_OUTPUT, 0);
	send_stdin(h, "go\n", NULL);
	struct transcript t = host_read_all(h, 0);
	ck_assert_uint_eq(t.len[0], 9000000);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
	t = host_read_all(slow, 0);
	ck_assert_uint_gt(t.gap_bytes, 0);
	ck_assert_uint_eq(t.len[0] + t.gap_bytes, 9000000);
	transcript_free(&t);
	host_close(slow);
	host_close(h);
}
END_TEST

START_TEST(retained_output_yields_to_the_budget)
{
	budget()->limit = MIB;
	for (int i = 0; i < 4; i++) {
		char id[8];
		snprintf(id, sizeof(id), "e%d", i);
		Sandgate__Exec m = exec_message(id, "head -c 400000 /dev/zero");
		struct host *h = host_exec(&m);
		struct transcript t = host_read_all(h, 0);
		ck_assert_uint_eq(t.len[0], 400000);
		transcript_free(&t);
		host_close(h);
		ck_assert_uint_le(budget()->used, MIB);
	}
	struct transcript t = outcome_of("e0");
	ck_assert_uint_eq(t.gap_bytes, 400000);
	transcript_free(&t);
	t = outcome_of("e3");
	ck_assert_uint_eq(t.gap_bytes, 0);
	transcript_free(&t);
}
END_TEST

START_TEST(the_first_answer_comes_in_one_write)
{
	Sandgate__Exec m = exec_message("x", "sleep 0.3");
	struct host *h = host_exec(&m);
	uint8_t first[4096];
	ssize_t n;
	while ((n = recv(h->fd, first, sizeof(first), MSG_PEEK)) < 0)
		ev_run(fixture_loop(), EVRUN_ONCE);
	struct frame f;
	ck_assert(frame_parse(first, (size_t)n, FRAME_MAX_TO_HOST, &f) == FRAME_OK);
	ck_assert_uint_lt(f.consumed, (size_t)n);
	host_close(h);
}
END_TEST

/* As many silent sessions as may be, of which the next connection would close some. */
static void connect_silent(struct host *h[SESSIONS_UNOPENED_MAX])
{
	for (int i = 0; i < SESSIONS_UNOPENED_MAX; i++)
		h[i] = host_connect();
	turn_for((SESSION_YOUNG_MS + 100) / 1000.0);
}

static void send_ping(struct host *h)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	host_open(h, SANDGATE__OPEN__OP_PING, &ping);
}

START_TEST(of_too_many_silent_sessions_the_oldest_is_closed)
{
	struct host *h[SESSIONS_UNOPENED_MAX];
	connect_silent(h);
	host_connect();
	ck_assert(host_next(h[0]) == NULL);
	send_ping(h[1]);
	host_expect_only(h[1], SANDGATE__GUEST_FRAME__BODY_OPENED);
}
END_TEST

START_TEST(a_silent_session_whose_open_has_arrived_is_spared)
{
	struct host *h[SESSIONS_UNOPENED_MAX];
	connect_silent(h);
	send_ping(h[0]);
	host_connect();
	host_expect_only(h[0], SANDGATE__GUEST_FRAME__BODY_OPENED);
	ck_assert(host_next(h[1]) == NULL);
}
END_TEST

START_TEST(of_a_burst_of_sessions_none_is_closed)
{
	struct host *h[2 * SESSIONS_UNOPENED_MAX];
	for (int i = 0; i < 2 * SESSIONS_UNOPENED_MAX; i++)
		h[i] = host_connect();
	for (int i = 0; i < 2 * SESSIONS_UNOPENED_MAX; i++) {
		send_ping(h[i]);
		host_expect_only(h[i], SANDGATE__GUEST_FRAME__BODY_OPENED);
	}
}
END_TEST

START_TEST(shutdown_ends_execs_and_refuses_new_ones)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	Sandgate__Shutdown down = SANDGATE__SHUTDOWN__INIT;
	struct host *h = start(&m), *s = host_connect();
	down.grace_ms = 100;
	host_open(s, SANDGATE__OPEN__OP_SHUTDOWN, &down);
	host_expect_only(s, SANDGATE__GUEST_FRAME__BODY_OPENED);
	m.exec_id = (char *)"y";
	expect_refused(host_exec(&m), ERR_INVALID_STATE, "");
	struct transcript t = host_read_all(h, 0);
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_SHUTDOWN);
	transcript_free(&t);
	host_expect_only(s, SANDGATE__GUEST_FRAME__BODY_DONE);
	host_close(h);
	host_close(s);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("session");
	TCase *tc = tcase_create("session");
	tcase_add_checked_fixture(tc, fixture_setup, NULL);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_nul_is_refused_wherever_it_is);
	tcase_add_test(tc, faulty_fields_are_named);
	tcase_add_test(tc, an_unknown_operation_is_refused);
	tcase_add_test(tc, an_unknown_limit_is_refused);
	tcase_add_test(tc, a_frame_over_the_cap_is_refused_by_its_header);
	tcase_add_test(tc, a_frame_at_the_cap_is_served);
	tcase_add_test(tc, garbage_is_a_protocol_error);
	tcase_add_test(tc, the_token_is_asked_for);
	tcase_add_test(tc, info_and_metrics_describe_the_agent);
	tcase_add_test(tc, a_list_is_complete_and_ends_with_done);
	tcase_add_test(tc, a_start_is_idempotent_by_digest);
	tcase_add_test(tc, a_forgotten_id_refuses_a_late_start);
	tcase_add_test(tc, forgetting_kills_what_runs);
	tcase_add_test(tc, attach_replays_from_an_offset);
	tcase_add_test(tc, a_new_owner_takes_over);
	tcase_add_test(tc, a_lost_owner_is_awaited_and_may_come_back);
	tcase_add_test(tc, a_lost_owner_that_stays_away_ends_it);
	tcase_add_test(tc, a_client_that_goes_ends_it_at_once);
	tcase_add_test(tc, on_disconnect_detach_survives_a_client_that_goes);
	tcase_add_loop_test(tc, a_repeated_start_keeps_it_when_the_first_goes, 0, 2);
	tcase_add_test(tc, a_repeated_start_that_waits_on_is_no_owner);
	tcase_add_loop_test(tc, when_all_who_started_it_go_it_ends_at_once, 0, 2);
	tcase_add_test(tc, a_lost_link_of_who_took_over_is_awaited_and_then_ends_it);
	tcase_add_test(tc, who_stands_by_owns_an_exec_that_has_no_owner);
	tcase_add_test(tc, a_watchers_going_means_nothing);
	tcase_add_test(tc, a_detached_start_ends_with_started);
	tcase_add_test(tc, a_detached_exec_survives_an_owner_that_came_and_went);
	tcase_add_test(tc, released_output_is_dropped_unless_kept);
	tcase_add_test(tc, control_feeds_stdin_by_offset);
	tcase_add_test(tc, input_that_is_not_read_delays_its_ack_and_nothing_else);
	tcase_add_test(tc, a_signal_is_delivered_and_its_death_is_signaled);
	tcase_add_test(tc, a_slow_owner_holds_the_process_not_the_memory);
	tcase_add_test(tc, an_owner_that_never_reads_is_no_obstacle_to_the_timeout);
	tcase_add_test(tc, a_slow_watcher_gets_a_gap_and_stalls_nothing);
	tcase_add_test(tc, retained_output_yields_to_the_budget);
	tcase_add_test(tc, the_first_answer_comes_in_one_write);
	tcase_add_test(tc, of_too_many_silent_sessions_the_oldest_is_closed);
	tcase_add_test(tc, a_silent_session_whose_open_has_arrived_is_spared);
	tcase_add_test(tc, of_a_burst_of_sessions_none_is_closed);
	tcase_add_test(tc, shutdown_ends_execs_and_refuses_new_ones);
	suite_add_tcase(s, tc);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
