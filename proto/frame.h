/*
 * The frame codec: a 4-byte big-endian length, then one protobuf message. Pure: no
 * descriptors, no allocation in the parser. Both programs, the conformance program and
 * the fuzzers use it. It never looks inside a message.
 */
#ifndef SANDGATE_FRAME_H
#define SANDGATE_FRAME_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER 4
/* Bytes that frame_output_header() writes at most. */
#define FRAME_OUTPUT_HEADER_MAX 48

enum frame_status {
	FRAME_OK,        /* payload and payload_len name a whole message inside buf */
	FRAME_NEED_MORE, /* *need bytes in all are needed from buf's start */
	FRAME_TOO_LONG,  /* the announced length is over `max` */
};

struct frame {
	const uint8_t *payload;
	size_t payload_len;
	size_t consumed; /* FRAME_OK: bytes to drop from buf's front */
	size_t need;     /* FRAME_NEED_MORE: whole frame's size, or FRAME_HEADER if unknown */
};

/* Look for one frame at the front of buf. A length over `max` is told from the header
 * alone, before anything is buffered for it. */
enum frame_status frame_parse(const uint8_t *buf, size_t len, size_t max, struct frame *out);

/* Size of `m` as a frame, header included. */
size_t frame_size(const ProtobufCMessage *m);

/* Write `m` as a frame to `out`, which has frame_size(m) bytes of room. Returns the size. */
size_t frame_write(const ProtobufCMessage *m, uint8_t *out);

/*
 * The front of a GuestFrame{Output{sequence, stream, data}} whose `data` of `len` bytes
 * follows straight after, so that output is sent from where it lies (writev). Returns the
 * bytes written to `out`. Equals, byte for byte, what frame_write() would have put there,
 * but for proto3 defaults being written or not.
 */
size_t frame_output_header(uint8_t out[FRAME_OUTPUT_HEADER_MAX], uint64_t sequence,
                           uint32_t stream, size_t len);

#endif
