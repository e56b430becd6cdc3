/* The vsock device and its VMM: requests, rings, and a VMM or a guest that breaks them. */
#include "tests/vsock_fixture.h"

/* The device's exit status; it must end by itself. */
static int device_status(void)
{
	int status;
	for (int i = 0; i < WAIT_MS; i++) {
		if (waitpid(device, &status, WNOHANG) == device) {
			device = 0;
			return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		}
		poll(NULL, 0, 1);
	}
	ck_abort_msg("the device does not end");
}

/* Stop a ring; its position. */
static uint32_t vmm_stop_ring(struct fake_vmm *v, uint32_t index)
{
	uint32_t state[2] = {0, 0};
	vmm_send_ring(v, 11, index, 0);
	ck_assert_int_eq(vmm_reply(v, state, sizeof(state)), sizeof(state));
	return state[1];
}

/* ---- the protocol ---- */

START_TEST(config_space_is_the_guest_cid)
{
	uint32_t ask[5] = {0, 8, 0, 0, 0};
	uint32_t config[5];
	vmm_send(&vmm, 24, false, ask, sizeof(ask), NULL, 0);
	ck_assert_int_eq(vmm_reply(&vmm, config, sizeof(config)), sizeof(config));
	ck_assert_uint_eq(config[1], 8);
	ck_assert_uint_eq(config[3], GUEST_CID);
	ck_assert_uint_eq(config[4], 0);
}
END_TEST

START_TEST(request_that_turns_acks_on_is_itself_acked)
{
	uint64_t features = vmm_ask(&vmm, 15), ack = 1;
	ck_assert(features & 1u << 3);
	ck_assert(features & 1u << 5);
	vmm_send(&vmm, 16, true, &features, sizeof(features), NULL, 0);
	ck_assert_int_eq(vmm_reply(&vmm, &ack, sizeof(ack)), sizeof(ack));
	ck_assert_uint_eq(ack, 0);
}
END_TEST

START_TEST(device_that_was_unplugged_serves_again_when_it_is_plugged_in)
{
	struct vsock_pkt peer;
	int fd = host_connected(&peer);
	close_vmm();
	assert_eof(fd);
	close(fd);
	int early = host_connect(); /* while there is no guest: it waits */
	open_vmm();
	bring_up();
	peer = guest_receive(&vmm, NULL);
	ck_assert_uint_eq(peer.op, VIRTIO_VSOCK_OP_REQUEST);
	guest_answer(&vmm, &peer, VIRTIO_VSOCK_OP_RESPONSE, 0, NULL, 0);
	ck_assert(readable(early));
	close(early);
}
END_TEST

/* ---- rings that stop and start ---- */

START_TEST(stopped_rings_go_on_where_they_were)
{
	struct vsock_pkt peer;
	int fd = host_connected(&peer);
	uint32_t rx = vmm_stop_ring(&vmm, VMM_RX), tx = vmm_stop_ring(&vmm, VMM_TX);

	ck_assert_uint_eq(rx, 1);
	ck_assert_uint_eq(tx, 1);
	ck_assert_int_eq(write(fd, "late", 4), 4);
	vmm_start_ring(&vmm, VMM_RX, rx);
	vmm_start_ring(&vmm, VMM_TX, tx);
	struct vsock_pkt p = guest_receive(&vmm, NULL);
	ck_assert_uint_eq(p.op, VIRTIO_VSOCK_OP_RW);
	ck_assert_uint_eq(p.len, 4);
	close(fd);
}
END_TEST

START_TEST(reset_driver_knows_no_old_connection)
{
	struct vsock_pkt peer;
	int fd = host_connected(&peer);

	vmm_stop_ring(&vmm, VMM_RX);
	vmm_stop_ring(&vmm, VMM_TX);
	guest_make_rings(&vmm);
	vmm_start_ring(&vmm, VMM_RX, 0);
	vmm_start_ring(&vmm, VMM_TX, 0);
	assert_eof(fd);
	close(fd);
	guest_post(&vmm, 8);
	fd = host_connected(&peer);
	close(fd);
}
END_TEST

START_TEST(memory_table_may_be_replaced_under_running_rings)
{
	struct vsock_pkt peer;
	int fd = host_connected(&peer);
	const struct fake_region halves[2] = {
	    {MEM_GPA, MEM_SIZE / 2, MEM_UVA, 0},
	    {MEM_GPA + MEM_SIZE / 2, MEM_SIZE / 2, MEM_UVA + MEM_SIZE / 2, MEM_SIZE / 2}};

	vmm_send_memory(&vmm, halves, 2);
	vmm_ask(&vmm, 1);
	ck_assert_int_eq(write(fd, "x", 1), 1);
	ck_assert_uint_eq(guest_receive(&vmm, NULL).op, VIRTIO_VSOCK_OP_RW);
	close(fd);
}
END_TEST

/* ---- hostile VMMs and guests ---- */

START_TEST(ring_size_that_is_no_power_of_two_ends_the_device)
{
	vmm_stop_ring(&vmm, VMM_RX);
	vmm_send_ring(&vmm, 8, VMM_RX, 100);
	vmm_send_fd(&vmm, 12, VMM_RX, vmm.rings[VMM_RX].kick);
	ck_assert_int_eq(device_status(), 1);
}
END_TEST

START_TEST(memory_table_that_lies_ends_the_device)
{
	static const struct fake_region bad[][2] = {
	    {{0, MEM_SIZE, 0x10000000, 0}, {0x1000, 0x1000, 0x20000000, 0}},   /* overlap */
	    {{0, MEM_SIZE, 0x10000000, 0}, {MEM_SIZE, 0x1000, 0x10001000, 0}}, /* in the VMM */
	    {{0, MEM_SIZE + 4096, 0x10000000, 0}, {1ull << 40, 4096, 0, 0}},   /* too long */
	    {{0, MEM_SIZE, 0x10000000, 4096}, {1ull << 40, 4096, 0, 0}},       /* offset */
	    {{UINT64_MAX - 4095, 8192, 0, 0}, {0x10000, 4096, 1ull << 40, 0}}, /* wraps */
	    {{0, 0, 0x10000000, 0}, {1ull << 40, 4096, 0, 0}},                 /* empty */
	    {{0, 4096, 0x10000000, 100}, {1ull << 40, 4096, 0, 0}}};           /* unaligned */
	vmm_send_memory(&vmm, bad[_i], 2);
	ck_assert_int_eq(device_status(), 1);
}
END_TEST

START_TEST(malformed_request_ends_the_device)
{
	static const uint32_t heads[][3] = {{9999, 1, 0}, {1, 2, 0},          {2, 1, 4},
	                                    {5, 1, 4096}, {8, 1, UINT32_MAX}, {24, 1, 3}};
	uint32_t message[4] = {0};
	memcpy(message, heads[_i], sizeof(heads[_i]));
	ck_assert_int_eq(send(vmm.sock, message, sizeof(message), MSG_NOSIGNAL),
	                 sizeof(message));
	ck_assert_int_eq(device_status(), 1);
}
END_TEST

/* Each spoils what the guest offers to the device; the ring is lost, the device is not. */
static void spoil(struct fake_ring *r, int how)
{
	r->desc[0] = (struct vring_desc){MEM_GPA + TX_AT, VSOCK_PKT_HEAD, VRING_DESC_F_NEXT, 1};
	r->desc[1] = (struct vring_desc){MEM_GPA + TX_AT + 64, 8, 0, 0};
	switch (how) {
	case 0: /* a loop */
		r->desc[1].flags = VRING_DESC_F_NEXT;
		break;
	case 1: /* a loop of nothing */
		r->desc[0] = (struct vring_desc){MEM_GPA, 0, VRING_DESC_F_NEXT, 0};
		break;
	case 2:
		r->desc[0].next = RING_SIZE;
		break;
	case 3:
		r->desc[1].addr = MEM_GPA + MEM_SIZE - 4;
		break;
	case 4:
		r->desc[1].addr = UINT64_MAX - 2;
		break;
	case 5:
		r->desc[1].flags = VRING_DESC_F_INDIRECT;
		break;
	case 6:
		r->desc[0].flags |= VRING_DESC_F_WRITE;
		break;
	default:
		r->avail->idx = (uint16_t)(r->avail->idx + RING_SIZE + 1);
		break;
	}
}

START_TEST(broken_ring_is_given_up_and_the_device_lives)
{
	spoil(&vmm.rings[VMM_TX], _i);
	guest_offer(&vmm.rings[VMM_TX], _i == 8 ? RING_SIZE : 0);
	ck_assert(!guest_used(&vmm.rings[VMM_TX], 50));
	vmm_ask(&vmm, 1);

	/* A driver that starts afresh is served. */
	vmm_stop_ring(&vmm, VMM_RX);
	vmm_stop_ring(&vmm, VMM_TX);
	guest_make_rings(&vmm);
	vmm_start_ring(&vmm, VMM_RX, 0);
	vmm_start_ring(&vmm, VMM_TX, 0);
	guest_post(&vmm, 8);
	struct vsock_pkt peer;
	close(host_connected(&peer));
}
END_TEST

START_TEST(truncated_guest_memory_ends_the_device_cleanly)
{
	vmm_ask(&vmm, 1); /* the memory is mapped by now */
	ck_assert_int_eq(ftruncate(vmm.memfd, 0), 0);
	const uint64_t one = 1;
	ck_assert_int_eq(write(vmm.rings[VMM_TX].kick, &one, sizeof(one)), sizeof(one));
	ck_assert_int_eq(device_status(), 1);
	ck_assert_int_eq(access(uds_path, F_OK), -1);
}
END_TEST

int main(void)
{
	TCase *t = new_case("requests", setup, teardown);
	tcase_add_test(t, config_space_is_the_guest_cid);
	tcase_add_test(t, request_that_turns_acks_on_is_itself_acked);
	tcase_add_loop_test(t, memory_table_that_lies_ends_the_device, 0, 7);
	tcase_add_loop_test(t, malformed_request_ends_the_device, 0, 6);
	TCase *rings = new_case("rings", setup_running, teardown);
	tcase_add_test(rings, device_that_was_unplugged_serves_again_when_it_is_plugged_in);
	tcase_add_test(rings, stopped_rings_go_on_where_they_were);
	tcase_add_test(rings, reset_driver_knows_no_old_connection);
	tcase_add_test(rings, memory_table_may_be_replaced_under_running_rings);
	tcase_add_test(rings, ring_size_that_is_no_power_of_two_ends_the_device);
	tcase_add_loop_test(rings, broken_ring_is_given_up_and_the_device_lives, 0, 9);
	tcase_add_test(rings, truncated_guest_memory_ends_the_device_cleanly);
	return run_suite("vhost_user", t, rings) != 0;
}
