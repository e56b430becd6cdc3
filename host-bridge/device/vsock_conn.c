#include "host-bridge/device/vsock_conn.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Host ports start above those that a guest's services would listen on. */
#define HOST_PORT_FIRST 0x40000000u

struct vsock_conn *vsock_conn_create(struct vsock_conn_table *t, struct ev_loop *loop, int fd,
                                     void (*on_io)(struct ev_loop *, ev_io *, int), void *data)
{
	struct vsock_conn *c = t->n < VSOCK_CONNS_MAX ? calloc(1, sizeof(*c)) : NULL;
	if (c == NULL) {
		close(fd);
		return NULL;
	}
	ev_io_init(&c->io, on_io, fd, 0);
	c->io.data = data;
	c->loop = loop;
	LIST_INSERT_HEAD(&t->all, c, all_entry);
	t->n++;
	return c;
}

void vsock_conn_destroy(struct vsock_conn_table *t, struct vsock_conn *c)
{
	vsock_conn_unbind(c);
	LIST_REMOVE(c, all_entry);
	t->n--;
	ev_io_stop(c->loop, &c->io);
	close(c->io.fd);
	free(c->buf);
	free(c);
}

static struct vsock_conn_list *bucket(struct vsock_conn_table *t, uint32_t host_port,
                                      uint32_t guest_port)
{
	return &t->buckets[(host_port ^ guest_port * 31u) % VSOCK_CONN_BUCKETS];
}

struct vsock_conn *vsock_conn_find(struct vsock_conn_table *t, uint32_t host_port,
                                   uint32_t guest_port)
{
	struct vsock_conn *c;
	LIST_FOREACH (c, bucket(t, host_port, guest_port), hash_entry)
		if (c->host_port == host_port && c->guest_port == guest_port)
			return c;
	return NULL;
}

void vsock_conn_bind(struct vsock_conn_table *t, struct vsock_conn *c, uint32_t host_port,
                     uint32_t guest_port)
{
	while (host_port == 0 || vsock_conn_find(t, host_port, guest_port) != NULL) {
		if (t->next_host_port < HOST_PORT_FIRST || t->next_host_port == UINT32_MAX)
			t->next_host_port = HOST_PORT_FIRST;
		host_port = t->next_host_port++;
	}
	c->host_port = host_port;
	c->guest_port = guest_port;
	LIST_INSERT_HEAD(bucket(t, host_port, guest_port), c, hash_entry);
}

void vsock_conn_unbind(struct vsock_conn *c)
{
	if (c->host_port != 0)
		LIST_REMOVE(c, hash_entry);
	c->host_port = 0;
}

uint32_t vsock_conn_credit(const struct vsock_conn *c)
{
	uint32_t in_flight = c->tx_cnt - c->peer_fwd_cnt;
	return in_flight >= c->peer_buf_alloc ? 0 : c->peer_buf_alloc - in_flight;
}

bool vsock_conn_credit_due(const struct vsock_conn *c)
{
	return c->fwd_cnt - c->told_fwd_cnt >= VSOCK_BUF_ALLOC / 2;
}

int vsock_conn_keep(struct vsock_conn *c, const struct iovec *iov, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		const uint8_t *from = iov[i].iov_base;
		size_t len = iov[i].iov_len;
		if (len == 0)
			continue;
		if (len > VSOCK_BUF_ALLOC - c->buf_len)
			return -1;
		if (c->buf == NULL && (c->buf = malloc(VSOCK_BUF_ALLOC)) == NULL)
			return -1;
		uint32_t at = (c->buf_head + c->buf_len) % VSOCK_BUF_ALLOC;
		size_t first = VSOCK_BUF_ALLOC - at < len ? VSOCK_BUF_ALLOC - at : len;
		memcpy(c->buf + at, from, first);
		memcpy(c->buf, from + first, len - first);
		c->buf_len += (uint32_t)len;
	}
	return 0;
}

unsigned vsock_conn_kept(const struct vsock_conn *c, struct iovec iov[2])
{
	uint32_t first = VSOCK_BUF_ALLOC - c->buf_head;
	if (c->buf_len == 0)
		return 0;
	if (c->buf_len <= first) {
		iov[0] = (struct iovec){c->buf + c->buf_head, c->buf_len};
		return 1;
	}
	iov[0] = (struct iovec){c->buf + c->buf_head, first};
	iov[1] = (struct iovec){c->buf, c->buf_len - first};
	return 2;
}

void vsock_conn_taken(struct vsock_conn *c, uint32_t n)
{
	c->fwd_cnt += n;
	c->buf_head = (c->buf_head + n) % VSOCK_BUF_ALLOC;
	c->buf_len -= n;
	if (c->buf_len > 0)
		return;
	free(c->buf);
	c->buf = NULL;
	c->buf_head = 0;
}

static int wanted_events(const struct vsock_conn *c)
{
	int events = c->buf_len > 0 ? EV_WRITE : 0;

	switch (c->state) {
	case CONN_LINE:
		return EV_READ;
	case CONN_REQUESTED:
		return c->early ? 0 : EV_READ;
	case CONN_OPEN:
		if (!c->waiting && !c->guest_deaf && vsock_conn_credit(c) > 0)
			events |= EV_READ;
		return events;
	case CONN_DRAINING:
		break;
	}
	return events;
}

void vsock_conn_interest(struct vsock_conn *c)
{
	int events = wanted_events(c);

	if (ev_is_active(&c->io) && (c->io.events & (EV_READ | EV_WRITE)) == events)
		return;
	ev_io_stop(c->loop, &c->io);
	ev_io_set(&c->io, c->io.fd, events);
	if (events != 0)
		ev_io_start(c->loop, &c->io);
}
