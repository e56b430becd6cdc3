#include "host-bridge/device/vhost_user.h"

#include <endian.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/device/vhost_user_private.h"

/* Feature bits of the vhost-user specification (QEMU's docs/interop). */
#define FEATURES                                                       \
	(VHOST_USER_F_PROTOCOL_FEATURES | 1ull << VIRTIO_F_VERSION_1 | \
	 1ull << VIRTIO_RING_F_EVENT_IDX)

/* UML does not go on unless the back end's request channel is offered; it is never used. */
#define PF_REPLY_ACK (1ull << 3)
#define PF_BACKEND_REQ (1ull << 5)
#define PF_CONFIG (1ull << 9)
#define PROTOCOL_FEATURES (PF_REPLY_ACK | PF_BACKEND_REQ | PF_CONFIG)

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
	vhost_user_rings_init(v);
	return v;
}

void vhost_user_destroy(struct vhost_user *v)
{
	if (v == NULL)
		return;
	vhost_user_rings_clear(v);
	if (v->request_fd >= 0)
		close(v->request_fd);
	vhost_user_wire_close_fds(v->wire.fds, v->wire.n_fds);
	guest_mem_clear(&v->mem);
	free(v);
}

static int reply_u64(struct vhost_user *v, struct vhost_user_msg *msg, uint64_t value,
                     struct err *e)
{
	memcpy(msg->payload, &value, sizeof(value));
	return vhost_user_wire_reply(v->wire.fd, msg, sizeof(value), e);
}

/* ---- the messages ---- */

static int set_mem_table(struct vhost_user *v, const struct vhost_user_memory_table *t,
                         const int *fds, unsigned n_fds, struct err *e)
{
	if (t->n > GUEST_REGIONS_MAX || t->n != n_fds)
		return err_set(e, ERR_PROTOCOL, "memory table of %u regions, %u descriptors",
		               t->n, n_fds);
	vhost_user_rings_flush(v);
	guest_mem_clear(&v->mem);

	int rc = 0;
	for (unsigned i = 0; i < t->n && rc == 0; i++)
		rc = guest_mem_add(&v->mem, t->regions[i].gpa, t->regions[i].uva,
		                   t->regions[i].size, fds[i], t->regions[i].offset, e);
	if (rc == 0)
		rc = vhost_user_rings_attach(v, e);
	if (rc < 0)
		vhost_user_rings_abandon(v);
	return rc;
}

static int get_ring_base(struct vhost_user *v, struct vhost_user_msg *msg, struct err *e)
{
	struct vhost_user_ring_state s;
	memcpy(&s, msg->payload, sizeof(s));
	if (vhost_user_ring_get_base(v, &s, e) < 0)
		return -1;
	memcpy(msg->payload, &s, sizeof(s));
	return vhost_user_wire_reply(v->wire.fd, msg, sizeof(s), e);
}

static int set_request_fd(struct vhost_user *v, int *fds, unsigned n_fds, struct err *e)
{
	if (n_fds != 1)
		return err_set(e, ERR_PROTOCOL, "%u descriptors for the request channel",
		               n_fds);
	if (v->request_fd >= 0)
		close(v->request_fd);
	v->request_fd = fds[0];
	fds[0] = -1;
	return 0;
}

static int set_features(struct vhost_user *v, uint64_t features, struct err *e)
{
	if ((features & ~FEATURES) != 0)
		return err_set(e, ERR_PROTOCOL, "features that were not offered");
	v->features = features;
	return vhost_user_rings_step(v, e);
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
		return vhost_user_ring_set_num(v, &p.state, e);
	case VU_SET_VRING_ADDR:
		return vhost_user_ring_set_addr(v, &p.addresses, e);
	case VU_SET_VRING_BASE:
		return vhost_user_ring_set_base(v, &p.state, e);
	case VU_SET_VRING_ENABLE:
		return vhost_user_ring_set_enable(v, &p.state, e);
	case VU_SET_VRING_KICK:
	case VU_SET_VRING_CALL:
	case VU_SET_VRING_ERR:
		return vhost_user_ring_set_fd(v, msg->head.request, p.u64, fds, n_fds, e);
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

const struct guest_mem *vhost_user_mem(const struct vhost_user *v)
{
	return &v->mem;
}
