/* Output through snapshots: held for the owner that will come back, and whole when it does. */
#include <stdio.h>

#include "tests/snapshot_fixture.h"

START_TEST(output_goes_on_where_it_was_suspended)
{
	enum { TOTAL = 6888896 }; /* of seq 1000000 */
	Sandgate__Exec m = exec_message("a", AWAIT_GO "exec seq 1000000");
	char *text = malloc(TOTAL + 1);
	size_t len = 0;
	struct host *h = host_start(&m);

	go();
	for (uint64_t generation = 2; generation < 5; generation++) {
		struct host *p = begin_prepare();
		len += read_suspended(h, len, text + len);
		end_prepare(p);
		resume(generation, SANDGATE__RESUME_ROLE__RESUME_SAME);
		h = attach("a", len);
		host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_STARTED);
		Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_OUTPUT);
		memcpy(text + len, g->output->data.data, g->output->data.len);
		len += g->output->data.len;
		host_free(g);
	}
	struct transcript t = host_finish(h, len);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_uint_eq(t.gaps, 0);
	ck_assert_uint_eq(t.end, TOTAL);
	memcpy(text + len, t.out[0], t.len[0]);
	size_t at = 0;
	for (int i = 1; i <= 1000000; i++) {
		char line[16];
		int n = snprintf(line, sizeof(line), "%d\n", i);
		ck_assert_msg(memcmp(text + at, line, (size_t)n) == 0, "line %d is amiss", i);
		at += (size_t)n;
	}
	transcript_free(&t);
	free(text);
}
END_TEST

START_TEST(a_host_that_reads_nothing_delays_prepare_but_loses_nothing)
{
	enum { TOTAL = 20000000 };
	Sandgate__Exec m = exec_message("a", "exec head -c 20000000 /dev/zero");
	uint64_t got = 0;
	struct host *h = host_exec(&m);

	turn_until_held_up("a");
	ev_tstamp began = ev_time();
	prepare();
	ck_assert(ev_time() - began > 0.9 * SUSPEND_LINGER_MS / 1e3);
	for (Sandgate__GuestFrame *g; (g = host_next(h)) != NULL; host_free(g))
		if (g->body_case == SANDGATE__GUEST_FRAME__BODY_OUTPUT)
			got += g->output->data.len;
	host_close(h);
	resume_same();
	struct transcript t = host_finish(attach("a", got), got);
	ck_assert_uint_eq(t.end, TOTAL);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
}
END_TEST

/* Even though what it prints is far more than is retained. */
START_TEST(a_suspended_exec_is_held_until_its_owner_comes)
{
	enum { TOTAL = 3000000 };
	Sandgate__Exec m = exec_message("a", AWAIT_GO "exec head -c 3000000 /dev/zero");

	retain_little(&m);
	struct host *h = host_start(&m);
	prepare();
	go();
	turn_for(0.2);
	ck_assert_uint_eq(printed("a"), 0);
	ck_assert_uint_eq(read_suspended(h, 0, NULL), 0);
	resume_same();
	turn_until_held_up("a");
	ck_assert_uint_lt(printed("a"), TOTAL);
	struct transcript t = host_finish(attach("a", 0), 0);
	ck_assert_uint_eq(t.len[0], TOTAL);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
}
END_TEST

START_TEST(a_leader_that_ends_meanwhile_has_its_output_and_result)
{
	Sandgate__Exec m =
	    exec_message("a", "echo one; " AWAIT_GO "echo two; sleep 0.2; echo three; exit 3");
	struct host *h = host_start(&m);

	host_expect_output(h, "one\n");
	prepare();
	ck_assert_uint_eq(read_suspended(h, 4, NULL), 0);
	go();
	turn_until(is_finished, "a");
	resume_same();
	struct transcript t = host_finish(attach("a", 4), 4);
	ck_assert_str_eq(t.out[0], "two\nthree\n");
	ck_assert_int_eq(t.result->exit_code, 3);
	transcript_free(&t);
}
END_TEST

/* Leftovers hold the pipe open: it is drained for a while as ever. */
START_TEST(a_leader_that_leaves_others_behind_ends_meanwhile)
{
	Sandgate__Exec m = exec_message("a", AWAIT_GO "echo x; sleep 60 & exit 4");
	struct host *h = host_start(&m);

	prepare();
	ck_assert_uint_eq(read_suspended(h, 0, NULL), 0);
	go();
	turn_until(is_finished, "a");
	resume_clone(); /* a result that nobody got is another guest's, too */
	host_expect_refused(host_attach("a", SANDGATE__ROLE__ROLE_OUTPUT, 0),
	                    ERR_EXEC_NOT_FOUND, "exec_id");
}
END_TEST

static bool nothing_is_held(void *id)
{
	while (ring_shed(exec_ring(find_exec(id))))
		;
	return ring_memory(exec_ring(find_exec(id))) == 0;
}

/* What it did not read is no longer the agent's to keep. */
START_TEST(what_is_held_of_a_finished_exec_goes_with_its_owners_time)
{
	Sandgate__Exec m = exec_message("a", "head -c 400000 /dev/zero; " AWAIT_GO);

	retain_little(&m);
	m.link_grace_ms = 1500;
	struct host *deaf = host_exec(&m);
	turn_until_held_up("a");
	ck_assert_uint_eq(printed("a"), 400000);
	prepare();
	resume_same();
	host_close(deaf);
	go();
	turn_until(is_finished, "a");
	ck_assert_int_eq(exec_result(find_exec("a"))->outcome,
	                 SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert(!nothing_is_held("a"));
	turn_until(nothing_is_held, "a");
}
END_TEST

/* The first to be suspended is the owner; who stands by has read on and needs less. */
START_TEST(of_those_that_started_it_the_owner_is_what_it_is_held_for)
{
	enum { TOTAL = 1000000 };
	Sandgate__Exec m = exec_message("a", "exec head -c 1000000 /dev/zero");
	char *text = malloc(TOTAL);

	retain_little(&m);
	struct host *owner = host_exec(&m);
	turn_until_held_up("a");
	struct host *other = attach("a", printed("a"));
	host_expect_only(other, SANDGATE__GUEST_FRAME__BODY_STARTED);
	struct host *p = begin_prepare();
	size_t got = read_suspended(owner, 0, text);
	end_prepare(p);
	host_close(other);
	resume_same();
	struct transcript t = host_finish(attach("a", got), got);
	ck_assert_uint_eq(t.end, TOTAL);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
	free(text);
}
END_TEST

int main(void)
{
	TCase *t = new_case("snapshot_held", setup, NULL);
	tcase_add_test(t, output_goes_on_where_it_was_suspended);
	tcase_add_test(t, a_host_that_reads_nothing_delays_prepare_but_loses_nothing);
	tcase_add_test(t, a_suspended_exec_is_held_until_its_owner_comes);
	tcase_add_test(t, a_leader_that_ends_meanwhile_has_its_output_and_result);
	tcase_add_test(t, a_leader_that_leaves_others_behind_ends_meanwhile);
	tcase_add_test(t, what_is_held_of_a_finished_exec_goes_with_its_owners_time);
	tcase_add_test(t, of_those_that_started_it_the_owner_is_what_it_is_held_for);
	return run_suite("snapshot_held", t) != 0;
}
