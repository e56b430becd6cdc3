/*
 * The device's side of a split virtqueue (virtio 1.2, section 2.7), over memory that a
 * hostile guest writes while it is read. Called by vsock_mux; fed by fuzzers. It does no
 * I/O and keeps no descriptor: the caller is told when to notify.
 *
 *   pop ──► use the segments ──► push ──► (more) ──► publish ──► notify when it says so
 *    └────► unpop, newest first
 *
 * Everything that the guest can change is read once and checked. A guest that breaks the
 * rules gets -1; the ring must then not be used again until it is attached anew.
 */
#ifndef SANDGATE_VIRTQUEUE_H
#define SANDGATE_VIRTQUEUE_H

#include <linux/virtio_ring.h>
#include <stdbool.h>
#include <sys/uio.h>

#include "host-bridge/device/guest_mem.h"

struct virtqueue {
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
	uint16_t num;        /* ring size, a power of two */
	bool event_idx;      /* VIRTIO_RING_F_EVENT_IDX was negotiated */
	uint16_t next_avail; /* next entry of the available ring to take */
	uint16_t next_used;  /* next entry of the used ring to write */
	uint16_t published;  /* what the guest sees as used->idx */
	uint16_t signalled;  /* `published` when the notification was last decided */
	bool first;          /* nothing was published yet: the guest's wish may be stale */
};

/* One request of the guest: `n_out` segments to read, then `n_in` to write into. */
struct virtqueue_chain {
	uint16_t head;
	uint16_t n_out, n_in;
	size_t out_bytes, in_bytes;
	struct iovec iov[VIRTQUEUE_SEGMENTS_MAX];
};

/* Point the ring at its three areas, given as addresses of the VMM. Positions are left
 * as they are, so this also follows a changed memory table. */
int virtqueue_attach(struct virtqueue *q, const struct guest_mem *m, uint16_t num,
                     uint64_t desc, uint64_t avail, uint64_t used, struct err *e);

/* Start at available entry `base`; the used position is the one in the ring. */
void virtqueue_start(struct virtqueue *q, uint16_t base, bool event_idx);

/* Take the next chain: 1, or 0 when there is none, or -1 when the ring is malformed (a
 * loop, an address outside the memory, a read segment after a write one, …). */
int virtqueue_pop(struct virtqueue *q, const struct guest_mem *m, struct virtqueue_chain *c);

/* Give the newest `n` popped and not pushed chains back. */
void virtqueue_unpop(struct virtqueue *q, uint16_t n);

/* The chain is done; `len` bytes were written into its segments. */
void virtqueue_push(struct virtqueue *q, uint16_t head, uint32_t len);

/* Show the guest what was pushed. True: it wants to be notified. */
bool virtqueue_publish(struct virtqueue *q);

/* How many chains were pushed since. */
uint16_t virtqueue_unpublished(const struct virtqueue *q);

/* Ask for a kick when the next chain comes. True: one came already, and no kick is sure. */
bool virtqueue_want_kick(struct virtqueue *q);

/* Ask for no kicks: a hint. */
void virtqueue_refuse_kick(struct virtqueue *q);

#endif
