/* The bound on a sandbox's links: some are kept for calls that end something, and who finds no
 * room waits in line. */
#include <check.h>
#include <string.h>

#include "host-bridge/link/link_gate.h"
#include "proto/limits.h"
#include "tests/suite_fixture.h"

static struct link_gate gate;
static struct link_pass passes[LINKS_MAX + 1], urgent;
static struct link_pass *turns[LINKS_MAX + 1]; /* whose turn came, in that order */
static size_t turn_count;

static void on_turn(struct link_pass *p)
{
	turns[turn_count++] = p;
}

static void setup(void)
{
	memset(passes, 0, sizeof(passes));
	turn_count = 0;
	link_gate_init(&gate);
	urgent = (struct link_pass){.gate = &gate, .urgent = true, .on_turn = on_turn};
	for (size_t i = 0; i <= LINKS_MAX; i++)
		passes[i] = (struct link_pass){.gate = &gate, .on_turn = on_turn};
}

static size_t enter_and_open(void)
{
	size_t n = 0;
	for (; link_pass_enter(&passes[n]); n++)
		link_pass_opened(&passes[n]);
	return n;
}

START_TEST(a_full_gate_has_room_for_what_is_urgent)
{
	ck_assert_uint_eq(enter_and_open(), LINKS_MAX - LINKS_RESERVED);
	ck_assert(link_pass_enter(&urgent));
	ck_assert(!link_pass_enter(&passes[LINKS_MAX]));
	link_pass_leave(&urgent);
	link_pass_leave(&passes[0]);
	ck_assert(link_pass_enter(&passes[LINKS_MAX]));
}
END_TEST

START_TEST(so_many_open_at_once)
{
	size_t n = 0;
	while (link_pass_enter(&passes[n]))
		n++;
	ck_assert_uint_eq(n, LINKS_OPENING_MAX);
	ck_assert(link_pass_enter(&urgent));
	link_pass_opened(&urgent);
	link_pass_opened(&passes[0]);
	ck_assert(link_pass_enter(&passes[n]));
}
END_TEST

START_TEST(each_counts_once)
{
	for (int i = 0; i < 3; i++)
		ck_assert(link_pass_enter(&passes[0]));
	ck_assert(gate.connected == 1 && gate.opening == 1);
	for (int i = 0; i < 3; i++)
		link_pass_leave(&passes[0]);
	ck_assert(gate.connected == 0 && gate.opening == 0);
}
END_TEST

START_TEST(room_goes_to_who_has_waited_longest)
{
	size_t n = enter_and_open();
	for (size_t i = n; i < n + 3; i++)
		link_pass_wait(&passes[i]);
	ck_assert_uint_eq(turn_count, 0);
	link_pass_leave(&passes[0]);
	ck_assert(turn_count == 1 && turns[0] == &passes[n] && passes[n].in);
	ck_assert(!link_pass_enter(&passes[n + 3])); /* it came last */
	link_pass_leave(&passes[1]);
	link_pass_leave(&passes[2]);
	ck_assert(turn_count == 3 && turns[1] == &passes[n + 1] && turns[2] == &passes[n + 2]);
	ck_assert_uint_eq(gate.connected, n);
}
END_TEST

START_TEST(an_answered_open_makes_room_for_the_next)
{
	size_t n = 0;
	while (link_pass_enter(&passes[n]))
		n++;
	link_pass_wait(&passes[n]);
	link_pass_opened(&passes[0]);
	ck_assert(turn_count == 1 && turns[0] == &passes[n]);
	ck_assert_uint_eq(gate.opening, LINKS_OPENING_MAX);
}
END_TEST

START_TEST(who_leaves_the_line_is_passed_over)
{
	size_t n = enter_and_open();
	link_pass_wait(&passes[n]);
	link_pass_wait(&passes[n + 1]);
	link_pass_leave(&passes[n]);
	ck_assert_uint_eq(turn_count, 0);
	link_pass_leave(&passes[0]);
	ck_assert(turn_count == 1 && turns[0] == &passes[n + 1]);
}
END_TEST

START_TEST(what_is_urgent_does_not_wait_behind_what_is_not)
{
	size_t n = enter_and_open();
	link_pass_wait(&passes[n]);
	for (unsigned i = 1; i <= LINKS_RESERVED; i++) {
		passes[n + i].urgent = true;
		ck_assert(link_pass_enter(&passes[n + i]));
		link_pass_opened(&passes[n + i]);
	}
	ck_assert(!link_pass_enter(&urgent));
	link_pass_wait(&urgent);
	link_pass_leave(&passes[0]);
	ck_assert(turn_count == 1 && turns[0] == &urgent);
}
END_TEST

static unsigned quiet;

static void on_quiet(struct link_gate *g)
{
	ck_assert_ptr_eq(g, &gate);
	quiet++;
}

START_TEST(a_closed_gate_tells_when_nobody_is_opening_any_more)
{
	quiet = 0;
	ck_assert(link_pass_enter(&passes[0]));
	ck_assert(link_pass_enter(&passes[1]));
	link_gate_close(&gate, on_quiet);
	link_pass_opened(&passes[0]);
	ck_assert_uint_eq(quiet, 0);
	link_pass_leave(&passes[1]); /* it did not come to its answer */
	ck_assert_uint_eq(quiet, 1);
	link_pass_leave(&passes[0]);
	ck_assert_uint_eq(quiet, 1);
}
END_TEST

START_TEST(a_closed_gate_lets_nobody_in_until_it_is_opened)
{
	quiet = 0;
	link_gate_close(&gate, on_quiet);
	ck_assert_uint_eq(quiet, 1);
	ck_assert(!link_pass_enter(&passes[0]));
	ck_assert(!link_pass_enter(&urgent));
	link_pass_wait(&passes[0]);
	link_pass_wait(&urgent);
	ck_assert(!link_pass_is_full(&passes[0]));
	ck_assert_uint_eq(turn_count, 0);
	link_gate_open(&gate);
	ck_assert_uint_eq(turn_count, 2);
	ck_assert_ptr_eq(turns[0], &urgent);
	ck_assert(link_pass_enter(&passes[1]));
}
END_TEST

START_TEST(without_a_gate_all_pass)
{
	struct link_pass p = {0};
	ck_assert(link_pass_enter(&p));
	link_pass_opened(&p);
	link_pass_leave(&p);
}
END_TEST

START_TEST(the_agent_never_closes_one_whose_open_is_under_way)
{
	ck_assert_uint_le(LINKS_OPENING_MAX + LINKS_RESERVED + 1, SESSIONS_UNOPENED_MAX);
	ck_assert_uint_lt(LINKS_MAX, VSOCK_CONNS_MAX);
	ck_assert_uint_lt(LINKS_MAX, SESSIONS_MAX);
}
END_TEST

int main(void)
{
	TCase *t = new_case("link_gate", setup, NULL);
	tcase_add_test(t, a_full_gate_has_room_for_what_is_urgent);
	tcase_add_test(t, so_many_open_at_once);
	tcase_add_test(t, each_counts_once);
	tcase_add_test(t, room_goes_to_who_has_waited_longest);
	tcase_add_test(t, an_answered_open_makes_room_for_the_next);
	tcase_add_test(t, who_leaves_the_line_is_passed_over);
	tcase_add_test(t, what_is_urgent_does_not_wait_behind_what_is_not);
	tcase_add_test(t, a_closed_gate_tells_when_nobody_is_opening_any_more);
	tcase_add_test(t, a_closed_gate_lets_nobody_in_until_it_is_opened);
	tcase_add_test(t, without_a_gate_all_pass);
	tcase_add_test(t, the_agent_never_closes_one_whose_open_is_under_way);
	return run_suite("link_gate", t) != 0;
}
