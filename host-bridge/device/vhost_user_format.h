/*
 * The bytes of vhost-user messages: requests and payloads, as far as they are used here.
 * For vhost_user and vhost_user_wire; declares no function.
 */
#ifndef SANDGATE_VHOST_USER_FORMAT_H
#define SANDGATE_VHOST_USER_FORMAT_H

#include <stdint.h>

#include "proto/limits.h"

/* The largest payload of a message that is used here (bytes). */
#define VHOST_USER_PAYLOAD_MAX 280
#define VHOST_USER_FDS_MAX GUEST_REGIONS_MAX

#define VHOST_USER_NEED_REPLY 0x8u /* in head.flags */

/* Requests of the vhost-user specification (QEMU's docs/interop). */
enum vhost_user_request {
	VU_GET_FEATURES = 1,
	VU_SET_FEATURES = 2,
	VU_SET_OWNER = 3,
	VU_RESET_OWNER = 4,
	VU_SET_MEM_TABLE = 5,
	VU_SET_VRING_NUM = 8,
	VU_SET_VRING_ADDR = 9,
	VU_SET_VRING_BASE = 10,
	VU_GET_VRING_BASE = 11,
	VU_SET_VRING_KICK = 12,
	VU_SET_VRING_CALL = 13,
	VU_SET_VRING_ERR = 14,
	VU_GET_PROTOCOL_FEATURES = 15,
	VU_SET_PROTOCOL_FEATURES = 16,
	VU_GET_QUEUE_NUM = 17,
	VU_SET_VRING_ENABLE = 18,
	VU_SET_BACKEND_REQ_FD = 21,
	VU_GET_CONFIG = 24,
	VU_SET_CONFIG = 25,
};

/* Their payloads. */
struct vhost_user_ring_addresses {
	uint32_t index, flags;
	uint64_t desc, used, avail, log;
};

struct vhost_user_ring_state {
	uint32_t index, num;
};

struct vhost_user_memory_table {
	uint32_t n, padding;
	struct {
		uint64_t gpa, size, uva, offset;
	} regions[GUEST_REGIONS_MAX];
};

struct vhost_user_config_space {
	uint32_t offset, size, flags;
	uint8_t bytes[256];
};

struct vhost_user_msg {
	struct {
		uint32_t request, flags, size;
	} head;
	uint8_t payload[VHOST_USER_PAYLOAD_MAX]; /* zeros past head.size */
};

#endif
