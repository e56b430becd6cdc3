/* Who is attached to an exec, and what becomes of it when they go. */
#include "tests/agent_fixture.h"

START_TEST(attach_replays_from_an_offset)
{
	Sandgate__Exec m = exec_message("x", "printf 0123456789; exit 2");
	struct transcript t = host_run(&m);
	transcript_free(&t);
	struct host *h = host_attach("x", SANDGATE__ROLE__ROLE_OUTPUT, 6);
	t = host_finish(h, 6);
	ck_assert_str_eq(t.out[0], "6789");
	ck_assert_int_eq(t.result->exit_code, 2);
	transcript_free(&t);
	host_expect_refused(host_attach("x", SANDGATE__ROLE__ROLE_OUTPUT, 11),
	                    ERR_INVALID_FIELD, "offset");
}
END_TEST

START_TEST(a_new_owner_takes_over)
{
	Sandgate__Exec m = exec_message("x", "echo a; read l; echo $l");
	m.stdin_open = 1;
	struct host *old = host_start(&m);
	host_expect_output(old, "a\n");
	struct host *new = host_attached("x", SANDGATE__ROLE__ROLE_OWNER, 2);
	host_expect_refused(old, ERR_EXEC_ID_CONFLICT, "exec_id");
	host_expect_only(new, SANDGATE__GUEST_FRAME__BODY_STARTED);
	host_send_stdin(new, "b\n", NULL);
	struct transcript t = host_finish(new, 2);
	ck_assert_str_eq(t.out[0], "b\n");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	transcript_free(&t);
}
END_TEST

START_TEST(a_lost_owner_is_awaited_and_may_come_back)
{
	Sandgate__Exec m = exec_message("x", "echo a; sleep 0.3; echo b");
	struct host *h = host_start(&m);
	host_expect_output(h, "a\n");
	host_close(h);
	turn_for(0.1);
	h = host_attached("x", SANDGATE__ROLE__ROLE_OWNER, 2);
	struct transcript t = host_finish(h, 2);
	ck_assert_str_eq(t.out[0], "b\n");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	transcript_free(&t);
}
END_TEST

START_TEST(a_lost_owner_that_stays_away_ends_it)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	m.link_grace_ms = 100;
	host_close(host_start(&m));
	host_expect_cancelled("x", SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
}
END_TEST

START_TEST(a_client_that_goes_ends_it_at_once)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	struct host *h = host_start(&m);
	host_cancel(h, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	host_close(h);
	uint64_t took = host_expect_cancelled("x", SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	ck_assert_uint_lt(took, AT_ONCE_MS);
}
END_TEST

START_TEST(on_disconnect_detach_survives_a_client_that_goes)
{
	Sandgate__Exec m = exec_message("x", "sleep 0.2; echo done");
	m.on_disconnect = SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH;
	struct host *h = host_start(&m);
	host_cancel(h, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	host_close(h);
	struct transcript t = host_outcome_of("x");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_str_eq(t.out[0], "done\n");
	transcript_free(&t);
}
END_TEST

/* Start the same once more, while it has an owner. */
static struct host *repeat(Sandgate__Exec *m)
{
	struct host *h = host_exec(m);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_STARTED);
	ck_assert(g->started->existing && !g->started->owner);
	host_free(g);
	return h;
}

/* In both ways that an owner can go: with a word, and without. */
static void leave(struct host *h, bool says_so)
{
	if (says_so)
		host_cancel(h, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	host_close(h);
}

START_TEST(a_repeated_start_keeps_it_when_the_first_goes)
{
	Sandgate__Exec m = exec_message("x", "echo a; read l; exit 3");
	m.link_grace_ms = 0;
	m.stdin_open = 1;
	struct host *first = host_start(&m), *second = repeat(&m), *third = repeat(&m);
	leave(first, _i);
	host_send_stdin(second, "\n", NULL);
	struct transcript t = host_finish(second, 0);
	ck_assert(t.result != NULL);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_int_eq(t.result->exit_code, 3);
	ck_assert_str_eq(t.out[0], "a\n");
	transcript_free(&t);
	host_close(third);
}
END_TEST

START_TEST(a_repeated_start_that_waits_on_is_no_owner)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	struct host *first = host_start(&m), *second = repeat(&m), *third = repeat(&m);
	leave(first, true);
	host_send_stdin(third, "\n", NULL);
	host_expect_refused(third, ERR_PROTOCOL, "");
	leave(second, true);
	host_expect_cancelled("x", SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
}
END_TEST

START_TEST(when_all_who_started_it_go_it_ends_at_once)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	struct host *h[] = {host_start(&m), repeat(&m), repeat(&m)};
	for (int i = 0; i < 3; i++)
		leave(h[_i == 0 ? i : 2 - i], true);
	uint64_t took = host_expect_cancelled("x", SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	ck_assert_uint_lt(took, AT_ONCE_MS);
}
END_TEST

START_TEST(a_lost_link_of_who_took_over_is_awaited_and_then_ends_it)
{
	Sandgate__Exec m = exec_message("x", "sleep 60");
	m.link_grace_ms = 100;
	struct host *first = host_start(&m), *second = repeat(&m);
	leave(first, false);
	leave(second, false);
	uint64_t took = host_expect_cancelled("x", SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
	ck_assert_uint_ge(took, 100);
}
END_TEST

START_TEST(who_stands_by_owns_an_exec_that_has_no_owner)
{
	Sandgate__Exec m = exec_message("x", "read l; exit 3");
	m.link_grace_ms = 10000;
	m.stdin_open = 1;
	host_close(host_start(&m));
	struct host *h = host_attached("x", SANDGATE__ROLE__ROLE_STANDBY, 0);
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_STARTED);
	ck_assert(g->started->existing && g->started->owner);
	host_free(g);
	host_send_stdin(h, "\n", NULL);
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(t.result->exit_code, 3);
	transcript_free(&t);
}
END_TEST

START_TEST(a_watchers_going_means_nothing)
{
	Sandgate__Exec m = exec_message("x", "sleep 0.2; exit 6");
	m.link_grace_ms = 0;
	struct host *h = host_start(&m);
	host_close(host_attached("x", SANDGATE__ROLE__ROLE_OUTPUT, 0));
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(t.result->exit_code, 6);
	transcript_free(&t);
}
END_TEST

START_TEST(a_detached_start_ends_with_started)
{
	Sandgate__Exec m = exec_message("x", "sleep 0.1; echo out");
	m.detached = 1;
	struct host *h = host_start(&m);
	host_expect_end(h);
	struct transcript t = host_outcome_of("x");
	ck_assert_str_eq(t.out[0], "out\n");
	transcript_free(&t);
}
END_TEST

START_TEST(a_detached_exec_survives_an_owner_that_came_and_went)
{
	Sandgate__Exec m = exec_message("x", "sleep 0.3; echo out");
	m.detached = 1;
	m.link_grace_ms = 10;
	host_close(host_start(&m));
	host_close(host_attached("x", SANDGATE__ROLE__ROLE_OWNER, 0));
	turn_for(0.1);
	struct transcript t = host_outcome_of("x");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	transcript_free(&t);
}
END_TEST

START_TEST(released_output_is_dropped_unless_kept)
{
	for (int keep = 0; keep < 2; keep++) {
		Sandgate__Release rel = SANDGATE__RELEASE__INIT;
		Sandgate__Exec m = exec_message(keep ? "kept" : "gone", "echo out");
		m.keep_output = keep;
		struct host *h = host_exec(&m);
		struct transcript t = host_read_all(h, 0);
		transcript_free(&t);
		host_send(h, SANDGATE__HOST_FRAME__BODY_RELEASE, &rel);
		host_close(h);
		t = host_outcome_of(m.exec_id);
		ck_assert_uint_eq(t.gap_bytes, keep ? 0 : 4);
		ck_assert_int_eq(t.result->exit_code, 0);
		transcript_free(&t);
	}
}
END_TEST

int main(void)
{
	TCase *t = new_case("session_roles", fixture_setup, NULL);
	tcase_add_test(t, attach_replays_from_an_offset);
	tcase_add_test(t, a_new_owner_takes_over);
	tcase_add_test(t, a_lost_owner_is_awaited_and_may_come_back);
	tcase_add_test(t, a_lost_owner_that_stays_away_ends_it);
	tcase_add_test(t, a_client_that_goes_ends_it_at_once);
	tcase_add_test(t, on_disconnect_detach_survives_a_client_that_goes);
	tcase_add_loop_test(t, a_repeated_start_keeps_it_when_the_first_goes, 0, 2);
	tcase_add_test(t, a_repeated_start_that_waits_on_is_no_owner);
	tcase_add_loop_test(t, when_all_who_started_it_go_it_ends_at_once, 0, 2);
	tcase_add_test(t, a_lost_link_of_who_took_over_is_awaited_and_then_ends_it);
	tcase_add_test(t, who_stands_by_owns_an_exec_that_has_no_owner);
	tcase_add_test(t, a_watchers_going_means_nothing);
	tcase_add_test(t, a_detached_start_ends_with_started);
	tcase_add_test(t, a_detached_exec_survives_an_owner_that_came_and_went);
	tcase_add_test(t, released_output_is_dropped_unless_kept);
	return run_suite("session_roles", t) != 0;
}
