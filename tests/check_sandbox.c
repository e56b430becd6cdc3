/* Sandboxes: how they come to be, what they say of themselves, and who finds them. */
#include "host-bridge/sandbox/freeze.h"
#include "tests/attach_fixture.h"

START_TEST(ready_means_that_the_agent_answered)
{
	agent.mute = true;
	struct sandbox *s = create_only(&spec);
	ck_assert_int_eq(sandbox_status(s), SANDBOX_CREATING);
	UNTIL(agent.sessions == 1);
	pass(0.02);
	ck_assert_int_eq(heard.ready, 0);
	ck_assert_ptr_null(sandbox_link(s, false, NULL));
}
END_TEST

START_TEST(id_names_the_node_and_is_a_ulid)
{
	const char *id = sandbox_id(create_running(&spec));
	ck_assert_uint_eq(strlen(id), strlen("sb-n1-") + 26);
	ck_assert_int_eq(strncmp(id, "sb-n1-0", 7), 0);
	ck_assert_uint_eq(strspn(id + 6, "0123456789ABCDEFGHJKMNPQRSTVWXYZ"), 26);
}
END_TEST

START_TEST(json_has_every_field_of_the_contract)
{
	static const char *const fields[] = {"id",           "node",
	                                     "workspace",    "template",
	                                     "status",       "vmm",
	                                     "isolation",    "boot_mode",
	                                     "boot_ms",      "boot_stages_ms",
	                                     "created_at",   "expires_at",
	                                     "idle_seconds", "metadata",
	                                     "resources",    "exec_defaults",
	                                     "agent"};
	json_t *j = sandbox_json(create_running(&spec));
	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		ck_assert_msg(json_object_get(j, fields[i]) != NULL, "%s", fields[i]);
	ck_assert_uint_eq(json_object_size(j), sizeof(fields) / sizeof(*fields));
	const json_t *a = json_object_get(j, "agent");
	ck_assert_str_eq(json_string_value(json_object_get(a, "version")), "9.9");
	ck_assert_str_eq(json_string_value(json_array_get(json_object_get(a, "features"), 1)),
	                 "bad?name");
	json_decref(j);
}
END_TEST

START_TEST(creator_that_goes_takes_its_sandbox_along)
{
	agent.mute = true;
	struct sandbox *s = create_only(&spec);
	const char *id = copy_id(s);
	sandbox_creator_gone(s);
	ck_assert(gone(id));
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_KILLED, on_done, NULL);
	UNTIL(heard.done);
	ck_assert_int_eq(heard.ready, 0);
}
END_TEST

START_TEST(orphan_with_a_key_waits_for_its_replay)
{
	struct err e = {0};
	strcpy(spec.idempotency_key, "k");
	struct sandbox *s = create_running(&spec);
	sandbox_creator_gone(s);
	ck_assert_ptr_eq(sandbox_find_key(set, "w1", "k", &e), s);
	ck_assert_ptr_null(sandbox_find_key(set, "w2", "k", &e));
	ck_assert_ptr_null(sandbox_find_key(set, "w1", "other", &e));
	ck_assert_ptr_null(sandbox_find_key(set, "w1", "", &e));
}
END_TEST

START_TEST(key_of_a_deleted_sandbox_makes_no_other)
{
	struct err e = {0};
	strcpy(spec.idempotency_key, "k");
	delete_and_wait(create_running(&spec));
	ck_assert_ptr_null(sandbox_find_key(set, "w2", "k", &e));
	ck_assert_int_eq(e.code, ERR_NONE);
	ck_assert_ptr_null(sandbox_find_key(set, "w1", "k", &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_GONE);
}
END_TEST

START_TEST(create_that_failed_gives_its_key_back)
{
	struct err e = {0};
	strcpy(spec.idempotency_key, "k");
	agent.too_new = true;
	struct sandbox *s = create_only(&spec);
	UNTIL(heard.ready);
	ck_assert_int_eq(heard.why.code, ERR_INCOMPATIBLE);
	delete_and_wait(s);
	ck_assert_ptr_null(sandbox_find_key(set, "w1", "k", &e));
	ck_assert_int_eq(e.code, ERR_NONE);
}
END_TEST

START_TEST(others_are_not_found_and_deleted_is_gone)
{
	struct err e = {0};
	struct sandbox *s = create_running(&spec);
	const char *id = copy_id(s);
	ck_assert_ptr_eq(sandbox_find(set, id, "w1", &e), s);
	ck_assert_ptr_eq(sandbox_find(set, id, NULL, &e), s);
	ck_assert_ptr_null(sandbox_find(set, id, "w2", &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_NOT_FOUND);
	ck_assert_ptr_null(sandbox_find(set, "sb-n1-nope", NULL, &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_NOT_FOUND);
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done, NULL);
	ck_assert_ptr_null(sandbox_find(set, id, "w1", &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_GONE);
	ck_assert_ptr_null(sandbox_next(set, NULL));
	ck_assert_uint_eq(sandbox_count(set, NULL), 0);
	UNTIL(heard.done);
	restart_bridge();
	ck_assert_ptr_null(sandbox_find(set, id, "w1", &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_GONE);
}
END_TEST

START_TEST(waiters_are_told_and_may_leave)
{
	int a, b;
	struct err e = {0};
	struct sandbox *s = create_only(&spec);
	ck_assert_int_eq(sandbox_wait_ready(s, on_ready, &a, &e), 0);
	ck_assert_int_eq(sandbox_wait_ready(s, on_ready, &b, &e), 0);
	sandbox_wait_cancel(s, &b);
	UNTIL(heard.ready == 2);
	ck_assert_int_eq(sandbox_wait_ready(s, on_ready, &a, &e), 0);
	ck_assert_int_eq(heard.ready, 2);
	UNTIL(heard.ready == 3);
}
END_TEST

START_TEST(spare_link_is_made_and_used)
{
	struct err e = {0};
	struct sandbox *s = create_running(&spec);
	UNTIL(agent.sessions == 2); /* the question, the spare */
	struct link *l = sandbox_link(s, false, &e);
	ck_assert(link_is_ready(l));
	ck_assert_int_eq(agent.sessions, 2);
	UNTIL(agent.sessions == 3);
	link_destroy(l, false);
}
END_TEST

START_TEST(create_without_a_launcher_or_template_is_refused)
{
	struct err e = {0};
	spec.attach = false;
	strcpy(spec.template, "base");
	ck_assert_ptr_null(sandbox_create(set, &spec, on_ready, NULL, &e));
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
	ck_assert_ptr_null(sandbox_next(set, NULL));
}
END_TEST

START_TEST(resource_that_cannot_be_enforced_is_refused)
{
	struct err e = {0};
	spec.memory_mib = 512;
	ck_assert_ptr_null(sandbox_create(set, &spec, on_ready, NULL, &e));
	ck_assert_int_eq(e.code, ERR_LIMIT_UNSUPPORTED);
	ck_assert_str_eq(e.field, "resources.memory_mib");
	ck_assert_ptr_null(sandbox_next(set, NULL));
}
END_TEST

START_TEST(sandboxes_are_listed_in_order)
{
	const char *last = "";
	size_t n = 0;
	for (int i = 0; i < 5; i++) {
		heard.ready = 0;
		create_running(&spec);
	}
	for (struct sandbox *s = NULL; (s = sandbox_next(set, s)) != NULL; n++) {
		ck_assert_int_lt(strcmp(last, sandbox_id(s)), 0);
		last = sandbox_id(s);
	}
	ck_assert_uint_eq(n, 5);
	ck_assert_uint_eq(sandbox_count(set, "w1"), 5);
	ck_assert_uint_eq(sandbox_count(set, "w2"), 0);
}
END_TEST

START_TEST(a_guest_whose_agent_is_silent_is_not_given_up_for_a_snapshot)
{
	static const struct {
		enum err_code lost;
		bool loss;
	} cases[] = {{ERR_NONE, false},           {ERR_TIMEOUT, false},
	             {ERR_UNREACHABLE, false},    {ERR_SANDBOX_LOST, true},
	             {ERR_LAUNCHER_FAILED, true}, {ERR_PROTOCOL, true}};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct freeze_result r = {.not_saved.code = ERR_TIMEOUT,
		                          .lost.code = cases[i].lost};
		ck_assert_int_eq(freeze_is_loss(&r), cases[i].loss);
	}
}
END_TEST

int main(void)
{
	TCase *t = new_case("sandbox", setup, teardown);
	tcase_add_test(t, ready_means_that_the_agent_answered);
	tcase_add_test(t, id_names_the_node_and_is_a_ulid);
	tcase_add_test(t, json_has_every_field_of_the_contract);
	tcase_add_test(t, creator_that_goes_takes_its_sandbox_along);
	tcase_add_test(t, orphan_with_a_key_waits_for_its_replay);
	tcase_add_test(t, key_of_a_deleted_sandbox_makes_no_other);
	tcase_add_test(t, create_that_failed_gives_its_key_back);
	tcase_add_test(t, others_are_not_found_and_deleted_is_gone);
	tcase_add_test(t, waiters_are_told_and_may_leave);
	tcase_add_test(t, spare_link_is_made_and_used);
	tcase_add_test(t, create_without_a_launcher_or_template_is_refused);
	tcase_add_test(t, resource_that_cannot_be_enforced_is_refused);
	tcase_add_test(t, sandboxes_are_listed_in_order);
	tcase_add_test(t, a_guest_whose_agent_is_silent_is_not_given_up_for_a_snapshot);
	return run_suite("sandbox", t) != 0;
}
