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

static bool asked_thrice(void *arg)
{
	(void)arg;
	return fx.listed == 3;
}

static bool is_deleted(void *arg)
{
	(void)arg;
	return sandbox_status(sandbox) == SANDBOX_DELETED;
}

START_TEST(an_exec_with_a_deadline_keeps_it)
{
	idle_after(0.01);
	until(asked_thrice, NULL, NULL, 0);
	ck_assert_int_eq(sandbox_status(sandbox), SANDBOX_RUNNING);
	fx.finished = true;
	until(is_deleted, NULL, NULL, 0);
}
END_TEST

START_TEST(nothing_keeps_it_when_nothing_runs)
{
	fx.finished = true;
	idle_after(0.01);
	until(is_deleted, NULL, NULL, 0);
	ck_assert_uint_eq(fx.listed, 1);
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
	until(is_deleted, NULL, NULL, 0);
	ck_assert_uint_eq(fx.listed, 0);
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
