/* A prepared sandbox whose owner never says how it goes on. Time is made to pass. */
#include <sys/syscall.h>
#include <time.h>

#include "host-bridge/sandbox/event_log.h"
#include "tests/attach_fixture.h"

static time_t ahead; /* seconds that nobody has waited for */

/* In place of the C library's, for the bridge's code and libev's. */
int clock_gettime(clockid_t id, struct timespec *t)
{
	long rc = syscall(SYS_clock_gettime, id, t);
	if (rc == 0 && id == CLOCK_MONOTONIC)
		t->tv_sec += ahead;
	return (int)rc;
}

static void pass_in_no_time(time_t seconds)
{
	ahead += seconds;
	ev_now_update(loop);
}

static int changes;

static void on_changed(struct sandbox *s, struct snapshot *n, const struct err *e, void *arg)
{
	(void)s;
	(void)n;
	(void)arg;
	ck_assert_ptr_null(e);
	changes++;
}

static struct sandbox *prepare(void)
{
	struct err e = {0};
	struct sandbox *s = create_running(&spec);
	UNTIL(agent.sessions == 2); /* the question, the spare */
	ck_assert_int_eq(sandbox_prepare(s, on_changed, NULL, &e), 0);
	UNTIL(changes == 1);
	return s;
}

static bool is_prepared(struct sandbox *s)
{
	struct err e = {0};
	ck_assert_int_eq(sandbox_prepare(s, on_changed, NULL, &e), -1);
	ck_assert_int_eq(e.code, ERR_INVALID_STATE);
	return true;
}

static const struct event *last_event(void)
{
	struct event_log *log = sandbox_set_events(set);
	return event_log_at(log, event_log_next(log) - 1);
}

static bool went_on(void)
{
	const struct event *e = last_event();
	return strcmp(e->type, "resumed") == 0 && strcmp(e->detail, "self") == 0;
}

/* The agent is asked whether it goes on. */
static void look(int seconds)
{
	int before = agent.sessions;
	pass_in_no_time(seconds);
	UNTIL(agent.sessions > before);
}

START_TEST(an_agent_that_goes_on_by_itself_is_let_go_on)
{
	struct sandbox *s = prepare();
	look(SELF_RESUME_S);
	settle();
	ck_assert(!went_on() && is_prepared(s));
	agent.prepared = false;
	look(BRACKET_LOOK_S);
	UNTIL(went_on());
}
END_TEST

START_TEST(an_agent_that_answers_no_more_is_given_up_in_the_end)
{
	struct sandbox *s = prepare();
	agent.mute = true;
	look(SELF_RESUME_S);
	pass_in_no_time(BRACKET_ANSWER_S);
	look(BRACKET_LOOK_S);
	ck_assert(!went_on() && is_prepared(s));

	pass_in_no_time(BRACKET_MAX_S - SELF_RESUME_S);
	UNTIL(went_on());
	int before = agent.sessions;
	UNTIL(agent.sessions > before); /* a spare link: who waits is let in */
}
END_TEST

int main(void)
{
	TCase *t = new_case("bracket", setup, teardown);
	tcase_add_test(t, an_agent_that_goes_on_by_itself_is_let_go_on);
	tcase_add_test(t, an_agent_that_answers_no_more_is_given_up_in_the_end);
	return run_suite("bracket", t) != 0;
}
