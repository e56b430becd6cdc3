#include "host-bridge/device/virtqueue.h"

#include <endian.h>
#include <stddef.h>

static uint16_t load16(const __virtio16 *p)
{
	return le16toh(__atomic_load_n(p, __ATOMIC_RELAXED));
}

static void store16(__virtio16 *p, uint16_t v)
{
	__atomic_store_n(p, htole16(v), __ATOMIC_RELAXED);
}

int virtqueue_attach(struct virtqueue *q, const struct guest_mem *m, uint16_t num,
                     uint64_t desc, uint64_t avail, uint64_t used, struct err *e)
{
	if (num == 0 || num > VIRTQUEUE_NUM_MAX || (num & (num - 1)) != 0)
		return err_set(e, ERR_PROTOCOL, "ring size %u is not allowed", num);
	if (desc % VRING_DESC_ALIGN_SIZE != 0 || avail % VRING_AVAIL_ALIGN_SIZE != 0 ||
	    used % VRING_USED_ALIGN_SIZE != 0)
		return err_set(e, ERR_PROTOCOL, "a ring is not aligned");

	/* Both index rings end with the 16-bit event index of the other side. */
	void *d = guest_mem_uva(m, desc, sizeof(struct vring_desc) * num);
	void *a = guest_mem_uva(m, avail, sizeof(struct vring_avail) + 2u * num + 2);
	void *u = guest_mem_uva(
	    m, used, sizeof(struct vring_used) + sizeof(struct vring_used_elem) * num + 2);
	if (d == NULL || a == NULL || u == NULL)
		return err_set(e, ERR_PROTOCOL, "a ring lies outside the guest's memory");
	if ((uintptr_t)d % VRING_DESC_ALIGN_SIZE != 0 ||
	    (uintptr_t)a % VRING_AVAIL_ALIGN_SIZE != 0 ||
	    (uintptr_t)u % VRING_USED_ALIGN_SIZE != 0)
		return err_set(e, ERR_PROTOCOL, "a ring's region is not aligned");
	q->desc = d;
	q->avail = a;
	q->used = u;
	q->num = num;
	return 0;
}

void virtqueue_start(struct virtqueue *q, uint16_t base, bool event_idx)
{
	q->event_idx = event_idx;
	q->next_avail = base;
	q->next_used = q->published = q->signalled = load16(&q->used->idx);
	q->first = true;
}

/* Append the segment of one descriptor. Empty ones are legal and skipped. */
static int add_segment(struct virtqueue_chain *c, const struct guest_mem *m, uint64_t addr,
                       uint32_t len, bool writable)
{
	unsigned n = c->n_out + c->n_in;

	if (!writable && c->n_in > 0)
		return -1;
	if (len == 0)
		return 0;
	if (n == VIRTQUEUE_SEGMENTS_MAX)
		return -1;
	void *p = guest_mem_gpa(m, addr, len);
	if (p == NULL)
		return -1;
	c->iov[n] = (struct iovec){p, len};
	if (writable) {
		c->n_in++;
		c->in_bytes += len;
	} else {
		c->n_out++;
		c->out_bytes += len;
	}
	return 0;
}

/* Whether entries wait; -1 when the guest claims more than the ring can hold. */
static int pending(const struct virtqueue *q)
{
	uint16_t idx = le16toh(__atomic_load_n(&q->avail->idx, __ATOMIC_ACQUIRE));
	uint16_t n = (uint16_t)(idx - q->next_avail);

	return n > q->num ? -1 : n > 0;
}

int virtqueue_pop(struct virtqueue *q, const struct guest_mem *m, struct virtqueue_chain *c)
{
	int waiting = pending(q);
	if (waiting <= 0)
		return waiting;

	uint16_t at = load16(&q->avail->ring[q->next_avail & (q->num - 1)]);
	c->head = at;
	c->n_out = c->n_in = 0;
	c->out_bytes = c->in_bytes = 0;

	/* A chain longer than the ring visits a descriptor twice: it is a loop. */
	for (unsigned hops = 0; hops < q->num; hops++) {
		if (at >= q->num)
			return -1;
		const struct vring_desc *d = &q->desc[at];
		uint64_t addr = le64toh(__atomic_load_n(&d->addr, __ATOMIC_RELAXED));
		uint32_t len = le32toh(__atomic_load_n(&d->len, __ATOMIC_RELAXED));
		uint16_t flags = load16(&d->flags);

		if ((flags & VRING_DESC_F_INDIRECT) != 0 ||
		    add_segment(c, m, addr, len, (flags & VRING_DESC_F_WRITE) != 0) < 0)
			return -1;
		if ((flags & VRING_DESC_F_NEXT) == 0) {
			q->next_avail++;
			return 1;
		}
		at = load16(&d->next);
	}
	return -1;
}

void virtqueue_unpop(struct virtqueue *q, uint16_t n)
{
	q->next_avail -= n;
}

void virtqueue_push(struct virtqueue *q, uint16_t head, uint32_t len)
{
	struct vring_used_elem *elem = &q->used->ring[q->next_used & (q->num - 1)];

	elem->id = htole32(head);
	elem->len = htole32(len);
	q->next_used++;
}

bool virtqueue_publish(struct virtqueue *q)
{
	if (q->published == q->next_used)
		return false;
	q->published = q->next_used;
	__atomic_store_n(&q->used->idx, htole16(q->published), __ATOMIC_RELEASE);

	/* The index must be visible before the guest's wish is read, or a wake-up is lost. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!q->event_idx)
		return (load16(&q->avail->flags) & VRING_AVAIL_F_NO_INTERRUPT) == 0;
	uint16_t event = load16(&q->avail->ring[q->num]);
	bool wanted = q->first || vring_need_event(event, q->published, q->signalled);
	q->signalled = q->published;
	q->first = false;
	return wanted;
}

uint16_t virtqueue_unpublished(const struct virtqueue *q)
{
	return (uint16_t)(q->next_used - q->published);
}

bool virtqueue_want_kick(struct virtqueue *q)
{
	if (q->event_idx)
		store16((__virtio16 *)&q->used->ring[q->num], q->next_avail);
	else
		store16(&q->used->flags, 0);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return pending(q) != 0;
}

void virtqueue_refuse_kick(struct virtqueue *q)
{
	/* With event indexes, leaving the old one in place is what refuses. */
	if (!q->event_idx)
		store16(&q->used->flags, VRING_USED_F_NO_NOTIFY);
}
