/* The events of execs, as the agent tells of those that no call follows. */
#include "host-bridge/sandbox/event_log.h"
#include "tests/api_fixture.h"

static struct sandbox *sandbox;
static uint64_t seen; /* the next event to look at */

static struct event_log *events(void)
{
	return sandbox_set_events(fx.api.sandboxes);
}

/* The next event, which must be this one. */
static void expect_event(const char *type, const char *id, const char *detail)
{
	UNTIL(event_log_at(events(), seen) != NULL);
	const struct event *e = event_log_at(events(), seen++);
	ck_assert_str_eq(e->type, type);
	ck_assert_str_eq(e->exec_id, id);
	ck_assert_str_eq(e->detail != NULL ? e->detail : "", detail);
}

/* The exec that is there already, whoever left it, is out of the way. */
static void setup(void)
{
	struct err e;
	agent_tells = true;
	fixture_setup();
	sandbox = sandbox_find(fx.api.sandboxes, fx.id, NULL, &e);
	ck_assert_ptr_nonnull(sandbox);
	seen = event_log_next(events());
	UNTIL(agent_followers() == 1);
	agent.finished = true;
	ck_assert_uint_eq(agent_followers(), 1);
	expect_event("exec_ended", "x", "exited");
	agent_cut();
	agent.finished = false;
	agent.listed = 0;
}

static void setup_silent(void)
{
	agent_tells = false;
	fixture_setup();
	seen = event_log_next(events());
}

static void start_and_leave(const char *id)
{
	struct sandbox_exec x;
	sandbox_exec_follow(sandbox, &x, id);
	sandbox_exec_started(&x);
	sandbox_exec_left(&x);
	expect_event("exec_started", id, "");
}

START_TEST(the_end_of_one_that_was_left_is_told_once)
{
	start_and_leave("x");
	UNTIL(agent_followers() == 1);
	agent.finished = true;
	ck_assert_uint_eq(agent_followers(), 1);
	expect_event("exec_ended", "x", "exited");
	agent_cut();
	start_and_leave("y");
	expect_event("exec_ended", "y", "");
}
END_TEST

START_TEST(one_that_the_agent_does_not_know_has_ended)
{
	agent.vanished = true;
	start_and_leave("x");
	expect_event("exec_ended", "x", "");
}
END_TEST

START_TEST(what_ends_while_the_link_is_broken_is_in_the_list)
{
	start_and_leave("x");
	UNTIL(agent_followers() == 1);
	agent_cut();
	agent.finished = true;
	expect_event("exec_ended", "x", "exited");
}
END_TEST

/* The agent's two sessions are not in step. */
START_TEST(an_end_that_is_told_before_the_start_follows_it)
{
	struct sandbox_exec x;
	start_and_leave("y");
	UNTIL(agent_followers() == 1);
	expect_event("exec_ended", "y", "");
	sandbox_exec_follow(sandbox, &x, "x");
	agent.finished = true;
	UNTIL(agent_followers() == 1 && x.outcome != NULL);
	sandbox_exec_started(&x);
	expect_event("exec_started", "x", "");
	sandbox_exec_left(&x);
	expect_event("exec_ended", "x", "exited");
}
END_TEST

START_TEST(one_that_was_left_before_its_start_was_seen_is_told_if_it_is_there)
{
	struct sandbox_exec x;
	sandbox_exec_follow(sandbox, &x, "x");
	sandbox_exec_left(&x);
	expect_event("exec_started", "x", "");
	agent.finished = true;
	UNTIL(agent_followers() == 1);
	expect_event("exec_ended", "x", "exited");
}
END_TEST

START_TEST(one_that_never_came_to_be_is_not_told)
{
	struct sandbox_exec x;
	agent.vanished = true;
	start_and_leave("w");
	expect_event("exec_ended", "w", "");
	sandbox_exec_follow(sandbox, &x, "x");
	sandbox_exec_left(&x);
	UNTIL(agent.listed == 2); /* though it was listened to */
	agent_cut();
	start_and_leave("y");
	expect_event("exec_ended", "y", "");
}
END_TEST

START_TEST(a_call_that_ends_tells_of_it_and_not_the_agent)
{
	struct sandbox_exec x;
	start_and_leave("y");
	UNTIL(agent_followers() == 1);
	expect_event("exec_ended", "y", "");
	sandbox_exec_follow(sandbox, &x, "x");
	sandbox_exec_started(&x);
	expect_event("exec_started", "x", "");
	agent.finished = true;
	UNTIL(agent_followers() == 1 && x.outcome != NULL);
	sandbox_exec_ended(&x, "exited");
	expect_event("exec_ended", "x", "exited");
	agent_cut();
	start_and_leave("z");
	expect_event("exec_ended", "z", "");
}
END_TEST

START_TEST(it_is_not_listened_to_when_nothing_is_left)
{
	agent.vanished = true;
	start_and_leave("x");
	UNTIL(agent_followers() == 1);
	expect_event("exec_ended", "x", "");
	UNTIL(agent_followers() == 0);
}
END_TEST

/* An agent that never tells of an end costs a bounded amount of memory. */
START_TEST(of_too_many_the_last_are_not_told)
{
	char id[32];
	unsigned ended = 0;
	agent.vanished = true;
	for (unsigned i = 0; i < WATCHED_MAX + 100; i++) {
		snprintf(id, sizeof(id), "e%u", i);
		start_and_leave(id);
	}
	start_and_leave("last");
	UNTIL(agent.listed == 1);
	UNTIL(event_log_next(events()) >= seen + WATCHED_MAX);
	while (event_log_at(events(), seen) != NULL)
		ended += strcmp(event_log_at(events(), seen++)->type, "exec_ended") == 0;
	ck_assert_uint_eq(ended, WATCHED_MAX);
}
END_TEST

START_TEST(one_that_was_attached_to_before_its_start_was_seen_is_told_by_one_call)
{
	struct sandbox_exec first, second;
	sandbox_exec_follow(sandbox, &first, "x");
	sandbox_exec_follow(sandbox, &second, "x");
	sandbox_exec_attached(&second); /* the first may have started it */
	sandbox_exec_attached(&first);
	sandbox_exec_left(&second);
	sandbox_exec_ended(&first, "exited");
	expect_event("exec_started", "x", "");
	expect_event("exec_ended", "x", "exited");
	ck_assert_ptr_null(event_log_at(events(), seen));
}
END_TEST

START_TEST(an_agent_that_cannot_tell_is_not_asked)
{
	struct err e;
	sandbox = sandbox_find(fx.api.sandboxes, fx.id, NULL, &e);
	start_and_leave("x");
	double seconds = 0.2; /* then it is asked whether something keeps the sandbox */
	ck_assert_int_eq(
	    sandbox_patch(sandbox, &(struct sandbox_patch){.ttl_seconds = &seconds}, &e), 0);
	UNTIL(agent.listed == 1);
	ck_assert_uint_eq(agent_followers(), 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("watch", setup, fixture_teardown);
	TCase *silent = new_case("silent", setup_silent, fixture_teardown);
	tcase_add_test(t, the_end_of_one_that_was_left_is_told_once);
	tcase_add_test(t, one_that_the_agent_does_not_know_has_ended);
	tcase_add_test(t, what_ends_while_the_link_is_broken_is_in_the_list);
	tcase_add_test(t, an_end_that_is_told_before_the_start_follows_it);
	tcase_add_test(t, one_that_was_left_before_its_start_was_seen_is_told_if_it_is_there);
	tcase_add_test(t, one_that_never_came_to_be_is_not_told);
	tcase_add_test(t, a_call_that_ends_tells_of_it_and_not_the_agent);
	tcase_add_test(t, it_is_not_listened_to_when_nothing_is_left);
	tcase_add_test(t, of_too_many_the_last_are_not_told);
	tcase_add_test(t,
	               one_that_was_attached_to_before_its_start_was_seen_is_told_by_one_call);
	tcase_add_test(silent, an_agent_that_cannot_tell_is_not_asked);
	return run_suite("watch", t, silent);
}
