/*
 * A hostile VMM and guest against the vsock device's core, without its sockets and
 * confinement. The input is a program of steps: raw vhost-user requests, writes into the
 * guest's memory, well-made rings and packets to get deep, kicks, and host clients.
 */
#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host-bridge/device/vsock_mux.h"
#include "proto/log.h"

#define MEM_SIZE 0x40000u
#define MEM_GPA 0x1000u
#define MEM_UVA 0x70000000u
#define NUM 16         /* descriptors of the well-made rings */
#define RING 0x1000u   /* bytes from one ring to the next; parts at +0, +0x400, +0x800 */
#define RX_AT 0x10000u /* receive buffers */
#define TX_AT 0x8000u  /* a packet of the guest */
#define CLIENTS 4

struct input {
	const uint8_t *p;
	size_t left;
};

struct world {
	struct ev_loop *loop;
	struct vhost_user *vmm;
	struct vsock_mux *mux;
	uint8_t *mem;
	int memfd;
	int vmm_end;
	int clients[CLIENTS];
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t take(struct input *in, void *to, size_t n)
{
	memset(to, 0, n);
	if (n > in->left)
		n = in->left;
	memcpy(to, in->p, n);
	in->p += n;
	in->left -= n;
	return n;
}

static uint8_t byte(struct input *in)
{
	uint8_t b;
	take(in, &b, 1);
	return b;
}

static uint32_t word(struct input *in)
{
	uint32_t w;
	take(in, &w, sizeof(w));
	return w;
}

/* ---- steps ---- */

static int obey(struct world *w, uint32_t request, const void *payload, uint32_t size, int *fds,
                unsigned n_fds)
{
	struct vhost_user_msg m = {.head = {request, 1, size}};
	struct err e = {0};
	uint8_t sink[512];

	memcpy(m.payload, payload, size);
	int rc = vhost_user_obey(w->vmm, &m, fds, n_fds, &e);
	while (recv(w->vmm_end, sink, sizeof(sink), MSG_DONTWAIT) > 0)
		;
	return rc;
}

static int raw_request(struct world *w, struct input *in)
{
	uint8_t request = byte(in), n_fds = byte(in) % (VHOST_USER_FDS_MAX + 1), payload[256];
	int fds[VHOST_USER_FDS_MAX];
	uint32_t size = (uint32_t)take(in, payload, byte(in));

	for (unsigned i = 0; i < n_fds; i++)
		fds[i] = request == 5 ? dup(w->memfd) : eventfd(0, EFD_NONBLOCK);
	return obey(w, request, payload, size, fds, n_fds);
}

static int ring_up(struct world *w, uint32_t index, uint32_t base)
{
	const uint64_t at = MEM_UVA + index * RING, which = index;
	const uint32_t num[2] = {index, NUM}, start[2] = {index, base}, on[2] = {index, 1};
	const struct {
		uint32_t index, flags;
		uint64_t desc, used, avail, log;
	} addr = {index, 0, at, at + 0x800, at + 0x400, 0};

	if (obey(w, 8, num, sizeof(num), NULL, 0) < 0 ||
	    obey(w, 10, start, sizeof(start), NULL, 0) < 0 ||
	    obey(w, 9, &addr, sizeof(addr), NULL, 0) < 0)
		return -1;
	int call = eventfd(0, EFD_NONBLOCK);
	if (obey(w, 13, &which, sizeof(which), &call, 1) < 0)
		return -1;
	int kick = eventfd(0, EFD_NONBLOCK);
	if (obey(w, 12, &which, sizeof(which), &kick, 1) < 0)
		return -1;
	return obey(w, 18, on, sizeof(on), NULL, 0);
}

static int set_up(struct world *w, struct input *in)
{
	const struct {
		uint32_t n, padding;
		uint64_t gpa, size, uva, offset;
	} table = {1, 0, MEM_GPA, MEM_SIZE, MEM_UVA, 0};
	const uint64_t features = 1ull << 32 | 1ull << 30 | (uint64_t)(byte(in) & 1) << 29;
	uint32_t base = byte(in) & 1 ? UINT16_MAX : 0;

	if (obey(w, 2, &features, sizeof(features), NULL, 0) < 0)
		return -1;
	int memfd = dup(w->memfd);
	if (obey(w, 5, &table, sizeof(table), &memfd, 1) < 0)
		return -1;
	return ring_up(w, 0, base) < 0 ? -1 : ring_up(w, 1, base);
}

static void write_memory(struct world *w, struct input *in)
{
	uint32_t at = word(in) % MEM_SIZE;
	uint8_t bytes[256];
	size_t n = take(in, bytes, byte(in));
	memcpy(w->mem + at, bytes, n < MEM_SIZE - at ? n : MEM_SIZE - at);
}

static void offer(struct world *w, uint32_t ring, uint16_t head)
{
	struct vring_avail *a = (struct vring_avail *)(w->mem + ring * RING + 0x400);
	a->ring[a->idx % NUM] = head;
	a->idx++;
}

static void post_buffer(struct world *w, struct input *in)
{
	struct vring_desc *d = (struct vring_desc *)w->mem;
	uint16_t i = byte(in) % NUM;
	d[i] = (struct vring_desc){MEM_GPA + RX_AT + i * 0x1000u, 44u + byte(in) * 16u,
	                           VRING_DESC_F_WRITE, 0};
	offer(w, 0, i);
	vsock_mux_rx_kick(w->mux);
}

static void send_packet(struct world *w, struct input *in)
{
	struct vring_desc *d = (struct vring_desc *)(w->mem + RING);
	/* Few ports, so that packets meet connections. */
	struct vsock_pkt p = {.src_cid = 3, .dst_cid = 2, .type = 1};
	p.op = byte(in) % 10;
	p.src_port = byte(in) % 4;
	p.dst_port = 0x40000000u + byte(in) % 4;
	p.len = word(in) % 0x8000u;
	p.flags = byte(in);
	p.buf_alloc = word(in);
	p.fwd_cnt = word(in);
	struct iovec iov = {w->mem + TX_AT, VSOCK_PKT_HEAD};

	vsock_pkt_encode(&p, &iov, 1);
	d[0] = (struct vring_desc){MEM_GPA + TX_AT, VSOCK_PKT_HEAD, VRING_DESC_F_NEXT, 1};
	d[1] = (struct vring_desc){MEM_GPA + TX_AT + 64, p.len, 0, 0};
	offer(w, 1, 0);
	vsock_mux_tx_kick(w->mux);
}

static void client(struct world *w, struct input *in)
{
	int *slot = &w->clients[byte(in) % CLIENTS], pair[2];
	uint8_t what = byte(in), bytes[256];
	char line[] = "CONNECT 0\n";

	if (*slot >= 0 && what % 2 == 0) {
		close(*slot);
		*slot = -1;
	} else if (*slot >= 0) {
		size_t n = take(in, bytes, byte(in));
		send(*slot, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		recv(*slot, bytes, sizeof(bytes), MSG_DONTWAIT);
	} else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0) {
		line[8] = (char)('0' + what % 4);
		send(pair[0], line, sizeof(line) - 1, MSG_DONTWAIT);
		*slot = pair[0];
		vsock_mux_accept(w->mux, pair[1]);
	}
}

static int step(struct world *w, struct input *in)
{
	switch (byte(in) % 9) {
	case 0:
		return raw_request(w, in);
	case 1:
		return set_up(w, in);
	case 2:
		write_memory(w, in);
		return 0;
	case 3:
		post_buffer(w, in);
		return 0;
	case 4:
		send_packet(w, in);
		return 0;
	case 5:
		client(w, in);
		return 0;
	case 6:
		vsock_mux_tx_kick(w->mux);
		return 0;
	case 7:
		vsock_mux_rx_kick(w->mux);
		return 0;
	default:
		ev_run(w->loop, EVRUN_NOWAIT);
		vhost_user_flush(w->vmm, RING_RX);
		vhost_user_flush(w->vmm, RING_TX);
		return 0;
	}
}

static void on_ring_started(enum vhost_user_ring_id id, bool fresh, void *arg)
{
	struct world *w = arg;
	if (id == RING_RX && fresh)
		vsock_mux_guest_reset(w->mux);
}

static void on_ring_stopped(enum vhost_user_ring_id id, void *arg)
{
	(void)id;
	(void)arg;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct world w = {.memfd = -1};
	struct input in = {data, size};
	const struct vhost_user_ops ops = {on_ring_started, on_ring_stopped, &w};
	int pair[2];

	if (w.memfd < 0) {
		log_setup(LOG_ERROR, false);
		signal(SIGPIPE, SIG_IGN);
		w.loop = ev_loop_new(EVBACKEND_POLL);
		w.memfd = memfd_create("guest", MFD_CLOEXEC);
		if (w.memfd < 0 || ftruncate(w.memfd, MEM_SIZE) < 0)
			return 0;
		w.mem = mmap(NULL, MEM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, w.memfd, 0);
	}
	memset(w.mem, 0, MEM_SIZE);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) < 0)
		return 0;
	w.vmm_end = pair[0];
	w.vmm = vhost_user_create(pair[1], 3, &ops);
	w.mux = vsock_mux_create(w.loop, 3, "/nonexistent/v");
	vsock_mux_set_vmm(w.mux, w.vmm);
	for (int i = 0; i < CLIENTS; i++)
		w.clients[i] = -1;

	for (int steps = 0; in.left > 0 && steps < 400; steps++)
		if (step(&w, &in) < 0)
			break;

	for (int i = 0; i < CLIENTS; i++)
		if (w.clients[i] >= 0)
			close(w.clients[i]);
	vhost_user_destroy(w.vmm);
	vsock_mux_destroy(w.mux);
	close(pair[0]);
	close(pair[1]);
	return 0;
}
