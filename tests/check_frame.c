/* The frame codec: every boundary of a length, input that ends at a guard page, and the
 * hand-written Output header against protobuf-c's own packing. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/frame.h"
#include "proto/limits.h"
#include "proto/sandgate.pb-c.h"
#include "tests/suite_fixture.h"

/* `len` bytes whose end touches a page that must not be read. */
static uint8_t *guarded(size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), span = (len + page - 1) / page * page;
	uint8_t *m =
	    mmap(NULL, span + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(m, MAP_FAILED);
	ck_assert_int_eq(mprotect(m + span, page, PROT_NONE), 0);
	return m + span - len;
}

START_TEST(frame_is_found_only_when_whole)
{
	static const uint8_t wire[] = {0, 0, 0, 3, 'a', 'b', 'c', 'x'};
	for (size_t n = 0; n < 7; n++) {
		struct frame f;
		uint8_t *p = guarded(n);
		memcpy(p, wire, n);
		ck_assert_int_eq(frame_parse(p, n, 16, &f), FRAME_NEED_MORE);
		ck_assert_uint_eq(f.need, n < 4 ? 4 : 7);
	}
	struct frame f;
	ck_assert_int_eq(frame_parse(wire, 8, 16, &f), FRAME_OK);
	ck_assert_uint_eq(f.consumed, 7);
	ck_assert_mem_eq(f.payload, "abc", 3);
}
END_TEST

START_TEST(frame_over_limit_is_refused_from_its_header)
{
	uint8_t *p = guarded(4);
	struct frame f;
	memcpy(p, (uint8_t[]){0, 0, 0, 17}, 4);
	ck_assert_int_eq(frame_parse(p, 4, 16, &f), FRAME_TOO_LONG);
	memcpy(p, (uint8_t[]){0, 0, 0, 16}, 4);
	ck_assert_int_eq(frame_parse(p, 4, 16, &f), FRAME_NEED_MORE);
	memcpy(p, (uint8_t[]){0xff, 0xff, 0xff, 0xff}, 4);
	ck_assert_int_eq(frame_parse(p, 4, FRAME_MAX_TO_GUEST, &f), FRAME_TOO_LONG);
}
END_TEST

START_TEST(empty_frame_is_a_frame)
{
	struct frame f;
	ck_assert_int_eq(frame_parse((uint8_t[]){0, 0, 0, 0}, 4, 16, &f), FRAME_OK);
	ck_assert_uint_eq(f.payload_len, 0);
	ck_assert_uint_eq(f.consumed, 4);
}
END_TEST

START_TEST(output_header_unpacks_to_what_was_put_in)
{
	static const uint64_t seqs[] = {0, 1, 127, 128, 1u << 20, 0xffffffffull, UINT64_MAX};
	static const size_t lens[] = {1, 127, 128, 16383, 16384, CHUNK_MAX};
	for (size_t i = 0; i < sizeof(seqs) / sizeof(*seqs); i++)
		for (size_t j = 0; j < sizeof(lens) / sizeof(*lens); j++)
			for (uint32_t s = 0; s < 2; s++) {
				size_t n = lens[j];
				uint8_t *wire = malloc(FRAME_OUTPUT_HEADER_MAX + n);
				size_t h = frame_output_header(wire, seqs[i], s, n);
				ck_assert_uint_le(h, FRAME_OUTPUT_HEADER_MAX);
				memset(wire + h, 'z', n);
				struct frame f;
				ck_assert_int_eq(
				    frame_parse(wire, h + n, FRAME_MAX_TO_HOST, &f), FRAME_OK);
				ck_assert_uint_eq(f.consumed, h + n);
				Sandgate__GuestFrame *g = sandgate__guest_frame__unpack(
				    NULL, f.payload_len, f.payload);
				ck_assert_ptr_nonnull(g);
				ck_assert_int_eq(g->body_case,
				                 SANDGATE__GUEST_FRAME__BODY_OUTPUT);
				ck_assert_uint_eq(g->output->sequence, seqs[i]);
				ck_assert_uint_eq(g->output->stream, s);
				ck_assert_uint_eq(g->output->data.len, n);
				ck_assert_uint_eq(g->output->data.data[n - 1], 'z');
				sandgate__guest_frame__free_unpacked(g, NULL);
				free(wire);
			}
}
END_TEST

START_TEST(written_frame_parses_back)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__HostFrame h = SANDGATE__HOST_FRAME__INIT;
	open.protocol_version = PROTOCOL_VERSION;
	open.op_case = SANDGATE__OPEN__OP_PING;
	open.ping = &ping;
	h.body_case = SANDGATE__HOST_FRAME__BODY_OPEN;
	h.open = &open;
	uint8_t wire[64];
	size_t n = frame_write(&h.base, wire);
	ck_assert_uint_eq(n, frame_size(&h.base));
	struct frame f;
	ck_assert_int_eq(frame_parse(wire, n, FRAME_MAX_TO_GUEST, &f), FRAME_OK);
	Sandgate__HostFrame *u = sandgate__host_frame__unpack(NULL, f.payload_len, f.payload);
	ck_assert_ptr_nonnull(u);
	ck_assert_int_eq(u->open->op_case, SANDGATE__OPEN__OP_PING);
	sandgate__host_frame__free_unpacked(u, NULL);
}
END_TEST

int main(void)
{
	TCase *t = new_case("frame", NULL, NULL);
	tcase_add_test(t, frame_is_found_only_when_whole);
	tcase_add_test(t, frame_over_limit_is_refused_from_its_header);
	tcase_add_test(t, empty_frame_is_a_frame);
	tcase_add_test(t, output_header_unpacks_to_what_was_put_in);
	tcase_add_test(t, written_frame_parses_back);
	return run_suite("frame", t) != 0;
}
