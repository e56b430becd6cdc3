/* Prepare: what an agent does and refuses until it is resumed, and what goes on meanwhile. */
#include "tests/snapshot_fixture.h"

START_TEST(a_prepared_agent_takes_no_work_and_answers_questions)
{
	Sandgate__Exec m = exec_message("a", "echo a");
	Sandgate__Info info = SANDGATE__INFO__INIT;
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	Sandgate__Metrics metrics = SANDGATE__METRICS__INIT;
	Sandgate__ForgetExec forget = SANDGATE__FORGET_EXEC__INIT;

	prepare();
	host_expect_refused(host_exec(&m), ERR_INVALID_STATE, "");
	host_expect_refused(host_attach("a", SANDGATE__ROLE__ROLE_CONTROL, 0),
	                    ERR_INVALID_STATE, "");
	forget.exec_id = "a";
	struct host *h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_FORGET_EXEC, &forget);
	host_expect_refused(h, ERR_INVALID_STATE, "");
	host_ask_only(SANDGATE__OPEN__OP_INFO, &info, SANDGATE__GUEST_FRAME__BODY_INFO);
	host_ask_only(SANDGATE__OPEN__OP_PING, &ping, SANDGATE__GUEST_FRAME__BODY_PONG);
	host_ask_only(SANDGATE__OPEN__OP_METRICS, &metrics,
	              SANDGATE__GUEST_FRAME__BODY_METRICS);
	prepare();
	resume_same();
	struct transcript t = host_finish(host_start(&m), 0);
	ck_assert_str_eq(t.out[0], "a\n");
	transcript_free(&t);
}
END_TEST

START_TEST(no_session_outlives_prepare)
{
	Sandgate__Exec m = exec_message("a", "sleep 60");
	struct host *sessions[] = {host_connect(), host_start(&m), attach("a", 0),
	                           host_attach("a", SANDGATE__ROLE__ROLE_CONTROL, 0),
	                           host_attach("a", SANDGATE__ROLE__ROLE_OUTPUT, 0)};
	Sandgate__Metrics metrics = SANDGATE__METRICS__INIT;

	host_expect_only(sessions[3], SANDGATE__GUEST_FRAME__BODY_OPENED);
	host_expect_only(sessions[4], SANDGATE__GUEST_FRAME__BODY_OPENED);
	prepare();
	Sandgate__GuestFrame *g =
	    host_ask(SANDGATE__OPEN__OP_METRICS, &metrics, SANDGATE__GUEST_FRAME__BODY_METRICS);
	ck_assert_uint_eq(g->metrics->sessions, 1);
	host_free(g);
	host_expect_end(sessions[0]);
	for (size_t i = 1; i < sizeof(sessions) / sizeof(sessions[0]); i++)
		ck_assert_uint_eq(read_suspended(sessions[i], 0, NULL), 0);
}
END_TEST

/* Both sessions speak in one turn of the loop, in either order. */
START_TEST(a_refused_session_is_not_suspended)
{
	Sandgate__Exec m = exec_message("a", "sleep 60");
	Sandgate__Prepare p = SANDGATE__PREPARE__INIT;
	struct host *refused[] = {host_start(&m), NULL, NULL};
	struct host *asking = host_connect();

	refused[1] = attach("a", 0);
	host_expect_only(refused[1], SANDGATE__GUEST_FRAME__BODY_STARTED);
	host_send_bytes(refused[0], "\377\377\377\377", 4);
	host_open(asking, SANDGATE__OPEN__OP_PREPARE, &p);
	host_send_bytes(refused[1], "\377\377\377\377", 4);
	host_expect_only(asking, SANDGATE__GUEST_FRAME__BODY_OPENED);
	end_prepare(asking);
	for (size_t i = 0; refused[i] != NULL; i++) {
		host_free(host_next(refused[i])); /* Refused, or Suspended */
		host_expect_end(refused[i]);
	}
}
END_TEST

START_TEST(an_agent_that_hears_nothing_goes_on)
{
	Sandgate__Exec m = exec_message("a", "sleep 60"), after = exec_message("b", "echo b");

	m.link_grace_ms = 100;
	fixture_config.self_resume_s = 1;
	struct host *owner = host_start(&m);
	prepare();
	read_suspended(owner, 0, NULL);
	expect_cancelled("a", SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
	struct transcript t = host_finish(host_start(&after), 0);
	ck_assert_str_eq(t.out[0], "b\n");
	transcript_free(&t);
	resume_clone(); /* it is still to be told what it is */
}
END_TEST

START_TEST(a_shutdown_refuses_prepare_and_ends_it)
{
	Sandgate__Exec m = exec_message("a", "trap '' TERM; echo up; sleep 60");
	Sandgate__Shutdown down = SANDGATE__SHUTDOWN__INIT;
	Sandgate__Prepare again = SANDGATE__PREPARE__INIT;
	struct host *owner = host_start(&m);

	host_expect_output(owner, "up\n");
	prepare();
	ck_assert_uint_eq(read_suspended(owner, 3, NULL), 0);
	down.grace_ms = 1000;
	struct host *h = host_opened(SANDGATE__OPEN__OP_SHUTDOWN, &down);
	struct host *late = host_connect();
	host_open(late, SANDGATE__OPEN__OP_PREPARE, &again);
	host_expect_refused(late, ERR_INVALID_STATE, "");
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	host_close(h);
}
END_TEST

START_TEST(nobody_is_lost_while_the_agent_is_prepared)
{
	Sandgate__Exec a = exec_message("a", "sleep 60"), b = exec_message("b", "sleep 60");

	a.link_grace_ms = b.link_grace_ms = 1000;
	struct host *suspended = host_start(&a), *lost = host_start(&b);
	host_close(lost);
	prepare();
	read_suspended(suspended, 0, NULL);
	turn_for(1.2);
	ck_assert_int_eq(exec_state(find_exec("a")), EXEC_RUNNING);
	ck_assert_int_eq(exec_state(find_exec("b")), EXEC_RUNNING);
	resume_same();
	struct host *h = attach("b", 0);
	expect_cancelled("a", SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
	ck_assert_int_eq(exec_state(find_exec("b")), EXEC_RUNNING);
	host_close(h);
}
END_TEST

START_TEST(a_deadline_runs_on_while_prepared)
{
	Sandgate__Exec m = exec_message("a", "sleep 60");

	m.timeout_ms = 1000;
	struct host *h = host_start(&m);
	prepare();
	read_suspended(h, 0, NULL);
	turn_until(is_finished, "a");
	resume_same();
	struct transcript t = host_finish(attach("a", 0), 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	transcript_free(&t);
}
END_TEST

static bool takes_no_more(void *length)
{
	return exec_stdin_offset(find_exec("a")) == *(size_t *)length;
}

START_TEST(input_that_was_taken_is_acknowledged_first)
{
	size_t len = 3 * STDIN_WINDOW;
	Sandgate__Exec m = exec_message("a", AWAIT_GO "wc -c");
	Sandgate__Stdin in = SANDGATE__STDIN__INIT;
	Sandgate__CloseStdin end = SANDGATE__CLOSE_STDIN__INIT;

	m.stdin_open = true;
	struct host *h = host_start(&m);
	in.data = (ProtobufCBinaryData){len, calloc(1, len)};
	host_send(h, SANDGATE__HOST_FRAME__BODY_STDIN, &in);
	turn_until(takes_no_more, &len);
	prepare();
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	ck_assert_uint_eq(g->stdin_ack->offset, len);
	host_free(g);
	ck_assert_uint_eq(read_suspended(h, 0, NULL), 0);
	resume_same();
	go();
	h = attach("a", 0);
	host_send(h, SANDGATE__HOST_FRAME__BODY_CLOSE_STDIN, &end);
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(atoi(t.out[0]), (int)len);
	transcript_free(&t);
	free(in.data.data);
}
END_TEST

int main(void)
{
	TCase *t = new_case("snapshot", setup, NULL);
	tcase_add_test(t, a_prepared_agent_takes_no_work_and_answers_questions);
	tcase_add_test(t, no_session_outlives_prepare);
	tcase_add_test(t, a_refused_session_is_not_suspended);
	tcase_add_test(t, an_agent_that_hears_nothing_goes_on);
	tcase_add_test(t, a_shutdown_refuses_prepare_and_ends_it);
	tcase_add_test(t, nobody_is_lost_while_the_agent_is_prepared);
	tcase_add_test(t, a_deadline_runs_on_while_prepared);
	tcase_add_test(t, input_that_was_taken_is_acknowledged_first);
	return run_suite("snapshot", t) != 0;
}
