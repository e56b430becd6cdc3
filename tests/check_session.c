/* Sessions: what is refused, operations of one answer, ids, and silent ones. */
#include <stdio.h>

#include "tests/agent_fixture.h"

static bool knows_no_exec(void *arg)
{
	struct exec_table_counts c = exec_table_counts(agent_table(fixture_agent));
	(void)arg;
	return c.running + c.retained == 0;
}

static void expect_exec_refused(Sandgate__Exec *m, enum err_code code, const char *field)
{
	host_expect_refused(host_exec(m), code, field);
	ck_assert(knows_no_exec(NULL));
}

/* ---- refusals ---- */

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
	host_expect_refused(h, ERR_INCOMPATIBLE, "");
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
	host_expect_refused(h, ERR_LIMIT_UNSUPPORTED, "limits");
}
END_TEST

START_TEST(a_frame_over_the_cap_is_refused_by_its_header)
{
	static const uint8_t header[] = {0, 0x40, 0, 1, 0x0a};
	struct host *h = host_connect();
	host_send_bytes(h, header, sizeof(header));
	host_expect_refused(h, ERR_TOO_LARGE, "");
}
END_TEST

START_TEST(a_frame_at_the_cap_is_served)
{
	char *cmd = calloc(1, FRAME_MAX_TO_GUEST);
	memset(cmd, ' ', FRAME_MAX_TO_GUEST - 64);
	memcpy(cmd, "exit 4", 6);
	Sandgate__Exec m = exec_message("x", cmd);
	struct transcript t = host_run(&m);
	ck_assert_int_eq(t.result->exit_code, 4);
	transcript_free(&t);
	free(cmd);
}
END_TEST

START_TEST(garbage_is_a_protocol_error)
{
	static const uint8_t junk[] = {0, 0, 0, 3, 0xff, 0xff, 0xff};
	struct host *h = host_connect();
	host_send_bytes(h, junk, sizeof(junk));
	host_expect_refused(h, ERR_PROTOCOL, "");
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
	host_expect_refused(h, ERR_MISSING_TOKEN, "");
	o.protocol_version = PROTOCOL_VERSION;
	o.op_case = SANDGATE__OPEN__OP_PING;
	o.ping = &ping;
	o.token = BYTES("secreT");
	h = host_connect();
	host_send(h, SANDGATE__HOST_FRAME__BODY_OPEN, &o);
	host_expect_refused(h, ERR_INVALID_TOKEN, "");
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
	Sandgate__Metrics n = SANDGATE__METRICS__INIT;
	Sandgate__GuestFrame *g =
	    host_ask(SANDGATE__OPEN__OP_INFO, &m, SANDGATE__GUEST_FRAME__BODY_INFO);
	ck_assert_uint_eq(g->info->pid, (unsigned)getpid());
	ck_assert_uint_eq(g->info->agent_instance.len, 16);
	ck_assert_uint_gt(g->info->memory_bytes, MIB);
	host_free(g);
	g = host_ask(SANDGATE__OPEN__OP_METRICS, &n, SANDGATE__GUEST_FRAME__BODY_METRICS);
	ck_assert_uint_eq(g->metrics->sessions, 1);
	ck_assert_uint_gt(g->metrics->agent_rss_bytes, 0);
	host_free(g);
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
		struct transcript t = host_run(&m);
		transcript_free(&t);
	}
	struct host *h = host_opened(SANDGATE__OPEN__OP_LIST_EXECS, &l);
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
	struct transcript t = host_run(&m);
	transcript_free(&t);

	t = host_run(&m);
	ck_assert(t.existing);
	ck_assert_str_eq(t.out[0], "once\n");
	ck_assert_int_eq(t.result->exit_code, 3);
	transcript_free(&t);

	m.request_digest = BYTES("d2");
	host_expect_refused(host_exec(&m), ERR_EXEC_ID_CONFLICT, "exec_id");
}
END_TEST

START_TEST(a_forgotten_id_refuses_a_late_start)
{
	Sandgate__Exec m = exec_message("late", "true");
	host_forget("late");
	host_expect_refused(host_exec(&m), ERR_EXEC_ID_CONFLICT, "exec_id");
	host_expect_refused(host_attach("late", SANDGATE__ROLE__ROLE_OWNER, 0),
	                    ERR_EXEC_NOT_FOUND, "exec_id");
}
END_TEST

START_TEST(forgetting_kills_what_runs)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	struct host *h = host_start(&m);
	host_forget("x");
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	transcript_free(&t);
	turn_until(knows_no_exec, NULL);
}
END_TEST

/* Opened waits for Started, but not for long: a busy machine may need more than one try. */
START_TEST(the_first_answer_comes_in_one_write)
{
	bool whole = false;
	for (int i = 0; i < 20 && !whole; i++) {
		char id[8];
		uint8_t first[4096];
		ssize_t n;
		struct frame f;
		snprintf(id, sizeof(id), "x%d", i);
		Sandgate__Exec m = exec_message(id, "sleep 0.3");
		struct host *h = host_exec(&m);
		while ((n = recv(h->fd, first, sizeof(first), MSG_PEEK)) < 0)
			ev_run(fixture_loop(), EVRUN_ONCE);
		ck_assert(frame_parse(first, (size_t)n, FRAME_MAX_TO_HOST, &f) == FRAME_OK);
		whole = f.consumed < (size_t)n;
		host_close(h);
	}
	ck_assert(whole);
}
END_TEST

/* As many silent sessions as may be, of which the next connection would close some. */
#define SILENT SESSIONS_UNOPENED_MAX

static void connect_all(struct host **h, int count)
{
	for (int i = 0; i < count; i++)
		h[i] = host_connect();
}

static void close_all(struct host **h, int count)
{
	for (int i = 0; i < count; i++)
		host_close(h[i]);
}

static void let_them_age(void)
{
	turn_for((SESSION_YOUNG_MS + 100) / 1000.0);
}

static void send_ping(struct host *h)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	host_open(h, SANDGATE__OPEN__OP_PING, &ping);
}

START_TEST(of_too_many_silent_sessions_the_oldest_is_closed)
{
	struct host *h[SILENT + 1];
	connect_all(h, SILENT);
	let_them_age();
	connect_all(h + SILENT, 1);
	ck_assert(host_next(h[0]) == NULL);
	send_ping(h[1]);
	host_expect_only(h[1], SANDGATE__GUEST_FRAME__BODY_OPENED);
	close_all(h, SILENT + 1);
}
END_TEST

START_TEST(a_silent_session_whose_open_has_arrived_is_spared)
{
	struct host *h[SILENT + 1];
	connect_all(h, SILENT);
	let_them_age();
	send_ping(h[0]);
	connect_all(h + SILENT, 1);
	host_expect_only(h[0], SANDGATE__GUEST_FRAME__BODY_OPENED);
	ck_assert(host_next(h[1]) == NULL);
	close_all(h, SILENT + 1);
}
END_TEST

START_TEST(of_a_burst_of_sessions_none_is_closed)
{
	struct host *h[2 * SILENT];
	connect_all(h, 2 * SILENT);
	for (int i = 0; i < 2 * SILENT; i++) {
		send_ping(h[i]);
		host_expect_only(h[i], SANDGATE__GUEST_FRAME__BODY_OPENED);
	}
	close_all(h, 2 * SILENT);
}
END_TEST

START_TEST(shutdown_ends_execs_and_refuses_new_ones)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	Sandgate__Shutdown down = SANDGATE__SHUTDOWN__INIT;
	struct host *h = host_start(&m);
	down.grace_ms = 100;
	struct host *s = host_opened(SANDGATE__OPEN__OP_SHUTDOWN, &down);
	m.exec_id = (char *)"y";
	host_expect_refused(host_exec(&m), ERR_INVALID_STATE, "");
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_SHUTDOWN);
	transcript_free(&t);
	host_expect_only(s, SANDGATE__GUEST_FRAME__BODY_DONE);
	host_close(s);
}
END_TEST

int main(void)
{
	TCase *t = new_case("session", fixture_setup, NULL);
	tcase_add_test(t, a_nul_is_refused_wherever_it_is);
	tcase_add_test(t, faulty_fields_are_named);
	tcase_add_test(t, an_unknown_operation_is_refused);
	tcase_add_test(t, an_unknown_limit_is_refused);
	tcase_add_test(t, a_frame_over_the_cap_is_refused_by_its_header);
	tcase_add_test(t, a_frame_at_the_cap_is_served);
	tcase_add_test(t, garbage_is_a_protocol_error);
	tcase_add_test(t, the_token_is_asked_for);
	tcase_add_test(t, info_and_metrics_describe_the_agent);
	tcase_add_test(t, a_list_is_complete_and_ends_with_done);
	tcase_add_test(t, a_start_is_idempotent_by_digest);
	tcase_add_test(t, a_forgotten_id_refuses_a_late_start);
	tcase_add_test(t, forgetting_kills_what_runs);
	tcase_add_test(t, the_first_answer_comes_in_one_write);
	tcase_add_test(t, of_too_many_silent_sessions_the_oldest_is_closed);
	tcase_add_test(t, a_silent_session_whose_open_has_arrived_is_spared);
	tcase_add_test(t, of_a_burst_of_sessions_none_is_closed);
	tcase_add_test(t, shutdown_ends_execs_and_refuses_new_ones);
	return run_suite("session", t) != 0;
}
