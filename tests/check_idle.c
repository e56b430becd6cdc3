/* The end of a sandbox's idle time: only its agent knows whether something runs in it. */
#include "tests/api_fixture.h"

static struct sandbox *sandbox;

static void setup(void)
{
	struct err e;
	fixture_setup();
	sandbox = sandbox_find(fx.api.sandboxes, fx.id, NULL, &e);
	ck_assert_ptr_nonnull(sandbox);
}

static void idle_after(double seconds)
{
	struct err e;
	ck_assert_int_eq(
	    sandbox_patch(sandbox, &(struct sandbox_patch){.ttl_seconds = &seconds}, &e), 0);
}

START_TEST(an_exec_with_a_deadline_keeps_it)
{
	idle_after(0.01);
	UNTIL(agent.listed == 3);
	ck_assert_int_eq(sandbox_status(sandbox), SANDBOX_RUNNING);
	agent.finished = true;
	UNTIL(sandbox_status(sandbox) == SANDBOX_DELETED);
}
END_TEST

START_TEST(nothing_keeps_it_when_nothing_runs)
{
	agent.finished = true;
	idle_after(0.01);
	UNTIL(sandbox_status(sandbox) == SANDBOX_DELETED);
	ck_assert_uint_eq(agent.listed, 1);
}
END_TEST

START_TEST(its_lifetime_is_absolute)
{
	double lifetime = 0.01;
	struct err e;
	ck_assert_int_eq(
	    sandbox_patch(sandbox, &(struct sandbox_patch){.max_lifetime_seconds = &lifetime},
	                  &e),
	    0);
	UNTIL(sandbox_status(sandbox) == SANDBOX_DELETED);
	ck_assert_uint_eq(agent.listed, 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("idle", setup, fixture_teardown);
	tcase_add_test(t, an_exec_with_a_deadline_keeps_it);
	tcase_add_test(t, nothing_keeps_it_when_nothing_runs);
	tcase_add_test(t, its_lifetime_is_absolute);
	return run_suite("idle", t) != 0;
}
