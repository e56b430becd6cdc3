/* Waiting for an exec's end: any number of waiters share a session, each gets what is true when
 * its time is over, an end that was seen is never lost, and a link that breaks is no end. */
#include "host-bridge/sandbox/sandbox_steps.h"
#include "tests/api_fixture.h"

#define WAITERS 100

static struct peer *await(const char *seconds)
{
	char path[64];
	snprintf(path, sizeof(path), "/execs/x?wait_seconds=%s", seconds);
	return request("GET", path, "", "");
}

static struct sandbox *the_sandbox(void)
{
	struct err e;
	return sandbox_find(fx.api.sandboxes, fx.id, NULL, &e);
}

START_TEST(all_waiters_share_a_session)
{
	size_t before = agent.session_count;
	for (int i = 0; i < WAITERS; i++)
		await("60");
	UNTIL(agent_watchers() == 1);
	agent.finished = true;
	UNTIL(all_have("\"state\":\"finished\""));
	/* to ask, to wait, to ask again, and spare ones meanwhile */
	ck_assert_uint_le(agent.session_count - before, 6);
	UNTIL(agent_watchers() == 0);
}
END_TEST

START_TEST(who_has_waited_long_enough_gets_it_as_it_runs)
{
	struct peer *patient = await("60");
	UNTIL(agent_watchers() == 1);
	struct peer *hasty = await(_i == 0 ? "0.001" : "0.05");
	UNTIL(has(hasty, "\"state\":\"running\""));
	ck_assert(!has(patient, "HTTP/"));
	agent.finished = true;
	UNTIL(all_have("HTTP/1.1 200"));
	ck_assert(has(patient, "\"state\":\"finished\""));
}
END_TEST

START_TEST(time_that_is_over_before_the_first_answer_waits_for_it)
{
	await("0.000001");
	UNTIL(all_have("\"state\":\"running\""));
	UNTIL(agent_watchers() == 0);
}
END_TEST

START_TEST(the_end_of_an_exec_that_was_forgotten_is_told)
{
	await("60");
	UNTIL(agent_watchers() == 1);
	agent.finished = agent.vanished = true;
	UNTIL(all_have("\"state\":\"finished\""));
	ck_assert(has(&fx.clients[0], "\"exit_code\":7"));
}
END_TEST

START_TEST(an_unknown_exec_is_not_found)
{
	agent.vanished = true;
	agent.hang_ups = _i;
	await("60");
	UNTIL(all_have("exec.not_found"));
}
END_TEST

START_TEST(a_lost_guest_is_told_to_all)
{
	const struct err why = {.code = ERR_SANDBOX_LOST, .msg = "the VM has ended"};
	await("60");
	await("60");
	UNTIL(agent_watchers() == 1);
	agent_cut();
	sandbox_failed(the_sandbox(), &why);
	UNTIL(all_have("sandbox.lost"));
}
END_TEST

START_TEST(a_broken_link_is_attached_again)
{
	await("60");
	await("60");
	UNTIL(agent_watchers() == 1);
	agent.hang_ups = _i == 0 ? 0 : REATTACH_TRIES - 1;
	agent_cut();
	UNTIL(agent_watchers() == 1 && agent.attached == 2);
	agent.finished = true;
	UNTIL(all_have("\"state\":\"finished\""));
}
END_TEST

START_TEST(an_exec_that_ended_while_the_link_was_broken_is_told)
{
	await("60");
	UNTIL(agent_watchers() == 1);
	agent.finished = true;
	agent_cut();
	UNTIL(all_have("\"state\":\"finished\""));
	ck_assert_uint_eq(agent.attached, 1);
}
END_TEST

START_TEST(time_that_is_over_while_the_link_is_broken_waits_for_what_is_true)
{
	struct peer *patient = await("60");
	UNTIL(agent_watchers() == 1);
	agent.hang_ups = 1;
	agent_cut();
	UNTIL(agent.hang_ups == 0);
	await("0.000001"); /* long before the next try */
	agent.finished = true;
	UNTIL(all_have("HTTP/1.1 200"));
	ck_assert(has(patient, "\"state\":\"finished\""));
	ck_assert(has(&fx.clients[1], "\"state\":\"finished\""));
}
END_TEST

START_TEST(an_agent_that_hangs_up_for_ever_is_lost)
{
	await("60");
	UNTIL(agent_watchers() == 1);
	agent.hang_ups = 1000;
	ev_tstamp began = ev_time();
	agent_cut();
	UNTIL(all_have("sandbox.lost"));
	ck_assert_uint_eq(agent.hang_ups, 1000 - REATTACH_TRIES);
	ck_assert(ev_time() - began > 0.9 * REATTACH_TRIES * REATTACH_PAUSE_MS / 1e3);
}
END_TEST

START_TEST(an_exec_that_is_gone_after_the_break_is_lost)
{
	await("60");
	UNTIL(agent_watchers() == 1);
	agent.vanished = true;
	agent_cut();
	UNTIL(all_have("sandbox.lost"));
}
END_TEST

START_TEST(a_sandbox_that_is_deleted_while_the_link_is_broken_is_gone)
{
	await("60");
	UNTIL(agent_watchers() == 1);
	agent.hang_ups = 1;
	agent_cut();
	UNTIL(agent.hang_ups == 0);
	sandbox_delete(the_sandbox(), SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, NULL,
	               NULL);
	UNTIL(all_have("sandbox.gone"));
}
END_TEST

START_TEST(the_last_one_that_goes_closes_the_session)
{
	await("60");
	await("60");
	UNTIL(agent_watchers() == 1);
	peer_close(&fx.clients[0]);
	peer_close(&fx.clients[1]);
	UNTIL(agent_watchers() == 0);
	ck_assert_uint_eq(agent.cancelled, 0);
}
END_TEST

START_TEST(a_kill_waits_for_the_end_as_others_do)
{
	await("60");
	UNTIL(agent_watchers() == 1);
	request("POST", "/execs/x/kill", "", "");
	UNTIL(agent.cancelled > 0);
	agent.finished = true;
	UNTIL(all_have("\"state\":\"finished\""));
}
END_TEST

int main(void)
{
	TCase *t = new_case("exec_wait", fixture_setup, fixture_teardown);
	tcase_add_test(t, all_waiters_share_a_session);
	tcase_add_loop_test(t, who_has_waited_long_enough_gets_it_as_it_runs, 0, 2);
	tcase_add_test(t, time_that_is_over_before_the_first_answer_waits_for_it);
	tcase_add_test(t, the_end_of_an_exec_that_was_forgotten_is_told);
	tcase_add_loop_test(t, an_unknown_exec_is_not_found, 0, 2);
	tcase_add_test(t, a_lost_guest_is_told_to_all);
	tcase_add_loop_test(t, a_broken_link_is_attached_again, 0, 2);
	tcase_add_test(t, an_exec_that_ended_while_the_link_was_broken_is_told);
	tcase_add_test(t, time_that_is_over_while_the_link_is_broken_waits_for_what_is_true);
	tcase_add_test(t, an_agent_that_hangs_up_for_ever_is_lost);
	tcase_add_test(t, an_exec_that_is_gone_after_the_break_is_lost);
	tcase_add_test(t, a_sandbox_that_is_deleted_while_the_link_is_broken_is_gone);
	tcase_add_test(t, the_last_one_that_goes_closes_the_session);
	tcase_add_test(t, a_kill_waits_for_the_end_as_others_do);
	return run_suite("exec_wait", t) != 0;
}
