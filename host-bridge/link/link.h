/*
 * A link: the bridge's end of one session with an agent. Connects through a transport,
 * sends Open, hands frames over, closes. It knows nothing of HTTP or of what an operation
 * means. What arrives is attacker input: lengths are checked before anything is
 * buffered, messages that do not unpack or come out of order end the link.
 *
 *   link_create ─► CONNECTING ─► READY (a spare rests here) ─ link_open ─► OPENING ─ Opened ─►
 * OPEN any state ─ error, peer gone, deadline ─► on_closed (once), link is then destroyed
 *
 * Ownership: the owner holds the pointer until on_closed was called or it calls
 * link_destroy; after either it is gone. No handler is called from inside link_create,
 * link_open or link_send.
 */
#ifndef SANDGATE_LINK_H
#define SANDGATE_LINK_H

#include <ev.h>
#include <stdbool.h>

#include "host-bridge/link/transport.h"
#include "proto/err.h"
#include "proto/sandgate.pb-c.h"

struct link;

struct link_handlers {
	/* Opened arrived. May be NULL. */
	void (*on_opened)(struct link *l, const Sandgate__Opened *o, void *owner);
	/* Any frame after Opened but Refused; freed after the call. May destroy the link. */
	void (*on_frame)(struct link *l, const Sandgate__GuestFrame *f, void *owner);
	/* The end, once: Refused (its code), peer gone (ERR_SANDBOX_LOST), no connection in
	 * time (ERR_UNREACHABLE), no answer (ERR_TIMEOUT), garbage (ERR_PROTOCOL), other
	 * version (ERR_INCOMPATIBLE). `sent` says whether Open may have reached the agent.
	 * `refused` is the frame when the code came from it, else NULL. */
	void (*on_closed)(struct link *l, const struct err *why, bool sent,
	                  const Sandgate__Refused *refused, void *owner);
	/* Unsent bytes fell under the low watermark after link_send returned 1. May be NULL. */
	void (*on_room)(struct link *l, void *owner);
};

/* Start connecting. Tries again with backoff until CONNECT_DEADLINE_MS when `starting` (the
 * guest may still be booting: the caller's own deadline governs then, pass deadline_ms).
 * NULL with err only when nothing could be started. The handlers may be given later, by
 * link_open, for a link that rests READY. */
struct link *link_create(struct ev_loop *loop, const struct endpoint *to, unsigned deadline_ms,
                         struct err *e);
/* The operation of this session; sent as soon as the link is READY. `open` is packed here,
 * version and token are filled in. Answer due within deadline_ms. */
int link_open(struct link *l, Sandgate__Open *open, unsigned deadline_ms,
              const struct link_handlers *h, void *owner, struct err *e);
/* Another frame, after link_open. 0; 1 when over the high watermark (queued all the
 * same); -1 only when memory fails. */
int link_send(struct link *l, const Sandgate__HostFrame *f);
/* Back-pressure: stop and go on reading frames. A hang-up is noticed all the same. */
void link_pause(struct link *l);
void link_resume(struct link *l);
/* READY, and the peer has not hung up: usable as a spare. */
bool link_is_ready(const struct link *l);
/* Close; what was queued is flushed as far as the socket takes it at once (a Cancel must
 * not be lost: `flush` lingers up to a second in the background). No on_closed. */
void link_destroy(struct link *l, bool flush);

#endif
