/* The rings: each runs while it has a size, addresses, a kick descriptor and is enabled. */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <unistd.h>

#include "host-bridge/device/vhost_user_private.h"
#include "proto/log.h"

/* The value of VU_SET_VRING_KICK, _CALL and _ERR (QEMU's docs/interop). */
#define RING_NO_FD 0x100u /* none is attached */
#define RING_INDEX 0xffu

/* ---- life ---- */

static void replace_fd(int *slot, int fd)
{
	if (*slot >= 0)
		close(*slot);
	*slot = fd;
}

static void ring_stop(struct vhost_user *v, struct vhost_user_ring *r)
{
	if (!r->running)
		return;
	enum vhost_user_ring_id id = (enum vhost_user_ring_id)(r - v->rings);
	vhost_user_flush(v, id);
	v->ops.ring_stopped(id, v->ops.arg);
	r->running = false;
	r->base = r->q.next_avail;
}

void vhost_user_rings_init(struct vhost_user *v)
{
	for (int i = 0; i < RINGS; i++)
		v->rings[i].kick_fd = v->rings[i].call_fd = -1;
}

void vhost_user_rings_clear(struct vhost_user *v)
{
	for (int i = 0; i < RINGS; i++) {
		ring_stop(v, &v->rings[i]);
		replace_fd(&v->rings[i].kick_fd, -1);
		replace_fd(&v->rings[i].call_fd, -1);
	}
}

static int ring_attach(struct vhost_user *v, struct vhost_user_ring *r, struct err *e)
{
	return virtqueue_attach(&r->q, &v->mem, r->num, r->at.desc, r->at.avail, r->at.used, e);
}

/* The one place that starts a ring. Without the protocol features' bit there is no enable
 * message, and a ring is enabled from the start. */
static int ring_step(struct vhost_user *v, struct vhost_user_ring *r, struct err *e)
{
	bool enabled = r->enabled || (v->features & VHOST_USER_F_PROTOCOL_FEATURES) == 0;
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

static struct vhost_user_ring *ring_of(struct vhost_user *v, uint32_t index, struct err *e)
{
	if (index < RINGS)
		return &v->rings[index];
	err_set(e, ERR_PROTOCOL, "there is no ring %u", index);
	return NULL;
}

/* ---- all of them ---- */

int vhost_user_rings_step(struct vhost_user *v, struct err *e)
{
	for (int i = 0; i < RINGS; i++)
		if (ring_step(v, &v->rings[i], e) < 0)
			return -1;
	return 0;
}

void vhost_user_rings_flush(struct vhost_user *v)
{
	for (int i = 0; i < RINGS; i++)
		vhost_user_flush(v, (enum vhost_user_ring_id)i);
}

int vhost_user_rings_attach(struct vhost_user *v, struct err *e)
{
	for (int i = 0; i < RINGS; i++)
		if (v->rings[i].running && ring_attach(v, &v->rings[i], e) < 0)
			return -1;
	return 0;
}

void vhost_user_rings_abandon(struct vhost_user *v)
{
	for (int i = 0; i < RINGS; i++) {
		if (!v->rings[i].running)
			continue;
		v->rings[i].running = false;
		v->ops.ring_stopped((enum vhost_user_ring_id)i, v->ops.arg);
	}
}

/* ---- the messages ---- */

int vhost_user_ring_set_num(struct vhost_user *v, const struct vhost_user_ring_state *s,
                            struct err *e)
{
	struct vhost_user_ring *r = ring_of(v, s->index, e);
	if (r == NULL)
		return -1;
	if (r->running || s->num == 0 || s->num > VIRTQUEUE_NUM_MAX)
		return err_set(e, ERR_PROTOCOL, "ring size %u", s->num);
	r->num = (uint16_t)s->num;
	return ring_step(v, r, e);
}

int vhost_user_ring_set_addr(struct vhost_user *v, const struct vhost_user_ring_addresses *a,
                             struct err *e)
{
	struct vhost_user_ring *r = ring_of(v, a->index, e);
	if (r == NULL)
		return -1;
	ring_stop(v, r);
	r->at = *a;
	r->placed = true;
	return ring_step(v, r, e);
}

int vhost_user_ring_set_base(struct vhost_user *v, const struct vhost_user_ring_state *s,
                             struct err *e)
{
	struct vhost_user_ring *r = ring_of(v, s->index, e);
	if (r == NULL)
		return -1;
	if (r->running || s->num > UINT16_MAX)
		return err_set(e, ERR_PROTOCOL, "ring base %u", s->num);
	r->base = (uint16_t)s->num;
	return 0;
}

int vhost_user_ring_get_base(struct vhost_user *v, struct vhost_user_ring_state *s,
                             struct err *e)
{
	struct vhost_user_ring *r = ring_of(v, s->index, e);
	if (r == NULL)
		return -1;
	ring_stop(v, r);
	replace_fd(&r->kick_fd, -1);
	s->num = r->base;
	return 0;
}

int vhost_user_ring_set_enable(struct vhost_user *v, const struct vhost_user_ring_state *s,
                               struct err *e)
{
	struct vhost_user_ring *r = ring_of(v, s->index, e);
	if (r == NULL)
		return -1;
	r->enabled = s->num != 0;
	return ring_step(v, r, e);
}

int vhost_user_ring_set_fd(struct vhost_user *v, enum vhost_user_request request,
                           uint64_t value, int *fds, unsigned n_fds, struct err *e)
{
	struct vhost_user_ring *r = ring_of(v, (uint32_t)(value & RING_INDEX), e);
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

/* ---- what the device uses ---- */

struct virtqueue *vhost_user_ring(struct vhost_user *v, enum vhost_user_ring_id id)
{
	return v->rings[id].running ? &v->rings[id].q : NULL;
}

int vhost_user_kick_fd(const struct vhost_user *v, enum vhost_user_ring_id id)
{
	return v->rings[id].kick_fd;
}

void vhost_user_flush(struct vhost_user *v, enum vhost_user_ring_id id)
{
	struct vhost_user_ring *r = &v->rings[id];
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
