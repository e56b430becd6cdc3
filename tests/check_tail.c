/* The end of a text that comes bit by bit. */
#include <check.h>
#include <string.h>

#include "host-bridge/vm/tail.h"
#include "tests/suite_fixture.h"

/* Pieces of `step` bytes of what is longer than the room several times over. */
START_TEST(the_last_bytes_stay_however_they_come)
{
	static const char text[] = "abcdefghijklmnopqrstuvwxyz";
	char tail[7];
	size_t len = 0, step = (size_t)_i;
	for (size_t at = 0; at < sizeof(text) - 1; at += step) {
		size_t left = sizeof(text) - 1 - at, n = step < left ? step : left;
		size_t end = at + n, want = end < sizeof(tail) ? end : sizeof(tail);
		tail_add(tail, &len, sizeof(tail), text + at, n);
		ck_assert_uint_eq(len, want);
		ck_assert_mem_eq(tail, text + end - want, want);
	}
}
END_TEST

START_TEST(nothing_adds_nothing)
{
	char tail[2] = "x";
	size_t len = 1;
	tail_add(tail, &len, sizeof(tail), NULL, 0);
	ck_assert_uint_eq(len, 1);
	ck_assert_int_eq(tail[0], 'x');
}
END_TEST

int main(void)
{
	TCase *t = new_case("tail", NULL, NULL);
	tcase_add_loop_test(t, the_last_bytes_stay_however_they_come, 1, 30);
	tcase_add_test(t, nothing_adds_nothing);
	return run_suite("tail", t) != 0;
}
