#include "host-bridge/device/vhost_user.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_config.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/log.h"

/* Flags and feature bits of the vhost-user specification (QEMU's docs/interop). */
#define RING_NO_FD 0x100u /* in VU_SET_VRING_KICK, _CALL and _ERR: none is attached */
#define RING_INDEX 0xffu

#define F_PROTOCOL_FEATURES (1ull << 30)
#define FEATURES \
	(F_PROTOCOL_FEATURES | 1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_RING_F_EVENT_IDX)

/* UML does not go on unless the back end's request channel is offered; it is never used. */
#define PF_REPLY_ACK (1ull << 3)
#define PF_BACKEND_REQ (1ull << 5)
#define PF_CONFIG (1ull << 9)
#define PROTOCOL_FEATURES (PF_REPLY_ACK | PF_BACKEND_REQ | PF_CONFIG)

struct ring {
	struct virtqueue q;
	struct vhost_user_ring_addresses at;
	uint16_t num, base;
	bool placed, enabled, running;
	int kick_fd, call_fd;
};

struct vhost_user {
	struct vhost_user_wire wire;
	int request_fd; /* the back end's channel: kept open, since VMMs mind its end */
	uint64_t guest_cid;
	uint64_t features, protocol_features;
	struct vhost_user_ops ops;
	struct guest_mem mem;
	struct ring rings[RINGS];
};

struct vhost_user *vhost_user_create(int fd, uint64_t guest_cid,
                                     const struct vhost_user_ops *ops)
{
	struct vhost_user *v = calloc(1, sizeof(*v));
	if (v == NULL)
		return NULL;
	v->wire.fd = fd;
	v->request_fd = -1;
	v->guest_cid = guest_cid;
	v->ops = *ops;
	for (int i = 0; i < RINGS; i++)
		v->rings[i].kick_fd = v->rings[i].call_fd = -1;
	return v;
}

static void replace_fd(int *slot, int fd)
{
	if (*slot >= 0)
		close(*slot);
	*slot = fd;
}

static void ring_stop(struct vhost_user *v, struct ring *r)
{
	if (!r->running)
		return;
	enum vhost_user_ring_id id = (enum vhost_user_ring_id)(r - v->rings);
	vhost_user_flush(v, id);
	v->ops.ring_stopped(id, v->ops.arg);
	r->running = false;
	r->base = r->q.next_avail;
}

void vhost_user_destroy(struct vhost_user *v)
{
	if (v == NULL)
		return;
	for (int i = 0; i < RINGS; i++) {
		ring_stop(v, &v->rings[i]);
		replace_fd(&v->rings[i].kick_fd, -1);
		replace_fd(&v->rings[i].call_fd, -1);
	}
	replace_fd(&v->request_fd, -1);
	vhost_user_wire_close_fds(v->wire.fds, v->wire.n_fds);
	guest_mem_clear(&v->mem);
	free(v);
}

static int ring_attach(struct vhost_user *v, struct ring *r, struct err *e)
{
	return virtqueue_attach(&r->q, &v->mem, r->num, r->at.desc, r->at.avail, r->at.used, e);
}

/* The one place that starts a ring. Without the protocol features' bit there is no enable
 * message, and a ring is enabled from the start. */
static int ring_step(struct vhost_user *v, struct ring *r, struct err *e)
{
	bool enabled = r->enabled || (v->features & F_PROTOCOL_FEATURES) == 0;
	bool wanted = enabled && r->placed && r->num != 0 && r->kick_fd >= 0;

	if (!wanted)
		ring_stop(v, r);
	if (!wanted || r->running)
		return 0;
	if (ring_attach(v, r, e) < 0)
		return -1;
	virtqueue_start(&r->q, r->base, (v->features & 1ull << VIRTIO_RING_F_EVENT_IDX) != 0);
	r->running = true;
	v->ops.ring_started((enum vhost_user_ring_id)(r - v->rings), r->base == 0, v->ops.arg);
	return 0;
}

static struct ring *ring_of(struct vhost_user *v, uint32_t index, struct err *e)
{
	if (index < RINGS)
		return &v->rings[index];
	err_set(e, ERR_PROTOCOL, "there is no ring %u", index);
	return NULL;
}

static int reply_u64(struct vhost_user *v, struct vhost_user_msg *msg, uint64_t value,
                     struct err *e)
{
	memcpy(msg->payload, &value, sizeof(value));
	return vhost_user_wire_reply(v->wire.fd, msg, sizeof(value), e);
}

/* ---- the messages ---- */

/* Stop the rings without touching them: their memory is gone. */
static void abandon_rings(struct vhost_user *v)
{
	for (int i = 0; i < RINGS; i++) {
		if (!v->rings[i].running)
			continue;
		v->rings[i].running = false;
		v->ops.ring_stopped((enum vhost_user_ring_id)i, v->ops.arg);
	}
}

static int set_mem_table(struct vhost_user *v, const struct vhost_user_memory_table *t,
                         const int *fds, unsigned n_fds, struct err *e)
{
	if (t->n > GUEST_REGIONS_MAX || t->n != n_fds)
		return err_set(e, ERR_PROTOCOL, "memory table of %u regions, %u descriptors",
		               t->n, n_fds);
	for (int i = 0; i < RINGS; i++)
		vhost_user_flush(v, (enum vhost_user_ring_id)i);
	guest_mem_clear(&v->mem);

	/* The rings that run go on where they are, in the new mapping. */
	int rc = 0;
	for (unsigned i = 0; i < t->n && rc == 0; i++)
		rc = guest_mem_add(&v->mem, t->regions[i].gpa, t->regions[i].uva,
		                   t->regions[i].size, fds[i], t->regions[i].offset, e);
	for (int i = 0; i < RINGS && rc == 0; i++)
		if (v->rings[i].running)
			rc = ring_attach(v, &v->rings[i], e);
	if (rc < 0)
		abandon_rings(v);
	return rc;
}

static int set_ring_num(struct vhost_user *v, const struct vhost_user_ring_state *s,
                        struct err *e)
{
	struct ring *r = ring_of(v, s->index, e);
	if (r == NULL)
		return -1;
	if (r->running || s->num == 0 || s->num > VIRTQUEUE_NUM_MAX)
		return err_set(e, ERR_PROTOCOL, "ring size %u", s->num);
	r->num = (uint16_t)s->num;
	return ring_step(v, r, e);
}

static int set_ring_addr(struct vhost_user *v, const struct vhost_user_ring_addresses *a,
                         struct err *e)
{
	struct ring *r = ring_of(v, a->index, e);
	if (r == NULL)
		return -1;
	ring_stop(v, r);
	r->at = *a;
	r->placed = true;
	return ring_step(v, r, e);
}

static int set_ring_base(struct vhost_user *v, const struct vhost_user_ring_state *s,
                         struct err *e)
{
	struct ring *r = ring_of(v, s->index, e);
	if (r == NULL)
		return -1;
	if (r->running || s->num > UINT16_MAX)
		return err_set(e, ERR_PROTOCOL, "ring base %u", s->num);
	r->base = (uint16_t)s->num;
	return 0;
}

/* Asking for the position is what stops a ring. */
static int get_ring_base(struct vhost_user *v, struct vhost_user_msg *msg, struct err *e)
{
	struct vhost_user_ring_state s;
	memcpy(&s, msg->payload, sizeof(s));
	struct ring *r = ring_of(v, s.index, e);
	if (r == NULL)
		return -1;
	ring_stop(v, r);
	replace_fd(&r->kick_fd, -1);
	s.num = r->base;
	memcpy(msg->payload, &s, sizeof(s));
	return vhost_user_wire_reply(v->wire.fd, msg, sizeof(s), e);
}

static int set_request_fd(struct vhost_user *v, int *fds, unsigned n_fds, struct err *e)
{
	if (n_fds != 1)
		return err_set(e, ERR_PROTOCOL, "%u descriptors for the request channel",
		               n_fds);
	replace_fd(&v->request_fd, fds[0]);
	fds[0] = -1;
	return 0;
}

static int set_ring_fd(struct vhost_user *v, enum vhost_user_request request, uint64_t value,
                       int *fds, unsigned n_fds, struct err *e)
{
	struct ring *r = ring_of(v, (uint32_t)(value & RING_INDEX), e);
	if (r == NULL)
		return -1;
	unsigned expected = (value & RING_NO_FD) != 0 ? 0 : 1;
	if (n_fds != expected)
		return err_set(e, ERR_PROTOCOL, "%u descriptors for a ring", n_fds);
	if (request == VU_SET_VRING_KICK && expected == 0)
		return err_set(e, ERR_PROTOCOL, "a ring without a kick descriptor");
	if (request == VU_SET_VRING_ERR)
		return 0;

	int fd = -1;
	if (expected == 1) {
		/* A VMM that does not empty it must not stop the device. */
		fd = fds[0];
		fds[0] = -1;
		fcntl(fd, F_SETFL, O_NONBLOCK);
	}
	if (request == VU_SET_VRING_CALL) {
		replace_fd(&r->call_fd, fd);
		return 0;
	}
	ring_stop(v, r);
	replace_fd(&r->kick_fd, fd);
	return ring_step(v, r, e);
}

static int set_ring_enable(struct vhost_user *v, const struct vhost_user_ring_state *s,
                           struct err *e)
{
	struct ring *r = ring_of(v, s->index, e);
	if (r == NULL)
		return -1;
	r->enabled = s->num != 0;
	return ring_step(v, r, e);
}

static int set_features(struct vhost_user *v, uint64_t features, struct err *e)
{
	if ((features & ~FEATURES) != 0)
		return err_set(e, ERR_PROTOCOL, "features that were not offered");
	v->features = features;
	for (int i = 0; i < RINGS; i++)
		if (ring_step(v, &v->rings[i], e) < 0)
			return -1;
	return 0;
}

static int set_protocol_features(struct vhost_user *v, uint64_t features, struct err *e)
{
	if ((features & ~PROTOCOL_FEATURES) != 0)
		return err_set(e, ERR_PROTOCOL, "protocol features that were not offered");
	v->protocol_features = features;
	return 0;
}

/* The configuration space is the guest's CID; past its end there are zeros. */
static int get_config(struct vhost_user *v, struct vhost_user_msg *msg, struct err *e)
{
	struct vhost_user_config_space c;
	uint64_t space[1 + sizeof(c.bytes) / sizeof(uint64_t)] = {htole64(v->guest_cid)};
	const size_t head = offsetof(struct vhost_user_config_space, bytes);

	memcpy(&c, msg->payload, head);
	if (c.size > sizeof(c.bytes) || c.offset > sizeof(space) - c.size)
		return err_set(e, ERR_PROTOCOL, "configuration space of %u bytes", c.size);
	memcpy(msg->payload + head, (const uint8_t *)space + c.offset, c.size);
	return vhost_user_wire_reply(v->wire.fd, msg, (uint32_t)head + c.size, e);
}

/* 1: the message was answered; 0: it was obeyed; -1: it was refused. */
static int obey(struct vhost_user *v, struct vhost_user_msg *msg, int *fds, unsigned n_fds,
                struct err *e)
{
	union {
		uint64_t u64;
		struct vhost_user_ring_state state;
		struct vhost_user_ring_addresses addresses;
		struct vhost_user_memory_table table;
	} p;
	memcpy(&p, msg->payload, sizeof(p));

	switch (msg->head.request) {
	case VU_GET_FEATURES:
		return reply_u64(v, msg, FEATURES, e) < 0 ? -1 : 1;
	case VU_GET_PROTOCOL_FEATURES:
		return reply_u64(v, msg, PROTOCOL_FEATURES, e) < 0 ? -1 : 1;
	case VU_GET_QUEUE_NUM:
		return reply_u64(v, msg, RINGS, e) < 0 ? -1 : 1;
	case VU_GET_VRING_BASE:
		return get_ring_base(v, msg, e) < 0 ? -1 : 1;
	case VU_GET_CONFIG:
		return get_config(v, msg, e) < 0 ? -1 : 1;
	case VU_SET_FEATURES:
		return set_features(v, p.u64, e);
	case VU_SET_PROTOCOL_FEATURES:
		return set_protocol_features(v, p.u64, e);
	case VU_SET_MEM_TABLE:
		return set_mem_table(v, &p.table, fds, n_fds, e);
	case VU_SET_VRING_NUM:
		return set_ring_num(v, &p.state, e);
	case VU_SET_VRING_ADDR:
		return set_ring_addr(v, &p.addresses, e);
	case VU_SET_VRING_BASE:
		return set_ring_base(v, &p.state, e);
	case VU_SET_VRING_ENABLE:
		return set_ring_enable(v, &p.state, e);
	case VU_SET_VRING_KICK:
	case VU_SET_VRING_CALL:
	case VU_SET_VRING_ERR:
		return set_ring_fd(v, msg->head.request, p.u64, fds, n_fds, e);
	case VU_SET_BACKEND_REQ_FD:
		return set_request_fd(v, fds, n_fds, e);
	default:
		/* Owner and configuration writes need nothing here. */
		return 0;
	}
}

int vhost_user_obey(struct vhost_user *v, struct vhost_user_msg *msg, int *fds, unsigned n_fds,
                    struct err *e)
{
	bool need_reply = (msg->head.flags & VHOST_USER_NEED_REPLY) != 0;
	int least = vhost_user_wire_least(msg->head.request);
	int rc;

	if (least < 0 || msg->head.size < (uint32_t)least ||
	    msg->head.size > sizeof(msg->payload))
		rc = err_set(e, ERR_PROTOCOL, "request %u of %u bytes", msg->head.request,
		             msg->head.size);
	else
		rc = obey(v, msg, fds, n_fds, e);
	vhost_user_wire_close_fds(fds, n_fds);

	/* Whether replies are on is asked afterwards: UML wants one to the very message that
	 * turns them on. */
	if (rc == 0 && need_reply && (v->protocol_features & PF_REPLY_ACK) != 0)
		rc = reply_u64(v, msg, 0, e);
	return rc < 0 ? -1 : 0;
}

int vhost_user_read(struct vhost_user *v, struct err *e)
{
	int rc = vhost_user_wire_read(&v->wire, e);
	if (rc <= 0)
		return rc;
	rc = vhost_user_obey(v, &v->wire.msg, v->wire.fds, v->wire.n_fds, e);
	vhost_user_wire_next(&v->wire);
	return rc;
}

/* ---- what the device uses ---- */

struct virtqueue *vhost_user_ring(struct vhost_user *v, enum vhost_user_ring_id id)
{
	return v->rings[id].running ? &v->rings[id].q : NULL;
}

const struct guest_mem *vhost_user_mem(const struct vhost_user *v)
{
	return &v->mem;
}

int vhost_user_kick_fd(const struct vhost_user *v, enum vhost_user_ring_id id)
{
	return v->rings[id].kick_fd;
}

void vhost_user_flush(struct vhost_user *v, enum vhost_user_ring_id id)
{
	struct ring *r = &v->rings[id];
	const uint64_t one = 1;

	if (!r->running || !virtqueue_publish(&r->q) || r->call_fd < 0)
		return;
	if (write(r->call_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_warn("vhost_user", NULL, "the interrupt descriptor fails: errno %d", errno);
}

void vhost_user_break(struct vhost_user *v, enum vhost_user_ring_id id)
{
	log_warn("vhost_user", NULL, "the guest broke ring %d", (int)id);
	ring_stop(v, &v->rings[id]);
	v->rings[id].placed = false;
}
