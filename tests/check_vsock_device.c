#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "host-bridge/device/vsock_device.h"
#include "proto/limits.h"
#include "tests/fake_vmm.h"

/* The device runs as the process that it is, in a directory of its own. */
static char dir[] = "/tmp/sandgate-vsock-XXXXXX";
static char vmm_path[64], uds_path[64];
static pid_t device;
static struct fake_vmm vmm;

static int dial(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	strcpy(addr.sun_path, path);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return fd;
}

static void start_device(void)
{
	int ready[2];
	char line[6];
	char *argv[] = {"vsock-device", "--socket", vmm_path, "--uds", uds_path, NULL};

	ck_assert_int_eq(pipe(ready), 0);
	fflush(NULL);
	device = fork();
	if (device == 0) {
		dup2(ready[1], STDOUT_FILENO);
		close(ready[0]);
		close(ready[1]);
		_exit(vsock_device_main(5, argv));
	}
	close(ready[1]);
	ck_assert_int_eq(read(ready[0], line, sizeof(line)), 6);
	ck_assert_mem_eq(line, "ready\n", 6);
	close(ready[0]);
}

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

static void setup(void)
{
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(chmod(dir, 0777), 0);
	snprintf(vmm_path, sizeof(vmm_path), "%s/vh", dir);
	snprintf(uds_path, sizeof(uds_path), "%s/v", dir);
	start_device();

	vmm.sock = dial(vmm_path);
	vmm.memfd = memfd_create("guest", MFD_CLOEXEC);
	ck_assert_int_eq(ftruncate(vmm.memfd, MEM_SIZE), 0);
	vmm.mem = mmap(NULL, MEM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, vmm.memfd, 0);
	ck_assert_ptr_ne(vmm.mem, MAP_FAILED);
	for (int i = 0; i < 2; i++) {
		vmm.rings[i].kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		vmm.rings[i].call = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	}
	guest_make_rings(&vmm);
}

/* Bring the device up as QEMU does, with all receive buffers but one posted. */
static void setup_running(void)
{
	setup();
	uint64_t offered = vmm_ask(&vmm, 1);
	vmm_send_u64(&vmm, 2, (offered & ~(1ull << VIRTIO_RING_F_EVENT_IDX)));
	vmm_send_u64(&vmm, 16, vmm_ask(&vmm, 15));
	vmm_share_memory(&vmm);
	vmm_start_ring(&vmm, VMM_RX, 0);
	vmm_start_ring(&vmm, VMM_TX, 0);
	guest_post(&vmm, RX_BUFS - 1);
}

static void teardown(void)
{
	char path[160];
	if (device > 0) {
		kill(device, SIGKILL);
		waitpid(device, NULL, 0);
	}
	close(vmm.sock);
	close(vmm.memfd);
	munmap(vmm.mem, MEM_SIZE);
	for (int i = 0; i < 2; i++) {
		close(vmm.rings[i].kick);
		close(vmm.rings[i].call);
	}
	unlink(vmm_path);
	unlink(uds_path);
	snprintf(path, sizeof(path), "%s_77", uds_path);
	unlink(path);
	rmdir(dir);
}

static int host_connect(void)
{
	int fd = dial(uds_path);
	ck_assert_int_eq(write(fd, "CONNECT 523\n", 12), 12);
	return fd;
}

/* A host client whose connection the guest took; `*peer` is a packet to answer to. */
static int host_connected(struct vsock_pkt *peer)
{
	char line[32] = "";
	char expected[32];
	int fd = host_connect();

	*peer = guest_receive(&vmm, NULL);
	ck_assert_uint_eq(peer->op, VIRTIO_VSOCK_OP_REQUEST);
	ck_assert_uint_eq(peer->dst_port, 523);
	ck_assert_uint_eq(peer->dst_cid, GUEST_CID);
	guest_answer(&vmm, peer, VIRTIO_VSOCK_OP_RESPONSE, 0, NULL, 0);
	ck_assert(readable(fd));
	ck_assert_int_gt(read(fd, line, sizeof(line) - 1), 0);
	snprintf(expected, sizeof(expected), "OK %u\n", peer->src_port);
	ck_assert_str_eq(line, expected);
	return fd;
}

static void assert_eof(int fd)
{
	char byte;
	ck_assert(readable(fd));
	ck_assert_int_eq(read(fd, &byte, 1), 0);
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

START_TEST(device_ends_with_its_vmm_and_takes_its_socket_along)
{
	struct vsock_pkt peer;
	int fd = host_connected(&peer);
	shutdown(vmm.sock, SHUT_RDWR);
	assert_eof(fd);
	ck_assert_int_eq(device_status(), 0);
	ck_assert_int_eq(access(uds_path, F_OK), -1);
	close(fd);
}
END_TEST

/* ---- connections ---- */

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
	struct vsock_pkt p;
	do
		p = guest_receive(&vmm, NULL);
	while (p.op == VIRTIO_VSOCK_OP_CREDIT_UPDATE);
	ck_assert_uint_eq(p.op, VIRTIO_VSOCK_OP_RST);
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
	struct vsock_pkt peer, p;
	int fd = host_connected(&peer);

	for (int i = 0; i < 12; i++)
		guest_answer(&vmm, &peer, VIRTIO_VSOCK_OP_RW, 0, chunk, sizeof(chunk));
	do
		p = guest_receive(&vmm, NULL);
	while (p.op == VIRTIO_VSOCK_OP_CREDIT_UPDATE);
	ck_assert_uint_eq(p.op, VIRTIO_VSOCK_OP_RST);
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
	while (guest_receive_within(&vmm, &p, NULL, 50))
		got += p.len;
	ck_assert_uint_eq(got, 2 * RX_BUF_SIZE);
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
	ck_assert_int_eq(send(vmm.sock, heads[_i], 12, MSG_NOSIGNAL), 12);
	ck_assert_int_eq(send(vmm.sock, "\0\0\0\0", 4, MSG_NOSIGNAL), 4);
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
	ck_assert_int_eq(ftruncate(vmm.memfd, 0), 0);
	const uint64_t one = 1;
	ck_assert_int_eq(write(vmm.rings[VMM_TX].kick, &one, sizeof(one)), sizeof(one));
	ck_assert_int_eq(device_status(), 1);
	ck_assert_int_eq(access(uds_path, F_OK), -1);
}
END_TEST

static Suite *vsock_device_suite(void)
{
	Suite *s = suite_create("vsock_device");
	TCase *tc = tcase_create("protocol");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, config_space_is_the_guest_cid);
	tcase_add_test(tc, request_that_turns_acks_on_is_itself_acked);
	tcase_add_loop_test(tc, memory_table_that_lies_ends_the_device, 0, 7);
	tcase_add_loop_test(tc, malformed_request_ends_the_device, 0, 6);
	suite_add_tcase(s, tc);

	tc = tcase_create("connections");
	tcase_set_timeout(tc, 20);
	tcase_add_checked_fixture(tc, setup_running, teardown);
	tcase_add_test(tc, device_ends_with_its_vmm_and_takes_its_socket_along);
	tcase_add_test(tc, bytes_cross_both_ways_whole);
	tcase_add_test(tc, connect_line_may_come_in_pieces);
	tcase_add_loop_test(tc, malformed_connect_line_is_closed, 0, 9);
	tcase_add_test(tc, no_listener_in_the_guest_is_end_of_file_without_ok);
	tcase_add_test(tc, client_that_leaves_is_reset_in_the_guest);
	tcase_add_test(tc, client_that_leaves_before_ok_is_reset_in_the_guest);
	tcase_add_test(tc, last_words_of_a_client_reach_a_guest_that_is_writing);
	tcase_add_test(tc, guest_close_is_end_of_file_after_all_its_bytes);
	tcase_add_test(tc, guest_gets_credit_back_as_the_client_reads);
	tcase_add_test(tc, guest_over_its_credit_is_reset);
	tcase_add_test(tc, guest_is_sent_no_more_than_it_has_room_for);
	tcase_add_test(tc, guest_without_buffers_gets_everything_later);
	tcase_add_test(tc, guest_client_is_connected_to_the_port_socket);
	tcase_add_test(tc, unknown_connection_is_reset_but_a_reset_never_is);
	tcase_add_test(tc, connections_past_the_cap_are_closed_and_the_others_live);
	tcase_add_test(tc, stopped_rings_go_on_where_they_were);
	tcase_add_test(tc, reset_driver_knows_no_old_connection);
	tcase_add_test(tc, memory_table_may_be_replaced_under_running_rings);
	tcase_add_test(tc, ring_size_that_is_no_power_of_two_ends_the_device);
	tcase_add_loop_test(tc, broken_ring_is_given_up_and_the_device_lives, 0, 9);
	tcase_add_test(tc, truncated_guest_memory_ends_the_device_cleanly);
	suite_add_tcase(s, tc);
	return s;
}

int main(void)
{
	SRunner *sr = srunner_create(vsock_device_suite());
	srunner_run_all(sr, CK_ENV);
	int failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed == 0 ? 0 : 1;
}
