/*
 * Everything that goes to the guest: resets, control packets that connections owe, and
 * the bytes of host clients, straight from the socket into the guest's receive buffers.
 * Called by vsock_mux. When the guest has no buffers, resets queue up and connections
 * wait in a list until its next kick.
 */
#ifndef SANDGATE_VSOCK_RX_H
#define SANDGATE_VSOCK_RX_H

#include "host-bridge/device/vhost_user.h"
#include "host-bridge/device/vsock_conn.h"

struct vsock_rx_reset {
	uint32_t host_port, guest_port;
};

struct vsock_rx {
	struct vhost_user *vmm; /* NULL while none is connected */
	uint64_t guest_cid;
	TAILQ_HEAD(, vsock_conn) waiting;
	struct vsock_rx_reset resets[VSOCK_RESETS_MAX];
	unsigned reset_head, reset_n;
};

void vsock_rx_init(struct vsock_rx *rx, uint64_t guest_cid);

/* Send a reset for the pair of ports, now or when there is a buffer. */
void vsock_rx_reset(struct vsock_rx *rx, uint32_t host_port, uint32_t guest_port);

/* So many resets queue that the guest's packets, which cause them, must wait. */
bool vsock_rx_busy(const struct vsock_rx *rx);

/* Send the packet (an OWE_ bit) of the connection, now or when there is a buffer. */
void vsock_rx_owe(struct vsock_rx *rx, struct vsock_conn *c, unsigned what);

/* Move what the host client wrote to the guest, within credit and budget. False: the
 * client is gone and all that it wrote was moved. */
bool vsock_rx_pump(struct vsock_rx *rx, struct vsock_conn *c);

/* The guest gave buffers: go on with what waits. */
void vsock_rx_kick(struct vsock_rx *rx);

/* The connection waits no more. */
void vsock_rx_forget(struct vsock_rx *rx, struct vsock_conn *c);

#endif
