#include "host-bridge/device/vhost_user_wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MSG_VERSION 0x1u
#define MSG_VERSION_MASK 0x3u
#define MSG_REPLY 0x4u
#define MSG_HEAD sizeof(((struct vhost_user_msg *)0)->head)

_Static_assert(sizeof(struct vhost_user_memory_table) <= VHOST_USER_PAYLOAD_MAX, "payload");
_Static_assert(sizeof(struct vhost_user_config_space) <= VHOST_USER_PAYLOAD_MAX, "payload");

int vhost_user_wire_least(uint32_t request)
{
	switch (request) {
	case VU_GET_FEATURES:
	case VU_SET_OWNER:
	case VU_RESET_OWNER:
	case VU_GET_PROTOCOL_FEATURES:
	case VU_GET_QUEUE_NUM:
	case VU_SET_BACKEND_REQ_FD:
	case VU_SET_CONFIG:
		return 0;
	case VU_SET_FEATURES:
	case VU_SET_PROTOCOL_FEATURES:
	case VU_SET_VRING_KICK:
	case VU_SET_VRING_CALL:
	case VU_SET_VRING_ERR:
		return sizeof(uint64_t);
	case VU_SET_VRING_NUM:
	case VU_SET_VRING_BASE:
	case VU_GET_VRING_BASE:
	case VU_SET_VRING_ENABLE:
		return sizeof(struct vhost_user_ring_state);
	case VU_SET_VRING_ADDR:
		return sizeof(struct vhost_user_ring_addresses);
	case VU_SET_MEM_TABLE:
		return offsetof(struct vhost_user_memory_table, regions);
	case VU_GET_CONFIG:
		return offsetof(struct vhost_user_config_space, bytes);
	default:
		return -1;
	}
}

void vhost_user_wire_close_fds(int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

int vhost_user_wire_reply(int fd, struct vhost_user_msg *msg, uint32_t size, struct err *e)
{
	msg->head.flags = MSG_VERSION | MSG_REPLY;
	msg->head.size = size;
	ssize_t n = send(fd, msg, MSG_HEAD + size, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n == (ssize_t)(MSG_HEAD + size))
		return 0;
	return err_errno(e, ERR_PROTOCOL, n < 0 ? errno : 0, "the VMM takes no reply");
}

static void take_fds(struct vhost_user_wire *w, struct msghdr *mh)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c != NULL; c = CMSG_NXTHDR(mh, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (w->n_fds < VHOST_USER_FDS_MAX)
				w->fds[w->n_fds++] = fd;
			else
				close(fd);
		}
	}
}

int vhost_user_wire_read(struct vhost_user_wire *w, struct err *e)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * VHOST_USER_FDS_MAX)];
		struct cmsghdr align;
	} control;
	size_t want = MSG_HEAD;

	if (w->got >= MSG_HEAD)
		want += w->msg.head.size;
	struct iovec iov = {(uint8_t *)&w->msg + w->got, want - w->got};
	struct msghdr mh = {.msg_iov = &iov,
	                    .msg_iovlen = 1,
	                    .msg_control = control.bytes,
	                    .msg_controllen = sizeof(control.bytes)};
	ssize_t n = recvmsg(w->fd, &mh, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	if (n == 0)
		return -1;
	take_fds(w, &mh);
	w->got += (size_t)n;
	if (w->got < MSG_HEAD)
		return 0;
	if (w->got == MSG_HEAD) {
		if ((w->msg.head.flags & MSG_VERSION_MASK) != MSG_VERSION ||
		    w->msg.head.size > sizeof(w->msg.payload))
			return err_set(e, ERR_PROTOCOL, "a malformed message");
		if (w->msg.head.size > 0)
			return 0;
	}
	return w->got == MSG_HEAD + w->msg.head.size ? 1 : 0;
}

void vhost_user_wire_next(struct vhost_user_wire *w)
{
	memset(&w->msg, 0, sizeof(w->msg));
	w->got = 0;
	w->n_fds = 0;
}
