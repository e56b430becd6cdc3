/* What flows through a session: input, signals, and output that nobody takes. */
#include <signal.h>
#include <stdio.h>

#include "tests/agent_fixture.h"

/* ---- control ---- */

START_TEST(control_feeds_stdin_by_offset)
{
	Sandgate__Exec m = exec_message("x", "cat");
	Sandgate__CloseStdin c = SANDGATE__CLOSE_STDIN__INIT;
	uint64_t at = 3;
	m.stdin_open = 1;
	m.stdin = BYTES("abc");
	struct host *h = host_start(&m);
	struct host *ctl = host_attached("x", SANDGATE__ROLE__ROLE_CONTROL, 0);
	Sandgate__GuestFrame *g = host_expect(ctl, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE);
	ck_assert_uint_eq(g->exec_state->stdin_offset, 3);
	host_free(g);
	host_send_stdin(ctl, "def", &at);
	g = host_expect(ctl, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	ck_assert_uint_eq(g->stdin_ack->offset, 6);
	ck_assert(!g->stdin_ack->closed);
	host_free(g);
	host_send_stdin(ctl, "def", &at); /* a retry */
	g = host_expect(ctl, SANDGATE__GUEST_FRAME__BODY_REFUSED);
	ck_assert_int_eq(g->refused->code, ERR_STDIN_OFFSET);
	ck_assert_uint_eq(g->refused->offset->value, 6);
	host_free(g);
	host_close(ctl);

	ctl = host_attached("x", SANDGATE__ROLE__ROLE_CONTROL, 0);
	host_expect_only(ctl, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE);
	host_send(ctl, SANDGATE__HOST_FRAME__BODY_CLOSE_STDIN, &c);
	g = host_expect(ctl, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	ck_assert(g->stdin_ack->closed);
	host_free(g);
	host_close(ctl);
	struct transcript t = host_finish(h, 0);
	ck_assert_str_eq(t.out[0], "abcdef");
	transcript_free(&t);
}
END_TEST

START_TEST(input_that_is_not_read_delays_its_ack_and_nothing_else)
{
	char *text = calloc(1, 4 * STDIN_WINDOW);
	Sandgate__Exec m = exec_message("x", "sleep 60");
	memset(text, 'x', 4 * STDIN_WINDOW - 1);
	m.stdin_open = 1;
	struct host *h = host_start(&m);
	host_send_stdin(h, text, NULL);
	host_cancel(h, SANDGATE__CANCEL_REASON__CANCEL_KILLED);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	transcript_free(&t);
	free(text);
}
END_TEST

START_TEST(a_signal_is_delivered_and_its_death_is_signaled)
{
	Sandgate__Exec m = exec_message("x", "sleep 60 & wait");
	Sandgate__Signal sig = SANDGATE__SIGNAL__INIT;
	struct host *h = host_start(&m);
	sig.signal = SIGUSR1;
	sig.all = 1;
	host_send(h, SANDGATE__HOST_FRAME__BODY_SIGNAL, &sig);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_SIGNALED);
	ck_assert_uint_eq(t.result->signal, SIGUSR1);
	transcript_free(&t);
}
END_TEST

/* ---- back-pressure ---- */

static struct ring_budget *budget(void)
{
	return &exec_table_env(agent_table(fixture_agent))->budget;
}

static bool window_is_full(void *arg)
{
	(void)arg;
	return budget()->used >= OWNER_WINDOW;
}

static bool nothing_runs(void *arg)
{
	(void)arg;
	return exec_table_counts(agent_table(fixture_agent)).running == 0;
}

START_TEST(a_slow_owner_holds_the_process_not_the_memory)
{
	Sandgate__Exec m = exec_message("x", "head -c 5000000 /dev/zero");
	struct host *h = host_start(&m);
	turn_until(window_is_full, NULL);
	turn_for(0.2);
	ck_assert_uint_lt(budget()->used, OWNER_WINDOW + MIB);
	ck_assert(!nothing_runs(NULL));
	struct transcript t = host_finish(h, 0);
	ck_assert_uint_eq(t.len[0], 5000000);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
}
END_TEST

START_TEST(an_owner_that_never_reads_is_no_obstacle_to_the_timeout)
{
	Sandgate__Exec m = exec_message("x", "yes");
	m.timeout_ms = 300;
	struct host *h = host_start(&m);
	turn_until(nothing_runs, NULL);
	ck_assert_uint_lt(budget()->used, 4 * MIB);
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
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
	struct host *h = host_start(&m);
	struct host *slow = host_attached("x", SANDGATE__ROLE__ROLE_OUTPUT, 0);
	host_send_stdin(h, "go\n", NULL);
	struct transcript t = host_finish(h, 0);
	ck_assert_uint_eq(t.len[0], 9000000);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
	t = host_finish(slow, 0);
	ck_assert_uint_gt(t.gap_bytes, 0);
	ck_assert_uint_eq(t.len[0] + t.gap_bytes, 9000000);
	transcript_free(&t);
}
END_TEST

/* Until the kernel and the agent have had enough. */
START_TEST(a_follower_that_does_not_read_is_closed_and_stalls_nothing)
{
	Sandgate__ListExecs l = SANDGATE__LIST_EXECS__INIT;
	char id[EXEC_ID_MAX + 1];
	bool closed = false;
	l.follow = 1;
	struct host *slow = host_opened(SANDGATE__OPEN__OP_LIST_EXECS, &l);
	for (unsigned i = 0; i < 10000 && !closed; i++) {
		snprintf(id, sizeof(id), "%0*u", EXEC_ID_MAX, i);
		Sandgate__Exec m = exec_message(id, "true");
		m.user = BYTES("nobody-of-this-name");
		struct transcript t = host_run(&m);
		ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED);
		transcript_free(&t);
		closed = send(slow->fd, "", 0, MSG_NOSIGNAL) < 0 && errno == EPIPE;
	}
	ck_assert(closed);
	host_close(slow);
}
END_TEST

START_TEST(retained_output_yields_to_the_budget)
{
	budget()->limit = MIB;
	for (int i = 0; i < 4; i++) {
		char id[8];
		snprintf(id, sizeof(id), "e%d", i);
		Sandgate__Exec m = exec_message(id, "head -c 400000 /dev/zero");
		struct transcript t = host_run(&m);
		ck_assert_uint_eq(t.len[0], 400000);
		transcript_free(&t);
		ck_assert_uint_le(budget()->used, MIB);
	}
	struct transcript t = host_outcome_of("e0");
	ck_assert_uint_eq(t.gap_bytes, 400000);
	transcript_free(&t);
	t = host_outcome_of("e3");
	ck_assert_uint_eq(t.gap_bytes, 0);
	transcript_free(&t);
}
END_TEST

int main(void)
{
	TCase *t = new_case("session_flow", fixture_setup, NULL);
	tcase_add_test(t, control_feeds_stdin_by_offset);
	tcase_add_test(t, input_that_is_not_read_delays_its_ack_and_nothing_else);
	tcase_add_test(t, a_signal_is_delivered_and_its_death_is_signaled);
	tcase_add_test(t, a_slow_owner_holds_the_process_not_the_memory);
	tcase_add_test(t, an_owner_that_never_reads_is_no_obstacle_to_the_timeout);
	tcase_add_test(t, a_slow_watcher_gets_a_gap_and_stalls_nothing);
	tcase_add_test(t, a_follower_that_does_not_read_is_closed_and_stalls_nothing);
	tcase_add_test(t, retained_output_yields_to_the_budget);
	return run_suite("session_flow", t) != 0;
}
