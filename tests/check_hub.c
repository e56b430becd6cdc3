/* Watchers of one exec: they share a session, and a slow one is told what it missed. */
#include "tests/api_fixture.h"

#define WATCHERS 20

static struct peer *watch(const char *headers)
{
	return request("GET", "/execs/x/stream", headers, "");
}

START_TEST(watchers_of_a_silent_exec_share_one_session)
{
	for (int i = 0; i < WATCHERS; i++)
		watch("");
	UNTIL(all_have("\"type\":\"start\""));
	UNTIL(agent_watchers() == 1);
	agent_writes("hello");
	UNTIL(all_have("\"chunk\":\"hello\""));
	agent.finished = true;
	UNTIL(all_have("\"type\":\"exit\",\"exit_code\":7"));
	UNTIL(agent_watchers() == 0);
	ck_assert_uint_eq(hub_set_watchers(fx.api.hubs), 0);
}
END_TEST

START_TEST(a_late_watcher_catches_up_and_joins)
{
	watch("");
	agent_writes("early");
	UNTIL(all_have("early"));
	watch("");
	UNTIL(all_have("early"));
	UNTIL(agent_watchers() == 1);
	agent_writes("late");
	UNTIL(all_have("late"));
	ck_assert_uint_eq(agent_watchers(), 1);
}
END_TEST

START_TEST(one_that_stands_in_a_character_does_not_join_one_that_does_not)
{
	agent_writes("a\xe2");
	watch("");
	UNTIL(all_have("\"chunk\":\"a\""));
	watch("Last-Event-ID: x:2\r\n"); /* between the bytes: what follows is no character */
	UNTIL(all_have("\"type\":\"start\""));
	agent_writes("\x82\xac.");
	UNTIL(all_have(".\"}"));
	ck_assert(has(&fx.clients[0], "\xe2\x82\xac"));
	ck_assert(has(&fx.clients[1], "\xef\xbf\xbd"));
}
END_TEST

START_TEST(a_slow_watcher_gets_a_gap_and_stalls_nobody)
{
	struct peer *slow = watch(""), *quick = watch("");
	UNTIL(all_have("\"type\":\"start\""));
	UNTIL(agent_watchers() == 1);
	slow->deaf = true;
	for (int i = 0; i < 400; i++) {
		char text[10001];
		memset(text, 'y', 10000);
		text[10000] = '\0';
		agent_writes(text);
	}
	agent_writes("END");
	UNTIL(all_have("END"));
	ck_assert(!has(quick, "\"gap\""));
	slow->deaf = false;
	agent.finished = true;
	UNTIL(all_have("\"type\":\"exit\""));
	ck_assert(has(slow, "{\"type\":\"gap\",\"stream\":\"stdout\",\"bytes\":"));
	ck_assert(has(slow, "\"stdout_truncated\":true") &&
	          has(quick, "\"stdout_truncated\":false"));
}
END_TEST

START_TEST(the_last_one_that_goes_closes_the_session)
{
	watch("");
	watch("");
	UNTIL(agent_watchers() == 1);
	UNTIL(all_have("\"type\":\"start\""));
	peer_close(&fx.clients[0]);
	peer_close(&fx.clients[1]);
	UNTIL(agent_watchers() == 0);
	ck_assert_uint_eq(agent.cancelled, 0);
}
END_TEST

START_TEST(the_terminal_events_id_gets_204)
{
	agent_writes("ab");
	agent.finished = true;
	watch("Last-Event-ID: x:3\r\n");
	UNTIL(all_have("HTTP/1.1 204"));
	fx.clients[0].deaf = true; /* answered */
	watch("Last-Event-ID: x:2\r\n");
	UNTIL(all_have("\"type\":\"exit\""));
	fx.clients[1].deaf = true;
	watch("Last-Event-ID: x:4\r\n"); /* which no event ever had */
	UNTIL(all_have("request.invalid_field"));
}
END_TEST

START_TEST(an_id_of_the_future_is_refused)
{
	watch("Last-Event-ID: x:3\r\n");
	UNTIL(all_have("request.invalid_field"));
	watch("Last-Event-ID: y:0\r\n");
	UNTIL(all_have("request.invalid_field"));
}
END_TEST

static void break_link_after_a(void)
{
	watch("");
	agent_writes("a");
	UNTIL(all_have("\"chunk\":\"a\""));
	agent_cut();
}

START_TEST(a_lost_link_is_attached_again_where_it_broke)
{
	break_link_after_a();
	UNTIL(agent_watchers() == 1 && agent.attached == 2);
	agent_writes("b");
	agent.finished = true;
	UNTIL(all_have("\"type\":\"exit\",\"exit_code\":7"));
	ck_assert(has(&fx.clients[0], "\"chunk\":\"b\"") &&
	          !has(&fx.clients[0], "\"type\":\"error\""));
}
END_TEST

START_TEST(an_exec_that_is_gone_after_the_break_is_lost)
{
	break_link_after_a();
	agent.vanished = true;
	UNTIL(all_have("\"code\":\"sandbox.lost\""));
}
END_TEST

START_TEST(each_watcher_is_told_whether_its_own_text_was_repaired)
{
	agent_writes("\xff");
	watch("");
	watch("Last-Event-ID: x:1\r\n");
	UNTIL(all_have("\"type\":\"start\""));
	UNTIL(agent_watchers() == 1);
	agent.finished = true;
	UNTIL(all_have("\"type\":\"exit\""));
	ck_assert(has(&fx.clients[0], "\"encoding_lossy\":true"));
	ck_assert(has(&fx.clients[1], "\"encoding_lossy\":false"));
}
END_TEST

START_TEST(shutting_down_tells_every_watcher)
{
	watch("");
	watch("");
	UNTIL(all_have("\"type\":\"start\""));
	hub_set_suspend(fx.api.hubs);
	UNTIL(all_have("\"code\":\"bridge.draining\""));
}
END_TEST

int main(void)
{
	TCase *t = new_case("hub", fixture_setup, fixture_teardown);
	tcase_add_test(t, watchers_of_a_silent_exec_share_one_session);
	tcase_add_test(t, a_late_watcher_catches_up_and_joins);
	tcase_add_test(t, one_that_stands_in_a_character_does_not_join_one_that_does_not);
	tcase_add_test(t, a_slow_watcher_gets_a_gap_and_stalls_nobody);
	tcase_add_test(t, the_last_one_that_goes_closes_the_session);
	tcase_add_test(t, a_lost_link_is_attached_again_where_it_broke);
	tcase_add_test(t, an_exec_that_is_gone_after_the_break_is_lost);
	tcase_add_test(t, each_watcher_is_told_whether_its_own_text_was_repaired);
	tcase_add_test(t, the_terminal_events_id_gets_204);
	tcase_add_test(t, an_id_of_the_future_is_refused);
	tcase_add_test(t, shutting_down_tells_every_watcher);
	return run_suite("hub", t) != 0;
}
