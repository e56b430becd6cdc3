#include "proto/frame.h"

static void put_be32(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 24);
	p[1] = (uint8_t)(v >> 16);
	p[2] = (uint8_t)(v >> 8);
	p[3] = (uint8_t)v;
}

static uint32_t get_be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

enum frame_status frame_parse(const uint8_t *buf, size_t len, size_t max, struct frame *out)
{
	if (len < FRAME_HEADER) {
		out->need = FRAME_HEADER;
		return FRAME_NEED_MORE;
	}
	size_t body = get_be32(buf);
	if (body > max)
		return FRAME_TOO_LONG;
	if (len - FRAME_HEADER < body) {
		out->need = FRAME_HEADER + body;
		return FRAME_NEED_MORE;
	}
	out->payload = buf + FRAME_HEADER;
	out->payload_len = body;
	out->consumed = FRAME_HEADER + body;
	return FRAME_OK;
}

size_t frame_size(const ProtobufCMessage *m)
{
	return FRAME_HEADER + protobuf_c_message_get_packed_size(m);
}

size_t frame_write(const ProtobufCMessage *m, uint8_t *out)
{
	size_t body = protobuf_c_message_pack(m, out + FRAME_HEADER);
	put_be32(out, (uint32_t)body);
	return FRAME_HEADER + body;
}

/* Protobuf's base-128 varint (protobuf.dev/programming-guides/encoding). */
static size_t put_varint(uint8_t *p, uint64_t v)
{
	size_t n = 0;
	while (v >= 0x80) {
		p[n++] = (uint8_t)(v | 0x80);
		v >>= 7;
	}
	p[n++] = (uint8_t)v;
	return n;
}

enum { WIRE_VARINT = 0, WIRE_BYTES = 2 };

static size_t put_tag(uint8_t *p, uint32_t field, uint32_t wire)
{
	return put_varint(p, (uint64_t)field << 3 | wire);
}

size_t frame_output_header(uint8_t out[FRAME_OUTPUT_HEADER_MAX], uint64_t sequence,
                           uint32_t stream, size_t len)
{
	/* Field numbers of sandgate.proto: GuestFrame.output 4; Output 1, 2, 3. */
	uint8_t inner[32], outer[16];
	size_t in = 0, o = 0;

	in += put_tag(inner + in, 1, WIRE_VARINT);
	in += put_varint(inner + in, sequence);
	in += put_tag(inner + in, 2, WIRE_VARINT);
	in += put_varint(inner + in, stream);
	in += put_tag(inner + in, 3, WIRE_BYTES);
	in += put_varint(inner + in, len);
	o += put_tag(outer + o, 4, WIRE_BYTES);
	o += put_varint(outer + o, in + len);

	put_be32(out, (uint32_t)(o + in + len));
	uint8_t *p = out + FRAME_HEADER;
	for (size_t i = 0; i < o; i++)
		*p++ = outer[i];
	for (size_t i = 0; i < in; i++)
		*p++ = inner[i];
	return FRAME_HEADER + o + in;
}
