/*
 * The switch between host clients and the guest: obeys the guest's packets, runs the host
 * clients' sockets, and owns the connections. Called by vsock_device (kicks, new clients)
 * and fuzzers. It opens no listening socket and knows no vhost-user message.
 *
 * A host client's half-close counts as its going, as in Firecracker.
 */
#ifndef SANDGATE_VSOCK_MUX_H
#define SANDGATE_VSOCK_MUX_H

#include "host-bridge/device/vsock_rx.h"

struct vsock_mux;

/* `uds` is the hybrid socket's path: a guest that connects to port P is connected to
 * `<uds>_<P>`. It must outlive the mux. NULL when memory fails. */
struct vsock_mux *vsock_mux_create(struct ev_loop *loop, uint64_t guest_cid, const char *uds);
/* Close every connection. */
void vsock_mux_destroy(struct vsock_mux *m);

/* The VMM that the rings belong to; NULL when it goes. */
void vsock_mux_set_vmm(struct vsock_mux *m, struct vhost_user *vmm);

/* A host client, taken over: it is about to send its CONNECT line. */
void vsock_mux_accept(struct vsock_mux *m, int fd);

/* Obey packets of the guest. */
enum vsock_mux_tx {
	TX_EMPTY, /* all obeyed; a kick comes with the next */
	TX_MORE,  /* the budget is spent: call again */
	TX_BUSY,  /* what they cause has no room: call again after vsock_mux_rx_kick */
};
enum vsock_mux_tx vsock_mux_tx_kick(struct vsock_mux *m);

/* The guest gave receive buffers. True: packets may be obeyed again after TX_BUSY. */
bool vsock_mux_rx_kick(struct vsock_mux *m);

/* The guest's driver starts from nothing: what it knew of is gone. */
void vsock_mux_guest_reset(struct vsock_mux *m);

/* Connections, for the log. */
unsigned vsock_mux_connections(const struct vsock_mux *m);

#endif
