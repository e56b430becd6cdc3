/*
 * A link: the bridge's end of one session with an agent. Connects through a transport,
 * sends Open, hands frames over, closes. It knows nothing of HTTP or of what an operation
 * means. What arrives is attacker input: lengths are checked before anything is
 * buffered, messages that do not unpack or come out of order end the link.
 *
 *   CONNECTING ─► READY ─ link_open ─► OPENING ─ Opened ─► OPEN
 *   READY, where a spare rests ─ peer gone ─► ENDED ─ link_open ─► CONNECTING
 *   OPENING ─ peer gone before it had the whole Open ─► CONNECTING
 *   any, with handlers ─ error, peer gone, deadline ─► on_closed (once), the link is gone
 *   any ─ link_destroy with `flush` ─► LINGERING, till what is queued was sent
 *
 * Ownership: the owner holds the pointer until on_closed was called or it calls
 * link_destroy; after either it is gone. No handler is called from inside link_create,
 * link_open or link_send.
 */
#ifndef SANDGATE_LINK_H
#define SANDGATE_LINK_H

#include <ev.h>
#include <stdbool.h>

#include "host-bridge/link/link_gate.h"
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
	 * time (ERR_UNREACHABLE; ERR_CAPACITY for want of a descriptor), no answer
	 * (ERR_TIMEOUT), garbage (ERR_PROTOCOL), other version (ERR_INCOMPATIBLE). `sent` says
	 * whether Open may have reached the agent. `refused` is the frame when the code came
	 * from it, else NULL. */
	void (*on_closed)(struct link *l, const struct err *why, bool sent,
	                  const Sandgate__Refused *refused, void *owner);
	/* Unsent bytes fell under the low watermark after link_send returned 1. May be NULL. */
	void (*on_room)(struct link *l, void *owner);
};

/* Start connecting, and try again with backoff until deadline_ms is over: the guest may still
 * be booting. NULL with err only when nothing could be started. The handlers are given
 * later, by link_open. `to` outlives the link and is read at each try: it may
 * change meanwhile. */
struct link *link_create(struct ev_loop *loop, const struct endpoint *to, unsigned deadline_ms,
                         struct err *e);
/* The same, but wait in line until the gate has room, or end with ERR_QUOTA_EXCEEDED. It counts
 * from its first connect on until it is closed, not while it lingers. */
struct link *link_create_behind(struct link_gate *g, bool urgent, struct ev_loop *loop,
                                const struct endpoint *to, unsigned deadline_ms, struct err *e);
/* Count one that was made without a gate. False: there is no room. */
bool link_enter(struct link *l, struct link_gate *g, bool urgent);
/* The operation of this session; sent as soon as the link is READY. `open` is packed here,
 * version and token are filled in. Opened is due within deadline_ms. A link that turns out
 * dead before the whole Open was handed to the kernel connects again within that time; an
 * Open that may have arrived is never sent twice. ERR_TOO_LARGE over FRAME_MAX_TO_GUEST. */
int link_open(struct link *l, Sandgate__Open *open, unsigned deadline_ms,
              const struct link_handlers *h, void *owner, struct err *e);
/* Before link_open: its Open does no harm when it arrives more than once. Where a connection is
 * lost or nothing comes of it for CONNECT_TRY_MS (then for twice as long, and so on) before
 * Opened, the link connects and sends Open again, within link_open's deadline: what a VMM may
 * do to the first connections of a guest that was just restored. */
void link_insist(struct link *l);
/* Another frame, after link_open. 0; 1 when over LINK_HIGH_WATER (queued all the same);
 * -1 only when memory fails. */
int link_send(struct link *l, const Sandgate__HostFrame *f);
/* After Opened: another frame is due within that time, or the link ends with ERR_TIMEOUT;
 * 0: none is. While paused the time does not run, and starts anew afterwards. */
void link_expect(struct link *l, unsigned deadline_ms);
/* Back-pressure: stop and go on reading frames. A hang-up is told at once when nothing is
 * left to read, else after the last frame has been taken. */
void link_pause(struct link *l);
void link_resume(struct link *l);
/* It waits until it may connect: nothing has been sent. */
bool link_is_in_line(const struct link *l);
/* READY, and the peer has not hung up: usable as a spare. */
bool link_is_ready(const struct link *l);
/* Hear, once, that the link ended before link_open was called. on_end may destroy it. */
void link_watch(struct link *l, void (*on_end)(struct link *l, void *arg), void *arg);
/* Close; no on_closed. With `flush` what was queued (a Cancel must not be lost) goes out in
 * the background, and the guest is listened to until it hangs up: LINK_LINGER_MS at most. */
void link_destroy(struct link *l, bool flush);

#endif
