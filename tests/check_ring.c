/* The retained output: read back in order, bounded, and honest about what it has lost. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "guest-agent/ring.h"
#include "proto/limits.h"
#include "tests/suite_fixture.h"

static struct ring_budget budget;

static void setup(void)
{
	budget = (struct ring_budget){.limit = UINT64_MAX};
}

/* Every byte's value tells its stream and its sequence number. */
static uint8_t byte_at(unsigned stream, uint64_t seq)
{
	return (uint8_t)(seq * 7 + (seq >> 8) + stream * 131);
}

static void put(struct ring *r, unsigned stream, size_t len)
{
	uint8_t data[CHUNK_MAX];
	ck_assert_uint_le(len, sizeof(data));
	for (size_t i = 0; i < len; i++)
		data[i] = byte_at(stream, ring_end(r) + i);
	ck_assert_int_eq(ring_put(r, stream, data, len), 0);
}

/* What a reader that starts at `seq` learns of each stream. */
struct reading {
	uint64_t bytes[RING_STREAMS], lost[RING_STREAMS], lost_both, pieces, gaps;
};

static struct reading read_from(const struct ring *r, uint64_t seq)
{
	struct reading got = {0};
	struct ring_cursor cur = {.seq = seq};
	struct ring_piece p;
	while (ring_next(r, &cur, &p)) {
		ck_assert_uint_eq(p.seq, seq);
		ck_assert_uint_gt(p.len, 0);
		seq += p.len;
		ck_assert_uint_eq(cur.seq, seq);
		got.pieces++;
		if (p.data == NULL) {
			got.gaps++;
			if (p.both)
				got.lost_both += p.len;
			else
				got.lost[p.stream] += p.len;
			continue;
		}
		ck_assert_uint_le(p.len, CHUNK_MAX);
		for (uint64_t i = 0; i < p.len; i++)
			ck_assert_uint_eq(p.data[i], byte_at(p.stream, p.seq + i));
		got.bytes[p.stream] += p.len;
	}
	ck_assert_uint_eq(seq, ring_end(r) > seq ? ring_end(r) : seq);
	return got;
}

START_TEST(streams_merge_in_the_order_they_were_read)
{
	struct ring *r = ring_create(MIB, &budget);
	for (unsigned i = 0; i < 500; i++)
		put(r, i % 3 == 0, 1 + i * 37 % 3000);
	struct reading got = read_from(r, 0);
	ck_assert_uint_eq(got.bytes[0], ring_total(r, 0));
	ck_assert_uint_eq(got.bytes[1], ring_total(r, 1));
	ck_assert_uint_eq(got.gaps, 0);
	read_from(r, 12345);
	ring_destroy(r);
	ck_assert_uint_eq(budget.used, 0);
}
END_TEST

START_TEST(reads_that_follow_each_other_are_one_piece)
{
	struct ring *r = ring_create(MIB, &budget);
	for (unsigned i = 0; i < 100; i++)
		put(r, 0, 10);
	ck_assert_uint_eq(read_from(r, 0).pieces, 1);
	ring_destroy(r);
}
END_TEST

START_TEST(a_cursor_at_the_end_sees_the_run_grow)
{
	struct ring *r = ring_create(MIB, &budget);
	struct ring_cursor cur = {0};
	struct ring_piece p;
	put(r, 0, 10);
	ck_assert(ring_next(r, &cur, &p));
	ck_assert(!ring_next(r, &cur, &p));
	put(r, 0, 5);
	ck_assert(ring_next(r, &cur, &p));
	ck_assert_uint_eq(p.seq, 10);
	ck_assert_uint_eq(p.len, 5);
	ring_destroy(r);
}
END_TEST

START_TEST(one_stream_keeps_exactly_its_cap)
{
	struct ring *r = ring_create(100000, &budget);
	for (unsigned i = 0; i < 10; i++)
		put(r, 0, 40000);
	struct reading got = read_from(r, 0);
	ck_assert_uint_eq(got.bytes[0], 100000);
	ck_assert_uint_eq(got.lost[0], 300000);
	ck_assert_uint_eq(got.gaps, 1);
	ck_assert_uint_eq(ring_first(r), 300000);
	ring_destroy(r);
}
END_TEST

START_TEST(a_noisy_stream_evicts_only_itself)
{
	struct ring *r = ring_create(50000, &budget);
	put(r, 1, 1000);
	for (unsigned i = 0; i < 20; i++)
		put(r, 0, 40000);
	struct reading got = read_from(r, 0);
	ck_assert_uint_eq(got.bytes[1], 1000);
	ck_assert_uint_eq(got.lost[0], 750000);
	ck_assert_uint_eq(got.lost_both, 0);
	ring_destroy(r);
}
END_TEST

START_TEST(losses_of_both_streams_are_shared_only_where_unknown)
{
	struct ring *r = ring_create(1000, &budget);
	for (unsigned i = 0; i < 10; i++)
		put(r, i % 2, 1000);
	for (unsigned i = 0; i < 5; i++)
		put(r, 0, 1000);
	struct reading got = read_from(r, 0);
	ck_assert_uint_gt(got.lost_both, 0);
	ck_assert_uint_eq(got.bytes[0] + got.bytes[1] + got.lost[0] + got.lost[1] +
	                      got.lost_both,
	                  ring_end(r));
	/* Beyond the last loss of stderr the rest is stdout's alone. */
	got = read_from(r, 9500);
	ck_assert_uint_eq(got.lost_both, 0);
	ring_destroy(r);
}
END_TEST

START_TEST(streams_that_alternate_byte_by_byte_stay_bounded)
{
	struct ring *r = ring_create(100000, &budget);
	for (unsigned i = 0; i < 60000; i++)
		put(r, i % 2, 1);
	ck_assert_uint_le(ring_memory(r), 2 * (100000 + 2 * 64 * KIB));
	struct reading got = read_from(r, 0);
	ck_assert_uint_gt(got.bytes[0], 100000 / 32);
	ck_assert_uint_eq(
	    got.bytes[0] + got.bytes[1] + got.lost[0] + got.lost[1] + got.lost_both, 60000);
	ring_destroy(r);
	ck_assert_uint_eq(budget.used, 0);
}
END_TEST

START_TEST(pinned_bytes_outlive_the_cap)
{
	struct ring *r = ring_create(1000, &budget);
	ring_pin(r, 500);
	for (unsigned i = 0; i < 10; i++)
		put(r, 0, 20000);
	struct reading got = read_from(r, 0);
	ck_assert_uint_eq(got.lost[0], 500);
	while (ring_shed(r))
		;
	ck_assert_uint_eq(read_from(r, 500).gaps, 0);
	ring_pin(r, 199500);
	ck_assert_uint_eq(read_from(r, 0).bytes[0], 1000);
	ring_pin(r, UINT64_MAX);
	ck_assert_uint_eq(read_from(r, 0).bytes[0], 1000);
	ring_destroy(r);
}
END_TEST

START_TEST(shedding_takes_the_oldest_and_gives_memory_back)
{
	struct ring *r = ring_create(10 * MIB, &budget);
	for (unsigned i = 0; i < 20; i++)
		put(r, i < 10, 60000);
	uint64_t before = budget.used;
	ck_assert(ring_shed(r));
	ck_assert_uint_lt(budget.used, before);
	struct reading got = read_from(r, 0);
	ck_assert_uint_gt(got.lost[1], 0);
	ck_assert_uint_eq(got.lost[0], 0);
	while (ring_shed(r))
		;
	ck_assert_uint_eq(budget.used, 0);
	ck_assert_uint_eq(ring_first(r), ring_end(r));
	got = read_from(r, 0);
	ck_assert_uint_eq(got.lost[0] + got.lost[1] + got.lost_both, ring_end(r));
	put(r, 0, 10);
	ck_assert_uint_eq(read_from(r, 0).bytes[0], 10);
	ring_destroy(r);
}
END_TEST

START_TEST(a_cursor_survives_what_is_evicted_under_it)
{
	struct ring *r = ring_create(70000, &budget);
	struct ring_cursor cur = {0};
	struct ring_piece p;
	uint64_t seen = 0;
	srand(7);
	for (unsigned i = 0; i < 3000; i++) {
		put(r, (unsigned)rand() % 2, 1 + (size_t)rand() % 9000);
		if (rand() % 8 != 0)
			continue;
		for (int k = rand() % 40; k > 0 && ring_next(r, &cur, &p); k--) {
			ck_assert_uint_eq(p.seq, seen);
			if (p.data != NULL)
				ck_assert_uint_eq(p.data[p.len - 1],
				                  byte_at(p.stream, p.seq + p.len - 1));
			seen += p.len;
		}
	}
	ring_destroy(r);
	ck_assert_uint_eq(budget.used, 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("ring", setup, NULL);
	tcase_add_test(t, streams_merge_in_the_order_they_were_read);
	tcase_add_test(t, reads_that_follow_each_other_are_one_piece);
	tcase_add_test(t, a_cursor_at_the_end_sees_the_run_grow);
	tcase_add_test(t, one_stream_keeps_exactly_its_cap);
	tcase_add_test(t, a_noisy_stream_evicts_only_itself);
	tcase_add_test(t, losses_of_both_streams_are_shared_only_where_unknown);
	tcase_add_test(t, streams_that_alternate_byte_by_byte_stay_bounded);
	tcase_add_test(t, pinned_bytes_outlive_the_cap);
	tcase_add_test(t, shedding_takes_the_oldest_and_gives_memory_back);
	tcase_add_test(t, a_cursor_survives_what_is_evicted_under_it);
	return run_suite("ring", t) != 0;
}
