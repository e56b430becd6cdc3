/*
 * The VMM's and the guest driver's side of the vsock device, for its tests: vhost-user
 * requests over a socket, two rings in a memfd, virtio-vsock packets. Included by one test
 * program; everything that should not fail is asserted here. Waits are bounded by WAIT_MS.
 */
#ifndef SANDGATE_FAKE_VMM_H
#define SANDGATE_FAKE_VMM_H

#include <check.h>
#include <errno.h>
#include <linux/virtio_ring.h>
#include <linux/virtio_vsock.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "host-bridge/device/vsock_pkt.h"

#define WAIT_MS 5000
#define GUEST_CID 3
#define MEM_SIZE (2u << 20)
#define MEM_UVA 0x7f0000000000ull /* where the memory lies in the made-up VMM */
#define MEM_GPA 0x100000ull       /* and in the made-up guest */
#define RING_SIZE 128             /* descriptors */
#define RING_BYTES 0x4000         /* room of one ring in the memory */
#define RX_BUF_SIZE 4096          /* as Linux posts them */
#define RX_BUFS (RING_SIZE / 2)
#define RX_AT 0x100000 /* receive buffers in the memory */
#define TX_AT 0x40000  /* the one packet in flight to the device */

enum { VMM_RX, VMM_TX };

struct fake_ring {
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
	uint16_t seen; /* of the used ring */
	int kick, call;
};

struct fake_vmm {
	int sock;
	int memfd;
	uint8_t *mem;
	struct fake_ring rings[2];
};

/* ---- requests ---- */

static void vmm_send(struct fake_vmm *v, uint32_t request, bool ack, const void *payload,
                     uint32_t size, const int *fds, unsigned n_fds)
{
	struct {
		uint32_t request, flags, size;
		uint8_t payload[512];
	} m = {request, 1u | (ack ? 8u : 0), size, {0}};
	char control[CMSG_SPACE(sizeof(int) * 8)] = {0};
	struct iovec iov = {&m, 12 + size};
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

	if (size > 0)
		memcpy(m.payload, payload, size);
	if (n_fds > 0) {
		mh.msg_control = control;
		mh.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
	}
	ck_assert_int_eq(sendmsg(v->sock, &mh, MSG_NOSIGNAL), 12 + (ssize_t)size);
}

static void vmm_send_u64(struct fake_vmm *v, uint32_t request, uint64_t value)
{
	vmm_send(v, request, false, &value, sizeof(value), NULL, 0);
}

static void vmm_send_ring(struct fake_vmm *v, uint32_t request, uint32_t index, uint32_t num)
{
	const uint32_t state[2] = {index, num};
	vmm_send(v, request, false, state, sizeof(state), NULL, 0);
}

static void vmm_send_fd(struct fake_vmm *v, uint32_t request, uint64_t index, int fd)
{
	vmm_send(v, request, false, &index, sizeof(index), &fd, 1);
}

static bool readable(int fd)
{
	struct pollfd p = {fd, POLLIN, 0};
	return poll(&p, 1, WAIT_MS) == 1;
}

/* The reply's payload; its size, or -1 when the device closed the connection. */
static int vmm_reply(struct fake_vmm *v, void *payload, uint32_t room)
{
	uint32_t head[3];

	ck_assert(readable(v->sock));
	ssize_t n = recv(v->sock, head, sizeof(head), MSG_WAITALL);
	if (n <= 0)
		return -1;
	ck_assert_int_eq(n, sizeof(head));
	ck_assert_uint_eq(head[1], 5); /* version 1, reply */
	ck_assert_uint_le(head[2], room);
	ck_assert_int_eq(recv(v->sock, payload, head[2], MSG_WAITALL), head[2]);
	return (int)head[2];
}

static uint64_t vmm_ask(struct fake_vmm *v, uint32_t request)
{
	uint64_t value = 0;
	vmm_send(v, request, false, NULL, 0, NULL, 0);
	ck_assert_int_eq(vmm_reply(v, &value, sizeof(value)), sizeof(value));
	return value;
}

struct fake_region {
	uint64_t gpa, size, uva, offset;
};

static void vmm_send_memory(struct fake_vmm *v, const struct fake_region *r, uint32_t n)
{
	struct {
		uint32_t n, padding;
		struct fake_region r[8];
	} table = {n, 0, {{0}}};
	int fds[8];

	for (uint32_t i = 0; i < n; i++) {
		table.r[i] = r[i];
		fds[i] = v->memfd;
	}
	vmm_send(v, 5, false, &table, 8 + n * (uint32_t)sizeof(*r), fds, n);
}

static void vmm_share_memory(struct fake_vmm *v)
{
	const struct fake_region whole = {MEM_GPA, MEM_SIZE, MEM_UVA, 0};
	vmm_send_memory(v, &whole, 1);
}

static void vmm_start_ring(struct fake_vmm *v, uint32_t index, uint32_t base)
{
	struct fake_ring *r = &v->rings[index];
	const uint64_t at = MEM_UVA + index * RING_BYTES;
	const struct {
		uint32_t index, flags;
		uint64_t desc, used, avail, log;
	} addr = {index, 0, at, at + 0x2000, at + 0x1000, 0};

	vmm_send_ring(v, 8, index, RING_SIZE);
	vmm_send_ring(v, 10, index, base);
	vmm_send(v, 9, false, &addr, sizeof(addr), NULL, 0);
	vmm_send_fd(v, 13, index, r->call);
	vmm_send_fd(v, 12, index, r->kick);
	vmm_send_ring(v, 18, index, 1);
}

/* ---- the guest's driver ---- */

static void guest_make_rings(struct fake_vmm *v)
{
	memset(v->mem, 0, 2 * RING_BYTES);
	for (int i = 0; i < 2; i++) {
		uint8_t *at = v->mem + i * RING_BYTES;
		v->rings[i].desc = (struct vring_desc *)at;
		v->rings[i].avail = (struct vring_avail *)(at + 0x1000);
		v->rings[i].used = (struct vring_used *)(at + 0x2000);
		v->rings[i].seen = 0;
	}
}

static void guest_offer(struct fake_ring *r, uint16_t head)
{
	const uint64_t one = 1;
	r->avail->ring[r->avail->idx % RING_SIZE] = head;
	__atomic_store_n(&r->avail->idx, (uint16_t)(r->avail->idx + 1), __ATOMIC_RELEASE);
	ck_assert_int_eq(write(r->kick, &one, sizeof(one)), sizeof(one));
}

/* Offer `n` receive buffers, each a header and a payload segment. */
static void guest_post(struct fake_vmm *v, unsigned n)
{
	struct fake_ring *r = &v->rings[VMM_RX];
	for (; n > 0; n--) {
		uint16_t head = (uint16_t)(r->avail->idx % RX_BUFS * 2);
		uint64_t at = MEM_GPA + RX_AT + (uint64_t)head / 2 * RX_BUF_SIZE * 2;
		r->desc[head] = (struct vring_desc){at, VSOCK_PKT_HEAD,
		                                    VRING_DESC_F_NEXT | VRING_DESC_F_WRITE,
		                                    (uint16_t)(head + 1)};
		r->desc[head + 1] =
		    (struct vring_desc){at + 64, RX_BUF_SIZE, VRING_DESC_F_WRITE, 0};
		guest_offer(r, head);
	}
}

static bool guest_used(struct fake_ring *r, int wait_ms)
{
	struct pollfd p = {r->call, POLLIN, 0};
	uint64_t count;

	while (__atomic_load_n(&r->used->idx, __ATOMIC_ACQUIRE) == r->seen) {
		if (poll(&p, 1, wait_ms) != 1)
			return false;
		ck_assert_int_eq(read(r->call, &count, sizeof(count)), sizeof(count));
	}
	return true;
}

/* The next packet from the device and its payload; false after `wait_ms` without one. */
static bool guest_receive_within(struct fake_vmm *v, struct vsock_pkt *p, uint8_t **data,
                                 int wait_ms)
{
	struct fake_ring *r = &v->rings[VMM_RX];
	if (!guest_used(r, wait_ms))
		return false;
	struct vring_used_elem e = r->used->ring[r->seen++ % RING_SIZE];
	uint8_t *at = v->mem + RX_AT + e.id / 2 * RX_BUF_SIZE * 2;
	struct iovec iov = {at, VSOCK_PKT_HEAD};
	ck_assert_int_eq(vsock_pkt_decode(p, &iov, 1), 0);
	ck_assert_uint_eq(e.len, VSOCK_PKT_HEAD + p->len);
	if (data != NULL)
		*data = at + 64;
	return true;
}

static struct vsock_pkt guest_receive(struct fake_vmm *v, uint8_t **data)
{
	struct vsock_pkt p;
	ck_assert(guest_receive_within(v, &p, data, WAIT_MS));
	return p;
}

/* Send one packet and wait until the device has taken it. */
static void guest_send(struct fake_vmm *v, const struct vsock_pkt *p, const void *data)
{
	struct fake_ring *r = &v->rings[VMM_TX];
	struct iovec iov = {v->mem + TX_AT, VSOCK_PKT_HEAD};

	vsock_pkt_encode(p, &iov, 1);
	if (data != NULL)
		memcpy(v->mem + TX_AT + 64, data, p->len);
	r->desc[0] = (struct vring_desc){MEM_GPA + TX_AT, VSOCK_PKT_HEAD,
	                                 p->len > 0 ? VRING_DESC_F_NEXT : 0, 1};
	r->desc[1] = (struct vring_desc){MEM_GPA + TX_AT + 64, p->len, 0, 0};
	guest_offer(r, 0);
	ck_assert(guest_used(r, WAIT_MS));
	r->seen++;
}

/* Answer `to` (a packet from the device) with `op`. */
static void guest_answer(struct fake_vmm *v, const struct vsock_pkt *to, uint16_t op,
                         uint32_t flags, const void *data, uint32_t len)
{
	const struct vsock_pkt p = {.src_cid = GUEST_CID,
	                            .dst_cid = 2,
	                            .src_port = to->dst_port,
	                            .dst_port = to->src_port,
	                            .len = len,
	                            .type = VIRTIO_VSOCK_TYPE_STREAM,
	                            .op = op,
	                            .flags = flags,
	                            .buf_alloc = 65536};
	guest_send(v, &p, data);
}

#endif
