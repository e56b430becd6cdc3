/* The rings that a guest may scribble on: what is taken from them, and what is refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host-bridge/device/virtqueue.h"
#include "tests/suite_fixture.h"

/* A ring of eight in one page of shared memory, at address 0 of the guest and UVA of the
 * VMM; the page after it is not mapped, so a step past the end is a crash. */
#define NUM 8
#define UVA 0x10000u
#define DESC UVA
#define AVAIL (UVA + 0x100)
#define USED (UVA + 0x200)
#define SIZE 4096u

static struct guest_mem mem;
static struct virtqueue q;
static struct virtqueue_chain chain;
static uint8_t *page;
static struct vring_desc *desc;
static struct vring_avail *avail;
static struct vring_used *used;
static int memfd;

static void setup(void)
{
	struct err e;
	memfd = memfd_create("ring", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(memfd, SIZE), 0);
	memset(&mem, 0, sizeof(mem));
	memset(&q, 0, sizeof(q));
	ck_assert_int_eq(guest_mem_add(&mem, 0, UVA, SIZE, memfd, 0, &e), 0);
	page = mem.regions[0].base;
	desc = (struct vring_desc *)page;
	avail = (struct vring_avail *)(page + 0x100);
	used = (struct vring_used *)(page + 0x200);
	ck_assert_int_eq(virtqueue_attach(&q, &mem, NUM, DESC, AVAIL, USED, &e), 0);
	virtqueue_start(&q, 0, false);
}

static void teardown(void)
{
	guest_mem_clear(&mem);
	close(memfd);
}

static void offer(uint16_t head)
{
	avail->ring[avail->idx % NUM] = head;
	avail->idx++;
}

START_TEST(size_must_be_a_power_of_two_within_the_cap)
{
	static const uint16_t bad[] = {0, 3, 6, 7, 12, VIRTQUEUE_NUM_MAX + 1, 2048, 65535};
	struct err e;
	ck_assert_int_eq(virtqueue_attach(&q, &mem, bad[_i], DESC, AVAIL, USED, &e), -1);
	ck_assert_int_eq(e.code, ERR_PROTOCOL);
}
END_TEST

START_TEST(areas_must_be_aligned_and_inside_the_memory)
{
	static const uint64_t bad[][3] = {
	    {DESC + 8, AVAIL, USED},        {DESC, AVAIL + 1, USED},
	    {DESC, AVAIL, USED + 2},        {UVA - 16, AVAIL, USED},
	    {UVA + SIZE - 16, AVAIL, USED}, {DESC, UVA + SIZE - 4, USED},
	    {DESC, AVAIL, UVA + SIZE - 64}, {DESC, AVAIL, UINT64_MAX - 3},
	    {UINT64_MAX - 15, AVAIL, USED}, {0, AVAIL, USED}};
	struct err e;
	ck_assert_int_eq(
	    virtqueue_attach(&q, &mem, NUM, bad[_i][0], bad[_i][1], bad[_i][2], &e), -1);
}
END_TEST

START_TEST(chain_is_read_then_written)
{
	desc[3] = (struct vring_desc){0x800, 10, VRING_DESC_F_NEXT, 5};
	desc[5] = (struct vring_desc){0x900, 0, VRING_DESC_F_NEXT, 0};
	desc[0] = (struct vring_desc){SIZE - 20, 20, VRING_DESC_F_WRITE, 0};
	offer(3);
	ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), 1);
	ck_assert_uint_eq(chain.head, 3);
	ck_assert_uint_eq(chain.n_out, 1);
	ck_assert_uint_eq(chain.out_bytes, 10);
	ck_assert_uint_eq(chain.n_in, 1);
	ck_assert_uint_eq(chain.in_bytes, 20);
	ck_assert_ptr_eq(chain.iov[0].iov_base, page + 0x800);
	ck_assert_ptr_eq(chain.iov[1].iov_base, page + SIZE - 20);
	ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), 0);
}
END_TEST

START_TEST(given_back_chains_come_again_in_order)
{
	desc[1] = desc[2] = (struct vring_desc){0x800, 10, 0, 0};
	offer(1);
	offer(2);
	ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), 1);
	ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), 1);
	virtqueue_unpop(&q, 2);
	ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), 1);
	ck_assert_uint_eq(chain.head, 1);
}
END_TEST

START_TEST(segment_outside_the_memory_is_refused)
{
	static const struct vring_desc bad[] = {{SIZE - 19, 20, 0, 0},
	                                        {SIZE, 1, 0, 0},
	                                        {UINT64_MAX, 1, 0, 0},
	                                        {UINT64_MAX - 9, 20, 0, 0},
	                                        {1, UINT32_MAX, 0, 0}};
	desc[0] = bad[_i];
	offer(0);
	ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), -1);
}
END_TEST

START_TEST(chain_of_more_segments_than_the_cap_is_refused)
{
	struct err e;
	/* The descriptors of a larger ring, at a place of its own. */
	ck_assert_int_eq(virtqueue_attach(&q, &mem, 64, UVA + 0x400, AVAIL, UVA + 0x800, &e),
	                 0);
	desc = (struct vring_desc *)(page + 0x400);
	for (uint16_t i = 0; i < 64; i++)
		desc[i] = (struct vring_desc){0, 1, VRING_DESC_F_NEXT, (uint16_t)(i + 1)};
	desc[VIRTQUEUE_SEGMENTS_MAX - 1].flags = 0;
	avail->ring[0] = 0;
	avail->idx = 1;
	ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), 1);
	ck_assert_uint_eq(chain.n_out, VIRTQUEUE_SEGMENTS_MAX);
	desc[VIRTQUEUE_SEGMENTS_MAX - 1].flags = VRING_DESC_F_NEXT;
	avail->idx = 2;
	ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), -1);
}
END_TEST

START_TEST(used_index_wraps)
{
	used->idx = UINT16_MAX;
	virtqueue_start(&q, UINT16_MAX, false);
	avail->idx = UINT16_MAX;
	for (int i = 0; i < 3; i++) {
		desc[0] = (struct vring_desc){0x800, 10, 0, 0};
		offer(0);
		ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), 1);
		virtqueue_push(&q, chain.head, 7);
		ck_assert(virtqueue_publish(&q));
		ck_assert_uint_eq(used->idx, (uint16_t)(UINT16_MAX + 1 + i));
	}
	ck_assert_uint_eq(used->ring[0].len, 7);
}
END_TEST

START_TEST(nothing_is_visible_before_it_is_published)
{
	virtqueue_push(&q, 0, 1);
	virtqueue_push(&q, 1, 1);
	ck_assert_uint_eq(used->idx, 0);
	ck_assert(virtqueue_publish(&q));
	ck_assert_uint_eq(used->idx, 2);
	ck_assert(!virtqueue_publish(&q));
}
END_TEST

START_TEST(guest_that_wants_no_interrupt_gets_none)
{
	avail->flags = VRING_AVAIL_F_NO_INTERRUPT;
	virtqueue_push(&q, 0, 1);
	ck_assert(!virtqueue_publish(&q));
}
END_TEST

START_TEST(event_index_says_when_to_interrupt)
{
	uint16_t *used_event = &avail->ring[NUM];
	virtqueue_start(&q, 0, true);

	virtqueue_push(&q, 0, 1);
	ck_assert(virtqueue_publish(&q)); /* the first after a start, whatever it says */
	*used_event = 3;
	virtqueue_push(&q, 0, 1);
	virtqueue_push(&q, 0, 1);
	ck_assert(!virtqueue_publish(&q));
	virtqueue_push(&q, 0, 1);
	ck_assert(virtqueue_publish(&q));
	virtqueue_push(&q, 0, 1);
	ck_assert(!virtqueue_publish(&q));
}
END_TEST

START_TEST(kick_is_asked_for_at_the_next_chain)
{
	const uint16_t *avail_event = (const uint16_t *)&used->ring[NUM];
	virtqueue_start(&q, 0, true);
	desc[0] = (struct vring_desc){0x800, 10, 0, 0};
	offer(0);
	ck_assert_int_eq(virtqueue_pop(&q, &mem, &chain), 1);
	ck_assert(!virtqueue_want_kick(&q));
	ck_assert_uint_eq(*avail_event, 1);
	offer(0);
	ck_assert(virtqueue_want_kick(&q));
}
END_TEST

START_TEST(kick_flag_stands_in_for_the_event_index)
{
	virtqueue_refuse_kick(&q);
	ck_assert_uint_eq(used->flags, VRING_USED_F_NO_NOTIFY);
	ck_assert(!virtqueue_want_kick(&q));
	ck_assert_uint_eq(used->flags, 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("virtqueue", setup, teardown);
	tcase_add_loop_test(t, size_must_be_a_power_of_two_within_the_cap, 0, 8);
	tcase_add_loop_test(t, areas_must_be_aligned_and_inside_the_memory, 0, 10);
	tcase_add_test(t, chain_is_read_then_written);
	tcase_add_test(t, given_back_chains_come_again_in_order);
	tcase_add_loop_test(t, segment_outside_the_memory_is_refused, 0, 5);
	tcase_add_test(t, chain_of_more_segments_than_the_cap_is_refused);
	tcase_add_test(t, used_index_wraps);
	tcase_add_test(t, nothing_is_visible_before_it_is_published);
	tcase_add_test(t, guest_that_wants_no_interrupt_gets_none);
	tcase_add_test(t, event_index_says_when_to_interrupt);
	tcase_add_test(t, kick_is_asked_for_at_the_next_chain);
	tcase_add_test(t, kick_flag_stands_in_for_the_event_index);
	return run_suite("virtqueue", t) != 0;
}
