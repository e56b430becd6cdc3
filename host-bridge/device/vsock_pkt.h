/*
 * The header of a virtio-vsock packet (virtio 1.2, section 5.10.6) to and from wire order.
 * Pure; called by vsock_mux.
 */
#ifndef SANDGATE_VSOCK_PKT_H
#define SANDGATE_VSOCK_PKT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define VSOCK_PKT_HEAD 44 /* bytes of a header on the wire */

struct vsock_pkt {
	uint64_t src_cid, dst_cid;
	uint32_t src_port, dst_port;
	uint32_t len; /* payload bytes */
	uint16_t type, op;
	uint32_t flags;
	uint32_t buf_alloc, fwd_cnt;
};

/* Read the header from the segments; -1 when they are shorter than one. */
int vsock_pkt_decode(struct vsock_pkt *p, const struct iovec *iov, unsigned n);

/* Write the header into the segments, which hold at least VSOCK_PKT_HEAD bytes. */
void vsock_pkt_encode(const struct vsock_pkt *p, const struct iovec *iov, unsigned n);

/* The `max` bytes that follow the header, or what there is of them, as segments in `out`,
 * which has room for `n`. Returns how many, and the bytes in `*bytes`. */
unsigned vsock_pkt_payload(const struct iovec *iov, unsigned n, size_t max, struct iovec *out,
                           size_t *bytes);

#endif
