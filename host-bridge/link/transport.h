/*
 * How a link reaches a guest: an endpoint's description, and a connected, non-blocking
 * descriptor out of it. Three transports: `hybrid` (a Unix socket and the CONNECT
 * handshake), `vsock` (AF_VSOCK), `unix` (a local agent's own socket). link_connect.c calls
 * it. It makes one try; it never tries again and never sends a byte of the protocol.
 */
#ifndef SANDGATE_TRANSPORT_H
#define SANDGATE_TRANSPORT_H

#include <ev.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

enum transport_kind { TRANSPORT_HYBRID, TRANSPORT_VSOCK, TRANSPORT_UNIX };

struct endpoint {
	enum transport_kind kind;
	char path[108];  /* hybrid, unix */
	uint32_t cid;    /* vsock */
	uint32_t port;   /* hybrid, vsock */
	char token[128]; /* the agent's, or "" */
};

struct transport_try;

/* One try to connect, with its handshake. `on_done` comes once, never inside this call: an fd
 * that is now the receiver's, with the bytes that came behind the handshake's line (a guest may
 * speak at once), or fd -1 and err: ERR_UNREACHABLE, ERR_CAPACITY when this process has no
 * descriptor for it, or ERR_PROTOCOL when what answered does not speak the handshake. The try
 * is gone when on_done is called. */
struct transport_try *
transport_connect(struct ev_loop *loop, const struct endpoint *to, unsigned deadline_ms,
                  void (*on_done)(int fd, const uint8_t *early, size_t early_len,
                                  const struct err *e, void *arg),
                  void *arg, struct err *e);
/* Give the try up: no on_done. */
void transport_cancel(struct transport_try *t);

#endif
