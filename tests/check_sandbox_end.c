/* How sandboxes end, by time or deletion, and what they are to the next bridge. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/attach_fixture.h"

static void on_end(struct sandbox_listener *l, Sandgate__CancelReason reason)
{
	(void)l;
	heard.ended++;
	heard.reason = reason;
}

static void on_end_leave(struct sandbox_listener *l, Sandgate__CancelReason reason)
{
	on_end(l, reason);
	sandbox_unlisten(l);
}

START_TEST(idle_sandbox_expires)
{
	struct sandbox_listener l = {.on_end = on_end_leave};
	spec.ttl_seconds = 0.05;
	struct sandbox *s = create_running(&spec);
	const char *id = copy_id(s);
	sandbox_listen(s, &l);
	UNTIL(gone(id));
	UNTIL(heard.ended);
	ck_assert_int_eq(heard.reason, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_EXPIRED);
	ck_assert(sandbox_was_deleted(set, id, "w1"));
}
END_TEST

START_TEST(held_sandbox_does_not_expire)
{
	spec.ttl_seconds = 0.03;
	struct sandbox *s = create_running(&spec);
	const char *id = copy_id(s);
	sandbox_hold(s);
	pass(0.1);
	ck_assert(!gone(id));
	sandbox_unhold(s);
	ck_assert(!gone(id));
	UNTIL(gone(id));
}
END_TEST

START_TEST(touch_puts_the_end_off)
{
	spec.ttl_seconds = 1;
	struct sandbox *s = create_running(&spec);
	const char *id = copy_id(s);
	for (int i = 0; i < 5; i++) {
		pass(0.25);
		ck_assert(!gone(id));
		sandbox_touch(s);
	}
	UNTIL(gone(id));
}
END_TEST

START_TEST(lifetime_ends_even_a_held_sandbox)
{
	struct sandbox_listener l = {.on_end = on_end_leave};
	spec.max_lifetime_seconds = 0.05;
	struct sandbox *s = create_running(&spec);
	const char *id = copy_id(s);
	sandbox_hold(s);
	sandbox_listen(s, &l);
	UNTIL(heard.ended);
	ck_assert(gone(id));
	sandbox_unhold(s);
}
END_TEST

START_TEST(patch_moves_the_end)
{
	double longer = 100, shorter = 0.01;
	struct err e = {0};
	spec.ttl_seconds = 0.05;
	struct sandbox *s = create_running(&spec);
	const char *id = copy_id(s);
	ck_assert_int_eq(sandbox_patch(s, &(struct sandbox_patch){.ttl_seconds = &longer}, &e),
	                 0);
	pass(0.1);
	ck_assert(!gone(id));
	ck_assert_int_eq(sandbox_patch(s, &(struct sandbox_patch){.ttl_seconds = &shorter}, &e),
	                 0);
	UNTIL(gone(id));
}
END_TEST

START_TEST(delete_waits_for_calls_that_end_by_themselves)
{
	struct sandbox_listener l = {.on_end = on_end};
	struct sandbox *s = create_running(&spec);
	sandbox_listen(s, &l);
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done, NULL);
	ck_assert_int_eq(heard.ended, 0);
	UNTIL(heard.ended);
	pass(0.02);
	ck_assert_int_eq(heard.done, 0);
	sandbox_unlisten(&l);
	UNTIL(heard.done);
	ck_assert_int_eq(heard.ended, 1);
}
END_TEST

START_TEST(delete_of_an_attached_vm_cancels_what_runs_in_it)
{
	struct sandbox *s = create_running(&spec);
	agent.running_exec = true;
	delete_and_wait(s);
	ck_assert_int_eq(agent.cancelled, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED);
	ck_assert_int_eq(access(spec.endpoint.path, F_OK), 0);
}
END_TEST

START_TEST(all_who_delete_are_told)
{
	struct sandbox *s = create_running(&spec);
	for (int i = 0; i < 3; i++)
		sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done,
		               NULL);
	UNTIL(heard.done == 3);
}
END_TEST

START_TEST(waiter_of_a_deleted_sandbox_hears_that_it_is_gone)
{
	agent.mute = true;
	struct sandbox *s = create_only(&spec);
	delete_and_wait(s);
	ck_assert_int_eq(heard.ready, 1);
	ck_assert_int_eq(heard.why.code, ERR_SANDBOX_GONE);
}
END_TEST

START_TEST(restarted_bridge_finds_its_sandbox_again)
{
	struct err e = {0};
	strcpy(spec.idempotency_key, "k");
	strcpy(spec.request_digest, "d");
	strcpy(spec.endpoint.token, "secret");
	spec.ttl_seconds = 7;
	spec.max_lifetime_seconds = 70;
	spec.metadata = json_pack("{s:s}", "a", "b");
	spec.exec_defaults = json_pack("{s:s}", "user", "u");
	const char *id = copy_id(create_running(&spec));
	json_decref(spec.metadata);
	json_decref(spec.exec_defaults);
	spec.metadata = spec.exec_defaults = NULL;
	restart_bridge();
	struct sandbox *s = sandbox_find(set, id, "w1", &e);
	ck_assert_msg(s != NULL, "%s", e.msg);
	ck_assert_int_eq(sandbox_status(s), SANDBOX_RUNNING);
	const struct sandbox_spec *again = sandbox_spec(s);
	ck_assert_str_eq(again->request_digest, "d");
	ck_assert_str_eq(again->endpoint.token, "secret");
	ck_assert(again->ttl_seconds == 7 && again->max_lifetime_seconds == 70);
	ck_assert_str_eq(json_string_value(json_object_get(again->metadata, "a")), "b");
	ck_assert_str_eq(json_string_value(json_object_get(again->exec_defaults, "user")), "u");
	ck_assert_ptr_eq(sandbox_find_key(set, "w1", "k", &e), s);
	json_t *j = sandbox_json(s);
	ck_assert_str_eq(
	    json_string_value(json_object_get(json_object_get(j, "agent"), "version")), "9.9");
	json_decref(j);
	struct link *l = sandbox_link(s, false, &e);
	UNTIL(link_is_ready(l));
	link_destroy(l, false);
}
END_TEST

START_TEST(sandbox_whose_vm_vanished_meanwhile_has_failed)
{
	struct err e = {0};
	const char *id = copy_id(create_running(&spec));
	unlink(spec.endpoint.path);
	restart_bridge();
	struct sandbox *s = sandbox_find(set, id, "w1", &e);
	ck_assert_ptr_nonnull(s);
	ck_assert_int_eq(sandbox_status(s), SANDBOX_FAILED);
	ck_assert_ptr_null(sandbox_link(s, false, &e));
	ck_assert_int_eq(e.code, ERR_SANDBOX_LOST);
}
END_TEST

START_TEST(what_nothing_knows_of_is_swept_away)
{
	char stray[128], known[128], file[160];
	snprintf(known, sizeof(known), "%s/state/vm/%s", dir,
	         sandbox_id(create_running(&spec)) + 6);
	snprintf(stray, sizeof(stray), "%s/state/vm/STRAY", dir);
	snprintf(file, sizeof(file), "%s/socket", stray);
	ck_assert_int_eq(mkdir(stray, 0700), 0);
	fclose(fopen(file, "w"));
	pid_t child = fork();
	if (child == 0) {
		if (chdir(stray) < 0 || close_range(3, ~0u, 0) < 0)
			_exit(1);
		for (;;)
			pause();
	}
	char link[64], cwd[128];
	ssize_t n;
	snprintf(link, sizeof(link), "/proc/%d/cwd", (int)child);
	do
		n = readlink(link, cwd, sizeof(cwd));
	while (n != (ssize_t)strlen(stray) || memcmp(cwd, stray, (size_t)n) != 0);
	restart_bridge();
	int status;
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert_int_lt(access(stray, F_OK), 0);
	ck_assert_int_eq(access(known, F_OK), 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("sandbox_end", setup, teardown);
	tcase_add_test(t, idle_sandbox_expires);
	tcase_add_test(t, held_sandbox_does_not_expire);
	tcase_add_test(t, touch_puts_the_end_off);
	tcase_add_test(t, lifetime_ends_even_a_held_sandbox);
	tcase_add_test(t, patch_moves_the_end);
	tcase_add_test(t, delete_waits_for_calls_that_end_by_themselves);
	tcase_add_test(t, delete_of_an_attached_vm_cancels_what_runs_in_it);
	tcase_add_test(t, all_who_delete_are_told);
	tcase_add_test(t, waiter_of_a_deleted_sandbox_hears_that_it_is_gone);
	tcase_add_test(t, restarted_bridge_finds_its_sandbox_again);
	tcase_add_test(t, sandbox_whose_vm_vanished_meanwhile_has_failed);
	tcase_add_test(t, what_nothing_knows_of_is_swept_away);
	return run_suite("sandbox_end", t) != 0;
}
