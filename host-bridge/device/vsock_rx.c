#include "host-bridge/device/vsock_rx.h"

#include <errno.h>
#include <linux/virtio_vsock.h>
#include <linux/vm_sockets.h>
#include <unistd.h>

void vsock_rx_init(struct vsock_rx *rx, uint64_t guest_cid)
{
	rx->vmm = NULL;
	rx->guest_cid = guest_cid;
	rx->reset_head = rx->reset_n = 0;
	TAILQ_INIT(&rx->waiting);
}

/* The next receive buffer, or NULL and a kick is asked for. */
static struct virtqueue *take(struct vsock_rx *rx, struct virtqueue_chain *chain)
{
	struct virtqueue *q = rx->vmm != NULL ? vhost_user_ring(rx->vmm, RING_RX) : NULL;
	if (q == NULL)
		return NULL;
	int rc = virtqueue_pop(q, vhost_user_mem(rx->vmm), chain);
	if (rc == 0 && virtqueue_want_kick(q))
		rc = virtqueue_pop(q, vhost_user_mem(rx->vmm), chain);
	if (rc == 0)
		return NULL;
	/* A buffer that holds a header and nothing else could never carry a byte. */
	if (rc < 0 || chain->n_out > 0 || chain->in_bytes <= VSOCK_PKT_HEAD) {
		vhost_user_break(rx->vmm, RING_RX);
		return NULL;
	}
	return q;
}

static bool send_head(struct vsock_rx *rx, struct vsock_pkt *p)
{
	struct virtqueue_chain chain;
	struct virtqueue *q = take(rx, &chain);
	if (q == NULL)
		return false;
	p->src_cid = VMADDR_CID_HOST;
	p->dst_cid = rx->guest_cid;
	p->type = VIRTIO_VSOCK_TYPE_STREAM;
	vsock_pkt_encode(p, chain.iov, chain.n_in);
	virtqueue_push(q, chain.head, VSOCK_PKT_HEAD);
	return true;
}

/* ---- resets ---- */

static void send_resets(struct vsock_rx *rx)
{
	while (rx->reset_n > 0) {
		const struct vsock_rx_reset *r = &rx->resets[rx->reset_head];
		struct vsock_pkt p = {.src_port = r->host_port,
		                      .dst_port = r->guest_port,
		                      .op = VIRTIO_VSOCK_OP_RST};
		if (!send_head(rx, &p))
			return;
		rx->reset_head = (rx->reset_head + 1) % VSOCK_RESETS_MAX;
		rx->reset_n--;
	}
}

void vsock_rx_reset(struct vsock_rx *rx, uint32_t host_port, uint32_t guest_port)
{
	/* Never full: packets wait from half of it on, and each connection needs one. */
	if (rx->reset_n < VSOCK_RESETS_MAX)
		rx->resets[(rx->reset_head + rx->reset_n++) % VSOCK_RESETS_MAX] =
		    (struct vsock_rx_reset){host_port, guest_port};
	send_resets(rx);
}

bool vsock_rx_busy(const struct vsock_rx *rx)
{
	return rx->reset_n >= VSOCK_RESETS_BUSY;
}

/* ---- connections ---- */

static void wait_for_buffers(struct vsock_rx *rx, struct vsock_conn *c)
{
	if (c->waiting)
		return;
	c->waiting = true;
	TAILQ_INSERT_TAIL(&rx->waiting, c, wait_entry);
}

void vsock_rx_forget(struct vsock_rx *rx, struct vsock_conn *c)
{
	if (!c->waiting)
		return;
	c->waiting = false;
	TAILQ_REMOVE(&rx->waiting, c, wait_entry);
}

static struct vsock_pkt packet_of(struct vsock_conn *c, uint16_t op, uint32_t len)
{
	c->told_fwd_cnt = c->fwd_cnt;
	return (struct vsock_pkt){.src_port = c->host_port,
	                          .dst_port = c->guest_port,
	                          .op = op,
	                          .len = len,
	                          .buf_alloc = VSOCK_BUF_ALLOC,
	                          .fwd_cnt = c->fwd_cnt};
}

/* Send what the connection owes; it is put to wait when the buffers do not suffice. */
static bool pay(struct vsock_rx *rx, struct vsock_conn *c)
{
	static const struct {
		unsigned bit;
		uint16_t op;
	} order[] = {{OWE_REQUEST, VIRTIO_VSOCK_OP_REQUEST},
	             {OWE_RESPONSE, VIRTIO_VSOCK_OP_RESPONSE},
	             {OWE_CREDIT, VIRTIO_VSOCK_OP_CREDIT_UPDATE}};

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		if ((c->owed & order[i].bit) == 0)
			continue;
		struct vsock_pkt p = packet_of(c, order[i].op, 0);
		if (!send_head(rx, &p)) {
			wait_for_buffers(rx, c);
			return false;
		}
		c->owed &= ~order[i].bit;
		c->announced = true;
	}
	return true;
}

void vsock_rx_owe(struct vsock_rx *rx, struct vsock_conn *c, unsigned what)
{
	c->owed |= what;
	if (!c->waiting)
		pay(rx, c);
	vsock_conn_interest(c);
}

void vsock_rx_kick(struct vsock_rx *rx)
{
	struct virtqueue *q = vhost_user_ring(rx->vmm, RING_RX);
	if (q == NULL)
		return;
	virtqueue_refuse_kick(q);
	send_resets(rx);
	while (rx->reset_n == 0 && !TAILQ_EMPTY(&rx->waiting)) {
		struct vsock_conn *c = TAILQ_FIRST(&rx->waiting);
		vsock_rx_forget(rx, c);
		bool paid = pay(rx, c);
		vsock_conn_interest(c);
		if (!paid)
			return;
	}
}

/* ---- bytes ---- */

struct batch {
	struct virtqueue_chain chains[VSOCK_RX_BATCH];
	struct iovec iov[VSOCK_RX_BATCH * VIRTQUEUE_SEGMENTS_MAX];
	unsigned n, n_iov;
	size_t room;
};

/* Take at most `max` buffers, with room for no more bytes than the guest has credit for. */
static void batch_fill(struct batch *b, struct vsock_rx *rx, size_t credit, unsigned max)
{
	b->n = b->n_iov = 0;
	b->room = 0;
	while (b->n < max && b->room < credit) {
		struct virtqueue_chain *chain = &b->chains[b->n];
		size_t bytes, limit = credit - b->room;
		if (take(rx, chain) == NULL)
			return;
		b->n_iov += vsock_pkt_payload(chain->iov, chain->n_in,
		                              limit < VSOCK_PKT_MAX ? limit : VSOCK_PKT_MAX,
		                              &b->iov[b->n_iov], &bytes);
		b->room += bytes;
		b->n++;
	}
}

/* The first `got` bytes of the batch are there: head and hand over the buffers that hold
 * them, give the others back. */
static void batch_send(struct batch *b, struct vsock_rx *rx, struct vsock_conn *c, size_t got)
{
	struct virtqueue *q = vhost_user_ring(rx->vmm, RING_RX);
	unsigned used = 0;

	for (; got > 0; used++) {
		struct virtqueue_chain *chain = &b->chains[used];
		size_t len = chain->in_bytes - VSOCK_PKT_HEAD;
		if (len > VSOCK_PKT_MAX)
			len = VSOCK_PKT_MAX;
		if (len > got)
			len = got;
		struct vsock_pkt p = packet_of(c, VIRTIO_VSOCK_OP_RW, (uint32_t)len);
		p.src_cid = VMADDR_CID_HOST;
		p.dst_cid = rx->guest_cid;
		p.type = VIRTIO_VSOCK_TYPE_STREAM;
		vsock_pkt_encode(&p, chain->iov, chain->n_in);
		virtqueue_push(q, chain->head, VSOCK_PKT_HEAD + (uint32_t)len);
		c->tx_cnt += (uint32_t)len;
		got -= len;
	}
	virtqueue_unpop(q, (uint16_t)(b->n - used));
}

bool vsock_rx_pump(struct vsock_rx *rx, struct vsock_conn *c)
{
	struct batch b;
	size_t moved = 0;

	/* One buffer first: most messages fit it, and an unused batch costs time. */
	for (unsigned max = 1; moved < VSOCK_RX_BUDGET; max = VSOCK_RX_BATCH) {
		uint32_t credit = vsock_conn_credit(c);
		if (credit == 0)
			break;
		batch_fill(&b, rx, credit, max);
		if (vhost_user_ring(rx->vmm, RING_RX) == NULL || b.n == 0) {
			wait_for_buffers(rx, c);
			break;
		}
		ssize_t got = readv(c->io.fd, b.iov, (int)b.n_iov);
		batch_send(&b, rx, c, got > 0 ? (size_t)got : 0);
		if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
			return false;
		if (got < 0 || (size_t)got < b.room)
			break;
		moved += (size_t)got;
	}
	vsock_conn_interest(c);
	return true;
}
