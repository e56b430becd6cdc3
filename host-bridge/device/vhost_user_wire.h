/*
 * Messages of the vhost-user socket, whole, with the descriptors that came along. Called
 * by vhost_user; it knows no message's meaning.
 */
#ifndef SANDGATE_VHOST_USER_WIRE_H
#define SANDGATE_VHOST_USER_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "host-bridge/device/vhost_user_format.h"
#include "proto/err.h"

struct vhost_user_wire {
	int fd; /* the owner's */
	struct vhost_user_msg msg;
	size_t got;
	int fds[VHOST_USER_FDS_MAX];
	unsigned n_fds;
};

/* Read what has come. 1: the message is whole; 0: more must come; -1: the VMM is gone (`e`
 * is untouched) or the message is malformed. */
int vhost_user_wire_read(struct vhost_user_wire *w, struct err *e);

/* Done with the message, and with its descriptors: they were closed or kept. */
void vhost_user_wire_next(struct vhost_user_wire *w);

/* Payload bytes that a request has at least; -1 for one that is not known. */
int vhost_user_wire_least(uint32_t request);

/* Turn the message into a reply of `size` payload bytes and send it. */
int vhost_user_wire_reply(int fd, struct vhost_user_msg *msg, uint32_t size, struct err *e);

/* Close those that are not -1. */
void vhost_user_wire_close_fds(int *fds, unsigned n);

#endif
