#include "host-bridge/device/vsock_pkt.h"

#include <endian.h>
#include <linux/virtio_vsock.h>
#include <string.h>

_Static_assert(sizeof(struct virtio_vsock_hdr) == VSOCK_PKT_HEAD, "header size");

int vsock_pkt_decode(struct vsock_pkt *p, const struct iovec *iov, unsigned n)
{
	struct virtio_vsock_hdr h;
	size_t got = 0;

	for (unsigned i = 0; i < n && got < sizeof(h); i++) {
		size_t part = sizeof(h) - got;
		if (part > iov[i].iov_len)
			part = iov[i].iov_len;
		memcpy((uint8_t *)&h + got, iov[i].iov_base, part);
		got += part;
	}
	if (got < sizeof(h))
		return -1;
	*p = (struct vsock_pkt){
	    .src_cid = le64toh(h.src_cid),
	    .dst_cid = le64toh(h.dst_cid),
	    .src_port = le32toh(h.src_port),
	    .dst_port = le32toh(h.dst_port),
	    .len = le32toh(h.len),
	    .type = le16toh(h.type),
	    .op = le16toh(h.op),
	    .flags = le32toh(h.flags),
	    .buf_alloc = le32toh(h.buf_alloc),
	    .fwd_cnt = le32toh(h.fwd_cnt),
	};
	return 0;
}

void vsock_pkt_encode(const struct vsock_pkt *p, const struct iovec *iov, unsigned n)
{
	const struct virtio_vsock_hdr h = {
	    .src_cid = htole64(p->src_cid),
	    .dst_cid = htole64(p->dst_cid),
	    .src_port = htole32(p->src_port),
	    .dst_port = htole32(p->dst_port),
	    .len = htole32(p->len),
	    .type = htole16(p->type),
	    .op = htole16(p->op),
	    .flags = htole32(p->flags),
	    .buf_alloc = htole32(p->buf_alloc),
	    .fwd_cnt = htole32(p->fwd_cnt),
	};
	size_t put = 0;

	for (unsigned i = 0; i < n && put < sizeof(h); i++) {
		size_t part = sizeof(h) - put;
		if (part > iov[i].iov_len)
			part = iov[i].iov_len;
		memcpy(iov[i].iov_base, (const uint8_t *)&h + put, part);
		put += part;
	}
}

unsigned vsock_pkt_payload(const struct iovec *iov, unsigned n, size_t max, struct iovec *out,
                           size_t *bytes)
{
	size_t skip = VSOCK_PKT_HEAD;
	unsigned n_out = 0;

	*bytes = 0;
	for (unsigned i = 0; i < n && *bytes < max; i++) {
		size_t len = iov[i].iov_len;
		if (len <= skip) {
			skip -= len;
			continue;
		}
		len -= skip;
		if (len > max - *bytes)
			len = max - *bytes;
		out[n_out++] = (struct iovec){(uint8_t *)iov[i].iov_base + skip, len};
		skip = 0;
		*bytes += len;
	}
	return n_out;
}
