/*
 * The command line of `host-bridge vsock-device`; vsock_device.h says what the options mean.
 * A wrong one ends the process, with status 2.
 */
#ifndef SANDGATE_VSOCK_OPTIONS_H
#define SANDGATE_VSOCK_OPTIONS_H

#include <stdint.h>
#include <sys/types.h>

struct vsock_options {
	const char *socket, *uds; /* of argv */
	uint64_t guest_cid;
	uid_t uid;
	gid_t gid;
};

struct vsock_options vsock_options_parse(int argc, char **argv);

#endif
