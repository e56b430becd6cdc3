/*
 * The back end's side of the vhost-user protocol: negotiation, the memory table, the
 * rings and their descriptors. Called by vsock_device, which owns the socket's watcher.
 * It knows nothing of vsock but the device's configuration space (the guest's CID).
 *
 * A ring runs while it has a size, addresses, a kick descriptor and is enabled; the owner
 * hears of each change. Any message that breaks the protocol ends the VMM's connection.
 */
#ifndef SANDGATE_VHOST_USER_H
#define SANDGATE_VHOST_USER_H

#include "host-bridge/device/vhost_user_wire.h"
#include "host-bridge/device/virtqueue.h"

/* virtio-vsock's queues: to the guest, from the guest, events (never used). */
enum vhost_user_ring_id { RING_RX, RING_TX, RING_EVENT, RINGS };

struct vhost_user;

struct vhost_user_ops {
	/* The ring runs; `fresh` when it started at position 0, as after a reset. */
	void (*ring_started)(enum vhost_user_ring_id id, bool fresh, void *arg);
	/* The ring stops: forget its chains and the kick descriptor, now. */
	void (*ring_stopped)(enum vhost_user_ring_id id, void *arg);
	void *arg;
};

/* `fd` is the connection to the VMM, non-blocking; it stays the caller's. NULL when memory
 * fails. */
struct vhost_user *vhost_user_create(int fd, uint64_t guest_cid,
                                     const struct vhost_user_ops *ops);
/* Stops the rings (the owner hears of it) and unmaps the guest. */
void vhost_user_destroy(struct vhost_user *v);

/* Read and obey one message, or as much of it as has come. -1: the VMM is gone (err's code
 * is ERR_NONE: untouched) or broke the protocol. */
int vhost_user_read(struct vhost_user *v, struct err *e);

/* Obey one whole message; takes over the descriptors. For vhost_user_read and fuzzers. */
int vhost_user_obey(struct vhost_user *v, struct vhost_user_msg *msg, int *fds, unsigned n_fds,
                    struct err *e);

/* The ring while it runs, else NULL. */
struct virtqueue *vhost_user_ring(struct vhost_user *v, enum vhost_user_ring_id id);
const struct guest_mem *vhost_user_mem(const struct vhost_user *v);

/* The ring's kick descriptor while it runs. */
int vhost_user_kick_fd(const struct vhost_user *v, enum vhost_user_ring_id id);

/* Publish what was pushed and interrupt the guest if it wants that. */
void vhost_user_flush(struct vhost_user *v, enum vhost_user_ring_id id);

/* The guest broke the ring: it stops until the VMM sets it up anew. */
void vhost_user_break(struct vhost_user *v, enum vhost_user_ring_id id);

#endif
