/*
 * The back end's side of vhost-user from the inside: vhost_user.c (life, messages) and
 * vhost_user_ring.c (rings). Nobody else includes this.
 */
#ifndef SANDGATE_VHOST_USER_PRIVATE_H
#define SANDGATE_VHOST_USER_PRIVATE_H

#include "host-bridge/device/vhost_user.h"

/* Of the vhost-user specification (QEMU's docs/interop): rings have an enable message. */
#define VHOST_USER_F_PROTOCOL_FEATURES (1ull << 30)

struct vhost_user_ring {
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
	struct vhost_user_ring rings[RINGS];
};

/* Rings that have nothing, and their end: they stop, and their descriptors are closed. */
void vhost_user_rings_init(struct vhost_user *v);
void vhost_user_rings_clear(struct vhost_user *v);
/* The features have changed: start what may run now. */
int vhost_user_rings_step(struct vhost_user *v, struct err *e);
/* Around a change of the memory table: publish what was pushed; go on where they are, in the
 * new mapping; or stop without a touch, since their memory is gone. */
void vhost_user_rings_flush(struct vhost_user *v);
int vhost_user_rings_attach(struct vhost_user *v, struct err *e);
void vhost_user_rings_abandon(struct vhost_user *v);

/* The messages about one ring. What breaks the protocol is -1. */
int vhost_user_ring_set_num(struct vhost_user *v, const struct vhost_user_ring_state *s,
                            struct err *e);
int vhost_user_ring_set_addr(struct vhost_user *v, const struct vhost_user_ring_addresses *a,
                             struct err *e);
int vhost_user_ring_set_base(struct vhost_user *v, const struct vhost_user_ring_state *s,
                             struct err *e);
/* Asking for the position is what stops a ring. */
int vhost_user_ring_get_base(struct vhost_user *v, struct vhost_user_ring_state *s,
                             struct err *e);
int vhost_user_ring_set_enable(struct vhost_user *v, const struct vhost_user_ring_state *s,
                               struct err *e);
/* VU_SET_VRING_KICK, _CALL or _ERR; a descriptor that is kept becomes -1 in `fds`. */
int vhost_user_ring_set_fd(struct vhost_user *v, enum vhost_user_request request,
                           uint64_t value, int *fds, unsigned n_fds, struct err *e);

#endif
