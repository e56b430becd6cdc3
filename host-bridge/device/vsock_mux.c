#include "host-bridge/device/vsock_mux.h"

#include <errno.h>
#include <linux/virtio_vsock.h>
#include <linux/vm_sockets.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host-bridge/device/hybrid.h"

struct vsock_mux {
	struct ev_loop *loop;
	const char *uds;
	struct vsock_conn_table table;
	struct vsock_rx rx;
};

struct vsock_mux *vsock_mux_create(struct ev_loop *loop, uint64_t guest_cid, const char *uds)
{
	struct vsock_mux *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return NULL;
	m->loop = loop;
	m->uds = uds;
	vsock_rx_init(&m->rx, guest_cid);
	return m;
}

static void close_conn(struct vsock_mux *m, struct vsock_conn *c)
{
	vsock_rx_forget(&m->rx, c);
	vsock_conn_destroy(&m->table, c);
}

void vsock_mux_destroy(struct vsock_mux *m)
{
	if (m == NULL)
		return;
	while (!LIST_EMPTY(&m->table.all))
		close_conn(m, LIST_FIRST(&m->table.all));
	free(m);
}

void vsock_mux_set_vmm(struct vsock_mux *m, struct vhost_user *vmm)
{
	m->rx.vmm = vmm;
}

unsigned vsock_mux_connections(const struct vsock_mux *m)
{
	return m->table.n;
}

/* ---- endings ---- */

/* The host client is gone: the guest hears of it at once. */
static void host_gone(struct vsock_mux *m, struct vsock_conn *c)
{
	uint32_t host_port = c->announced ? c->host_port : 0;
	uint32_t guest_port = c->guest_port;

	close_conn(m, c);
	if (host_port != 0)
		vsock_rx_reset(&m->rx, host_port, guest_port);
}

/* The guest's side is over; the client still gets the bytes that are kept. */
static void guest_gone(struct vsock_mux *m, struct vsock_conn *c)
{
	vsock_rx_forget(&m->rx, c);
	vsock_conn_unbind(c);
	if (c->buf_len == 0 || c->host_deaf) {
		close_conn(m, c);
		return;
	}
	c->state = CONN_DRAINING;
	vsock_conn_interest(c);
}

/* Our limit or the guest's fault: both sides are cut. */
static void abort_conn(struct vsock_mux *m, struct vsock_conn *c)
{
	c->announced = true;
	host_gone(m, c);
}

void vsock_mux_guest_reset(struct vsock_mux *m)
{
	struct vsock_conn *c = LIST_FIRST(&m->table.all);

	while (c != NULL) {
		struct vsock_conn *next = LIST_NEXT(c, all_entry);
		if (c->announced && c->state != CONN_DRAINING)
			guest_gone(m, c);
		c = next;
	}
	m->rx.reset_n = 0;
}

/* ---- the host's sockets ---- */

static void read_line(struct vsock_mux *m, struct vsock_conn *c)
{
	uint32_t port;
	int rc = hybrid_read_line(c->io.fd, c->line, &c->line_len, &port);

	if (rc == 0)
		return;
	if (rc < 0) {
		close_conn(m, c);
		return;
	}
	c->state = CONN_REQUESTED;
	vsock_conn_bind(&m->table, c, 0, port);
	vsock_rx_owe(&m->rx, c, OWE_REQUEST);
}

/* Before OK a client says nothing; what is looked for is its going. */
static void watch_requested(struct vsock_mux *m, struct vsock_conn *c)
{
	char byte;
	ssize_t n = recv(c->io.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
		host_gone(m, c);
		return;
	}
	c->early = n > 0;
	vsock_conn_interest(c);
}

static void tell_credit(struct vsock_mux *m, struct vsock_conn *c)
{
	if (c->state == CONN_OPEN && vsock_conn_credit_due(c))
		vsock_rx_owe(&m->rx, c, OWE_CREDIT);
}

static void write_kept(struct vsock_mux *m, struct vsock_conn *c)
{
	struct iovec iov[2];
	unsigned n_iov = vsock_conn_kept(c, iov);
	ssize_t n = writev(c->io.fd, iov, (int)n_iov);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	/* A client that reads no more may have written before: its bytes are still moved. */
	if (n < 0)
		c->host_deaf = true;
	vsock_conn_taken(c, n < 0 ? c->buf_len : (uint32_t)n);
	if (c->buf_len == 0 && c->state == CONN_DRAINING) {
		close_conn(m, c);
		return;
	}
	if (c->buf_len == 0 && c->guest_done)
		shutdown(c->io.fd, SHUT_WR);
	tell_credit(m, c);
	vsock_conn_interest(c);
}

static void on_conn_io(struct ev_loop *loop, ev_io *w, int revents)
{
	struct vsock_conn *c = (struct vsock_conn *)w; /* io is its first member */
	struct vsock_mux *m = w->data;

	(void)loop;
	if (c->state == CONN_LINE)
		read_line(m, c);
	else if (c->state == CONN_REQUESTED)
		watch_requested(m, c);
	else if ((revents & EV_READ) != 0 && !vsock_rx_pump(&m->rx, c))
		host_gone(m, c);
	else if ((revents & EV_WRITE) != 0)
		write_kept(m, c);
}

void vsock_mux_accept(struct vsock_mux *m, int fd)
{
	struct vsock_conn *c = vsock_conn_create(&m->table, m->loop, fd, on_conn_io, m);
	if (c != NULL)
		vsock_conn_interest(c);
}

/* ---- the guest's packets ---- */

static void on_request(struct vsock_mux *m, const struct vsock_pkt *p)
{
	int fd = hybrid_dial(m->uds, p->dst_port);
	struct vsock_conn *c =
	    fd < 0 ? NULL : vsock_conn_create(&m->table, m->loop, fd, on_conn_io, m);

	if (c == NULL) {
		vsock_rx_reset(&m->rx, p->dst_port, p->src_port);
		return;
	}
	vsock_conn_bind(&m->table, c, p->dst_port, p->src_port);
	c->state = CONN_OPEN;
	c->announced = true;
	c->peer_buf_alloc = p->buf_alloc;
	c->peer_fwd_cnt = p->fwd_cnt;
	vsock_rx_owe(&m->rx, c, OWE_RESPONSE);
}

static void on_response(struct vsock_mux *m, struct vsock_conn *c)
{
	if (c->state != CONN_REQUESTED) {
		abort_conn(m, c);
		return;
	}
	c->state = CONN_OPEN;
	if (hybrid_say_ok(c->io.fd, c->host_port) < 0) {
		host_gone(m, c);
		return;
	}
	vsock_conn_interest(c);
}

static void on_data(struct vsock_mux *m, struct vsock_conn *c, const struct vsock_pkt *p,
                    const struct virtqueue_chain *chain)
{
	struct iovec iov[VIRTQUEUE_SEGMENTS_MAX];
	size_t bytes, done = 0;
	unsigned n = vsock_pkt_payload(chain->iov, chain->n_out, p->len, iov, &bytes);

	if (c->state != CONN_OPEN || bytes < p->len || c->guest_done ||
	    bytes > VSOCK_BUF_ALLOC - c->buf_len) {
		abort_conn(m, c);
		return;
	}
	if (c->buf_len == 0 && !c->host_deaf) {
		ssize_t sent = writev(c->io.fd, iov, (int)n);
		if (sent < 0 && errno != EAGAIN && errno != EINTR)
			c->host_deaf = true;
		done = sent > 0 ? (size_t)sent : 0;
	}
	if (c->host_deaf)
		done = bytes;
	c->fwd_cnt += (uint32_t)done;
	if (done < bytes) {
		unsigned first = 0;
		for (; done >= iov[first].iov_len; first++)
			done -= iov[first].iov_len;
		iov[first].iov_base = (uint8_t *)iov[first].iov_base + done;
		iov[first].iov_len -= done;
		if (vsock_conn_keep(c, iov + first, n - first) < 0) {
			abort_conn(m, c);
			return;
		}
	}
	tell_credit(m, c);
	vsock_conn_interest(c);
}

static void on_shutdown(struct vsock_mux *m, struct vsock_conn *c, uint32_t flags)
{
	if ((flags & VIRTIO_VSOCK_SHUTDOWN_RCV) != 0)
		c->guest_deaf = true;
	if ((flags & VIRTIO_VSOCK_SHUTDOWN_SEND) != 0)
		c->guest_done = true;
	if (c->guest_deaf && c->guest_done) {
		vsock_rx_reset(&m->rx, c->host_port, c->guest_port);
		guest_gone(m, c);
		return;
	}
	if (c->guest_done && c->buf_len == 0)
		shutdown(c->io.fd, SHUT_WR);
	vsock_conn_interest(c);
}

static void obey_packet(struct vsock_mux *m, const struct virtqueue_chain *chain)
{
	struct vsock_pkt p;

	if (vsock_pkt_decode(&p, chain->iov, chain->n_out) < 0 ||
	    p.src_cid != m->rx.guest_cid || p.op == VIRTIO_VSOCK_OP_INVALID)
		return;
	struct vsock_conn *c = p.dst_cid == VMADDR_CID_HOST && p.dst_port != 0
	                           ? vsock_conn_find(&m->table, p.dst_port, p.src_port)
	                           : NULL;
	bool stream = p.type == VIRTIO_VSOCK_TYPE_STREAM && p.len <= VSOCK_PKT_MAX &&
	              p.dst_cid == VMADDR_CID_HOST && p.dst_port != 0;

	if (p.op == VIRTIO_VSOCK_OP_RST) {
		if (c != NULL)
			guest_gone(m, c);
		return;
	}
	if (c == NULL && stream && p.op == VIRTIO_VSOCK_OP_REQUEST) {
		on_request(m, &p);
		return;
	}
	if (c == NULL) {
		vsock_rx_reset(&m->rx, p.dst_port, p.src_port);
		return;
	}
	if (!stream) {
		abort_conn(m, c);
		return;
	}

	c->peer_buf_alloc = p.buf_alloc;
	c->peer_fwd_cnt = p.fwd_cnt;
	switch (p.op) {
	case VIRTIO_VSOCK_OP_RESPONSE:
		on_response(m, c);
		break;
	case VIRTIO_VSOCK_OP_RW:
		on_data(m, c, &p, chain);
		break;
	case VIRTIO_VSOCK_OP_SHUTDOWN:
		on_shutdown(m, c, p.flags);
		break;
	case VIRTIO_VSOCK_OP_CREDIT_UPDATE:
		vsock_conn_interest(c);
		break;
	case VIRTIO_VSOCK_OP_CREDIT_REQUEST:
		vsock_rx_owe(&m->rx, c, OWE_CREDIT);
		break;
	default:
		abort_conn(m, c);
		break;
	}
}

enum vsock_mux_tx vsock_mux_tx_kick(struct vsock_mux *m)
{
	struct virtqueue_chain chain;

	for (int i = 0; i < VSOCK_TX_BUDGET; i++) {
		struct virtqueue *q = vhost_user_ring(m->rx.vmm, RING_TX);
		if (q == NULL)
			return TX_EMPTY;
		if (vsock_rx_busy(&m->rx))
			return TX_BUSY;
		int rc = virtqueue_pop(q, vhost_user_mem(m->rx.vmm), &chain);
		if (rc == 0 && virtqueue_want_kick(q))
			continue;
		if (rc == 0)
			return TX_EMPTY;
		if (rc < 0) {
			vhost_user_break(m->rx.vmm, RING_TX);
			return TX_EMPTY;
		}
		obey_packet(m, &chain);
		virtqueue_push(q, chain.head, 0);
	}
	return TX_MORE;
}

bool vsock_mux_rx_kick(struct vsock_mux *m)
{
	vsock_rx_kick(&m->rx);
	return !vsock_rx_busy(&m->rx);
}
