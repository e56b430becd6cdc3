/* Quotas: what is counted, what is refused, and when it is allowed again. */
#include "host-bridge/api/tokens.h"
#include "tests/api_fixture.h"

/* The limits of all workspaces from now on. */
static void limit(const char *lines)
{
	struct err e;
	char path[128];
	snprintf(path, sizeof(path), "%s/tokens", fx.dir);
	FILE *f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(lines, f);
	fclose(f);
	auth_destroy(fx.api.auth);
	fx.api.auth = auth_create(fx.loop, path, "t", &e);
	ck_assert_ptr_nonnull(fx.api.auth);
}

static const struct sandbox_spec like = {.workspace = "w", .vcpus = 2, .memory_mib = 512};

static void refused(unsigned count, const char *field, uint64_t max)
{
	struct err e = {0};
	struct api_details d = {0};
	ck_assert_int_lt(quota_room(fx.api.quota, &like, count, &e), 0);
	ck_assert_int_eq(e.code, ERR_QUOTA_EXCEEDED);
	ck_assert_str_eq(e.field, field);
	quota_explain(fx.api.quota, like.workspace, &e, &d);
	ck_assert(d.has_limit && d.limit == max);
	ck_assert_int_ge(d.retry_after, 1);
	ck_assert_int_le(d.retry_after, 60);
}

static void allowed(unsigned count)
{
	struct err e;
	ck_assert_msg(quota_room(fx.api.quota, &like, count, &e) == 0, "%s", e.msg);
}

static struct sandbox *create(struct err *e)
{
	struct sandbox_spec spec = {.workspace = "w", .attach = true};
	spec.endpoint.kind = TRANSPORT_UNIX;
	snprintf(spec.endpoint.path, sizeof(spec.endpoint.path), "%s/agent", fx.dir);
	spec.metadata = json_object();
	struct sandbox *s = sandbox_create(fx.api.sandboxes, &spec, on_created, NULL, e);
	json_decref(spec.metadata);
	return s;
}

START_TEST(each_resource_has_its_limit)
{
	limit("limits w sandboxes=4\n");
	allowed(4);
	refused(5, "sandboxes_limit", 4);
	limit("limits w vcpus=5\n");
	allowed(2);
	refused(3, "vcpus_limit", 5);
	limit("limits w memory_mib=1024\n");
	allowed(2);
	refused(3, "memory_mib_limit", 1024);
	limit("limits other sandboxes=0\n");
	allowed(100);
}
END_TEST

START_TEST(a_create_over_the_limit_makes_nothing)
{
	struct err e;
	limit("limits w sandboxes=1\n");
	ck_assert_ptr_nonnull(create(&e));
	ck_assert_ptr_null(create(&e));
	ck_assert_int_eq(e.code, ERR_QUOTA_EXCEEDED);
	ck_assert_str_eq(e.field, "sandboxes_limit");
	ck_assert_uint_eq(sandbox_count(fx.api.sandboxes, "w"), 1);
}
END_TEST

START_TEST(creates_are_metered)
{
	struct err e;
	limit("limits w creates_per_minute=2\n");
	ck_assert_ptr_nonnull(create(&e));
	ck_assert_ptr_nonnull(create(&e));
	ck_assert_ptr_null(create(&e));
	ck_assert_str_eq(e.field, "creates_per_minute_limit");
	refused(1, "creates_per_minute_limit", 2);
	limit("limits w creates_per_minute=0\n");
	refused(1, "creates_per_minute_limit", 0);
}
END_TEST

START_TEST(a_create_is_worked_off_with_time)
{
	struct err e;
	unsigned all = 60; /* one a second */
	limit("limits w creates_per_minute=60\n");
	ck_assert_int_eq(quota_room(fx.api.quota, &like, all, &e), 0);
	ck_assert_ptr_nonnull(create(&e));
	ck_assert_int_lt(quota_room(fx.api.quota, &like, all, &e), 0);
	UNTIL(quota_room(fx.api.quota, &like, all, &e) == 0);
}
END_TEST

/* ---- execs ---- */

START_TEST(an_exec_counts_until_its_call_says_that_it_has_ended)
{
	struct exec_claim ended, left, existing;
	struct exec_count *n = &quota_use(fx.api.quota, "w")->execs;
	exec_claim_take(&ended, n);
	exec_claim_take(&left, n);
	exec_claim_take(&existing, n);
	ck_assert_uint_eq(n->running, 3);
	exec_claim_started(&existing, true);
	exec_claim_started(&left, false);
	ck_assert_uint_eq(n->running, 2);
	ck_assert_uint_eq(n->opening, 1);
	exec_claim_end(&ended);
	exec_claim_leave(&ended);
	exec_claim_end(&existing);
	exec_claim_leave(&left);
	ck_assert_uint_eq(n->running, 1);
	ck_assert_uint_eq(n->claims, 0);
	ck_assert(exec_count_is_doubtful(n));
}
END_TEST

struct asker {
	struct exec_count_waiter waiter;
	bool told;
};

static void on_counted(struct exec_count_waiter *w)
{
	((struct asker *)w)->told = true;
}

/* The workspace has no sandbox whose agent could know of it. */
START_TEST(asking_finds_what_is_over)
{
	struct exec_claim left, kept;
	struct exec_count *n = &quota_use(fx.api.quota, "w")->execs;
	struct asker first = {.waiter.on_counted = on_counted}, second = first, gone = first;
	exec_claim_take(&left, n);
	exec_claim_started(&left, false);
	exec_claim_leave(&left);
	exec_claim_take(&kept, n);
	exec_count_ask(n, &first.waiter);
	exec_count_ask(n, &second.waiter);
	exec_count_ask(n, &gone.waiter);
	exec_count_unask(&gone.waiter);
	ck_assert(!first.told);
	UNTIL(first.told);
	UNTIL(second.told);
	ck_assert(!gone.told);
	ck_assert_uint_eq(n->running, 1);
	ck_assert(!exec_count_is_doubtful(n));
	exec_claim_end(&kept);
	ck_assert_uint_eq(n->running, 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("quota", fixture_setup, fixture_teardown);
	tcase_add_test(t, each_resource_has_its_limit);
	tcase_add_test(t, a_create_over_the_limit_makes_nothing);
	tcase_add_test(t, creates_are_metered);
	tcase_add_test(t, a_create_is_worked_off_with_time);
	tcase_add_test(t, an_exec_counts_until_its_call_says_that_it_has_ended);
	tcase_add_test(t, asking_finds_what_is_over);
	return run_suite("quota", t) != 0;
}
