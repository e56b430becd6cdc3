/* Connections through the vsock device: bytes, credit, resets and the cap. */
#include "tests/vsock_fixture.h"

START_TEST(bytes_cross_both_ways_whole)
{
	enum { N = 20000 };
	static uint8_t sent[N], got[N];
	struct vsock_pkt peer, p;
	uint8_t *data;
	int fd = host_connected(&peer);

	for (int i = 0; i < N; i++)
		sent[i] = (uint8_t)(i * 7 + i / 251);
	ck_assert_int_eq(write(fd, sent, N), N);
	for (size_t n = 0; n < N; n += p.len) {
		p = guest_receive(&vmm, &data);
		ck_assert_uint_eq(p.op, VIRTIO_VSOCK_OP_RW);
		ck_assert_uint_le(n + p.len, N);
		ck_assert_mem_eq(data, sent + n, p.len);
	}
	guest_answer(&vmm, &peer, VIRTIO_VSOCK_OP_RW, 0, sent, N);
	for (ssize_t n = 0, part; n < N; n += part) {
		ck_assert(readable(fd));
		part = read(fd, got + n, (size_t)(N - n));
		ck_assert_int_gt(part, 0);
	}
	ck_assert_mem_eq(got, sent, N);
	close(fd);
}
END_TEST

START_TEST(connect_line_may_come_in_pieces)
{
	int fd = dial(uds_path);
	for (const char *s = "connect 523\n"; *s != '\0'; s++) {
		ck_assert_int_eq(write(fd, s, 1), 1);
		poll(NULL, 0, 1);
	}
	struct vsock_pkt p = guest_receive(&vmm, NULL);
	ck_assert_uint_eq(p.op, VIRTIO_VSOCK_OP_REQUEST);
	close(fd);
}
END_TEST

START_TEST(malformed_connect_line_is_closed)
{
	static const char *const lines[] = {"GET / HTTP/1.1\r\n",
	                                    "CONNECT \n",
	                                    "CONNECT 5x\n",
	                                    "CONNECT -1\n",
	                                    "CONNECT\n",
	                                    "CONNECT 4294967296\n",
	                                    "\n",
	                                    "CONNECT 523\r\n",
	                                    "CONNECT 00000000000000000000000523\n"};
	int fd = dial(uds_path);
	size_t len = strlen(lines[_i]);
	ck_assert_int_eq(write(fd, lines[_i], len), (ssize_t)len);
	char byte;
	ck_assert(readable(fd));
	ck_assert_int_le(read(fd, &byte, 1), 0);
	close(fd);
}
END_TEST

START_TEST(no_listener_in_the_guest_is_end_of_file_without_ok)
{
	int fd = host_connect();
	struct vsock_pkt p = guest_receive(&vmm, NULL);
	guest_answer(&vmm, &p, VIRTIO_VSOCK_OP_RST, 0, NULL, 0);
	assert_eof(fd);
	close(fd);
}
END_TEST

START_TEST(client_that_leaves_is_reset_in_the_guest)
{
	struct vsock_pkt peer;
	uint8_t *data;
	int fd = host_connected(&peer);
	ck_assert_int_eq(write(fd, "last", 4), 4);
	close(fd);
	struct vsock_pkt p = guest_receive(&vmm, &data);
	ck_assert_uint_eq(p.op, VIRTIO_VSOCK_OP_RW);
	ck_assert_mem_eq(data, "last", 4);
	p = guest_receive(&vmm, NULL);
	ck_assert_uint_eq(p.op, VIRTIO_VSOCK_OP_RST);
	ck_assert_uint_eq(p.src_port, peer.src_port);
}
END_TEST

START_TEST(client_that_leaves_before_ok_is_reset_in_the_guest)
{
	int fd = host_connect();
	ck_assert_uint_eq(guest_receive(&vmm, NULL).op, VIRTIO_VSOCK_OP_REQUEST);
	close(fd);
	ck_assert_uint_eq(guest_receive(&vmm, NULL).op, VIRTIO_VSOCK_OP_RST);
}
END_TEST

START_TEST(last_words_of_a_client_reach_a_guest_that_is_writing)
{
	struct vsock_pkt peer;
	uint8_t *data;
	int fd = host_connected(&peer);

	/* The client's words and its going are both there before the guest's bytes. */
	kill(device, SIGSTOP);
	ck_assert_int_eq(write(fd, "cancel", 6), 6);
	close(fd);
	const struct vsock_pkt p = {.src_cid = GUEST_CID,
	                            .dst_cid = 2,
	                            .src_port = 523,
	                            .dst_port = peer.src_port,
	                            .len = 5,
	                            .type = 1,
	                            .op = VIRTIO_VSOCK_OP_RW,
	                            .buf_alloc = 65536};
	kill(device, SIGCONT);
	guest_send(&vmm, &p, "noise");
	struct vsock_pkt got = guest_receive(&vmm, &data);
	ck_assert_uint_eq(got.op, VIRTIO_VSOCK_OP_RW);
	ck_assert_mem_eq(data, "cancel", 6);
	ck_assert_uint_eq(guest_receive(&vmm, NULL).op, VIRTIO_VSOCK_OP_RST);
}
END_TEST

/* The guest is told that the connection is over, after how much it may send. */
static void expect_reset(void)
{
	struct vsock_pkt p;
	do
		p = guest_receive(&vmm, NULL);
	while (p.op == VIRTIO_VSOCK_OP_CREDIT_UPDATE);
	ck_assert_uint_eq(p.op, VIRTIO_VSOCK_OP_RST);
}

START_TEST(guest_close_is_end_of_file_after_all_its_bytes)
{
	static uint8_t chunk[VSOCK_PKT_MAX], sink[VSOCK_PKT_MAX];
	struct vsock_pkt peer;
	size_t got = 0;
	ssize_t n;
	int fd = host_connected(&peer);

	/* More than a socket takes while nobody reads: the device keeps the rest. */
	for (int i = 0; i < 4; i++)
		guest_answer(&vmm, &peer, VIRTIO_VSOCK_OP_RW, 0, chunk, sizeof(chunk));
	guest_answer(&vmm, &peer, VIRTIO_VSOCK_OP_SHUTDOWN, 3, NULL, 0);
	while (readable(fd) && (n = read(fd, sink, sizeof(sink))) > 0)
		got += (size_t)n;
	ck_assert_uint_eq(got, 4 * sizeof(chunk));
	expect_reset();
	close(fd);
}
END_TEST

START_TEST(guest_gets_credit_back_as_the_client_reads)
{
	static uint8_t chunk[VSOCK_PKT_MAX], sink[VSOCK_PKT_MAX];
	struct vsock_pkt peer;
	size_t got = 0;
	int fd = host_connected(&peer);

	for (int i = 0; i < 4; i++)
		guest_answer(&vmm, &peer, VIRTIO_VSOCK_OP_RW, 0, chunk, sizeof(chunk));
	while (got < 4 * sizeof(chunk) && readable(fd)) {
		ssize_t n = read(fd, sink, sizeof(sink));
		ck_assert_int_gt(n, 0);
		got += (size_t)n;
	}
	struct vsock_pkt p = guest_receive(&vmm, NULL);
	ck_assert_uint_eq(p.op, VIRTIO_VSOCK_OP_CREDIT_UPDATE);
	ck_assert_uint_ge(p.fwd_cnt, VSOCK_BUF_ALLOC / 2);
	ck_assert_uint_eq(p.buf_alloc, VSOCK_BUF_ALLOC);
	close(fd);
}
END_TEST

START_TEST(guest_over_its_credit_is_reset)
{
	static uint8_t chunk[VSOCK_PKT_MAX];
	struct vsock_pkt peer;
	int fd = host_connected(&peer);

	for (int i = 0; i < 12; i++)
		guest_answer(&vmm, &peer, VIRTIO_VSOCK_OP_RW, 0, chunk, sizeof(chunk));
	expect_reset();
	close(fd);
}
END_TEST

START_TEST(guest_is_sent_no_more_than_it_has_room_for)
{
	static uint8_t bytes[100000];
	struct vsock_pkt peer, p;
	size_t got = 0;
	int fd = host_connected(&peer); /* the answer to it gave room for 64 KiB */

	ck_assert_int_eq(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	while (got < 65536)
		got += guest_receive(&vmm, NULL).len;
	ck_assert_uint_eq(got, 65536);
	ck_assert(!guest_receive_within(&vmm, &p, NULL, 50));
	peer.fwd_cnt = 0;
	const struct vsock_pkt more = {.src_cid = GUEST_CID,
	                               .dst_cid = 2,
	                               .src_port = 523,
	                               .dst_port = peer.src_port,
	                               .type = 1,
	                               .op = VIRTIO_VSOCK_OP_CREDIT_UPDATE,
	                               .buf_alloc = 65536,
	                               .fwd_cnt = 65536};
	guest_send(&vmm, &more, NULL);
	while (got < sizeof(bytes))
		got += guest_receive(&vmm, NULL).len;
	ck_assert_uint_eq(got, sizeof(bytes));
	close(fd);
}
END_TEST

START_TEST(guest_without_buffers_gets_everything_later)
{
	static uint8_t bytes[60000];
	struct vsock_pkt peer, p;
	size_t got = 0;

	/* Use all buffers up but two. */
	int fd = host_connected(&peer);
	for (int i = 0; i < RX_BUFS - 4; i++) {
		ck_assert_int_eq(write(fd, bytes, 1), 1);
		ck_assert_uint_eq(guest_receive(&vmm, NULL).len, 1);
	}
	ck_assert_int_eq(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	while (got < 2 * RX_BUF_SIZE)
		got += guest_receive(&vmm, NULL).len;
	ck_assert(!guest_receive_within(&vmm, &p, NULL, 50));
	close(fd);
	guest_post(&vmm, RX_BUFS - 1);
	while (got < sizeof(bytes))
		got += guest_receive(&vmm, NULL).len;
	ck_assert_uint_eq(got, sizeof(bytes));
	ck_assert_uint_eq(guest_receive(&vmm, NULL).op, VIRTIO_VSOCK_OP_RST);
}
END_TEST

START_TEST(guest_client_is_connected_to_the_port_socket)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct vsock_pkt p = {.src_cid = GUEST_CID,
	                      .dst_cid = 2,
	                      .src_port = 1000,
	                      .dst_port = 77,
	                      .type = 1,
	                      .op = VIRTIO_VSOCK_OP_REQUEST,
	                      .buf_alloc = 65536};
	char byte = 0;

	guest_send(&vmm, &p, NULL);
	ck_assert_uint_eq(guest_receive(&vmm, NULL).op, VIRTIO_VSOCK_OP_RST);

	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s_77", uds_path);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(chmod(addr.sun_path, 0777), 0);
	ck_assert_int_eq(listen(listener, 4), 0);
	guest_send(&vmm, &p, NULL);
	struct vsock_pkt peer = guest_receive(&vmm, NULL);
	ck_assert_uint_eq(peer.op, VIRTIO_VSOCK_OP_RESPONSE);
	guest_answer(&vmm, &peer, VIRTIO_VSOCK_OP_RW, 0, "x", 1);
	int fd = accept(listener, NULL, NULL);
	ck_assert(readable(fd));
	ck_assert_int_eq(read(fd, &byte, 1), 1);
	ck_assert_int_eq(byte, 'x');
	close(fd);
	close(listener);
}
END_TEST

START_TEST(unknown_connection_is_reset_but_a_reset_never_is)
{
	struct vsock_pkt p = {.src_cid = GUEST_CID,
	                      .dst_cid = 2,
	                      .src_port = 5,
	                      .dst_port = 6,
	                      .type = 1,
	                      .op = VIRTIO_VSOCK_OP_RST},
	                 got;
	guest_send(&vmm, &p, NULL);
	ck_assert(!guest_receive_within(&vmm, &got, NULL, 50));
	p.op = VIRTIO_VSOCK_OP_RW;
	guest_send(&vmm, &p, NULL);
	got = guest_receive(&vmm, NULL);
	ck_assert_uint_eq(got.op, VIRTIO_VSOCK_OP_RST);
	ck_assert_uint_eq(got.dst_port, 5);
	ck_assert_uint_eq(got.src_port, 6);
}
END_TEST

START_TEST(connections_past_the_cap_are_closed_and_the_others_live)
{
	static int fds[VSOCK_CONNS_MAX];
	struct vsock_pkt peer;
	uint8_t *data;
	int fd = host_connected(&peer);

	for (int i = 1; i < VSOCK_CONNS_MAX; i++)
		fds[i] = dial(uds_path);
	int extra = dial(uds_path);
	assert_eof(extra);
	ck_assert_int_eq(write(fd, "x", 1), 1);
	ck_assert_uint_eq(guest_receive(&vmm, &data).op, VIRTIO_VSOCK_OP_RW);
	for (int i = 1; i < VSOCK_CONNS_MAX; i++)
		close(fds[i]);
	close(extra);
	close(fd);
}
END_TEST

int main(void)
{
	TCase *t = new_case("connections", setup_running, teardown);
	tcase_add_test(t, bytes_cross_both_ways_whole);
	tcase_add_test(t, connect_line_may_come_in_pieces);
	tcase_add_loop_test(t, malformed_connect_line_is_closed, 0, 9);
	tcase_add_test(t, no_listener_in_the_guest_is_end_of_file_without_ok);
	tcase_add_test(t, client_that_leaves_is_reset_in_the_guest);
	tcase_add_test(t, client_that_leaves_before_ok_is_reset_in_the_guest);
	tcase_add_test(t, last_words_of_a_client_reach_a_guest_that_is_writing);
	tcase_add_test(t, guest_close_is_end_of_file_after_all_its_bytes);
	tcase_add_test(t, guest_gets_credit_back_as_the_client_reads);
	tcase_add_test(t, guest_over_its_credit_is_reset);
	tcase_add_test(t, guest_is_sent_no_more_than_it_has_room_for);
	tcase_add_test(t, guest_without_buffers_gets_everything_later);
	tcase_add_test(t, guest_client_is_connected_to_the_port_socket);
	tcase_add_test(t, unknown_connection_is_reset_but_a_reset_never_is);
	tcase_add_test(t, connections_past_the_cap_are_closed_and_the_others_live);
	return run_suite("vsock_device", t) != 0;
}
