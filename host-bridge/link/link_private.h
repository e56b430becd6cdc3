/*
 * What the files of a link share: link.c (its life and deadlines), link_connect.c, link_write.c
 * (what is sent) and link_read.c (what the guest says). Nobody else includes this.
 */
#ifndef SANDGATE_LINK_PRIVATE_H
#define SANDGATE_LINK_PRIVATE_H

#include "host-bridge/link/link.h"
#include "host-bridge/link/link_buf.h"
#include "proto/limits.h"

/* Bytes read, and written, in one turn of the loop. */
#define LINK_TURN_MAX (64 * KIB)

enum link_state { CONNECTING, READY, OPENING, OPEN, ENDED, LINGERING };

struct link {
	struct ev_loop *loop;
	const struct endpoint *to; /* the creator's */
	enum link_state state;
	int fd;
	ev_io io;
	struct transport_try *connecting;
	ev_timer kick;      /* CONNECTING: the next try; else: parse what is buffered */
	ev_timer due;       /* of the connection, of Opened, of lingering */
	double connect_due; /* monotonic seconds */
	double answer_due;  /* likewise; 0: no answer is due */
	double still;       /* link_gate_still() that they take account of */
	unsigned connect_ms, open_ms; /* what the two are set to */
	unsigned expect_ms;           /* OPEN: what answer_due was set to, for after a pause */
	unsigned backoff_ms;          /* before the next try */
	bool insists;                 /* Open may be sent again until Opened has come … */
	unsigned try_ms;              /* … after so long, */
	double try_due;               /* which is at that time */
	struct err last;              /* why the last try failed */

	struct link_buf in, out;
	size_t open_size; /* bytes at the front of `out` that are Open, while it is not sent */
	bool sent;        /* the kernel took the whole Open */
	bool write_dead;  /* writing failed; what the peer said before is still read */
	bool lacks;       /* it could not be told something, for want of memory: it ends soon */
	bool room_wanted;
	bool paused;
	bool data_waits; /* paused, and the socket has bytes: no use in watching it */

	struct link_pass pass;
	double queued_at, turn_due; /* while it waits in line: since, and patient until then */

	unsigned calls; /* depth of handler calls: memory is not freed under them */
	bool doomed;
	const struct link_handlers *handlers; /* NULL before link_open, and when lingering */
	struct link_handlers handlers_copy;
	void *owner;
	void (*on_end)(struct link *l, void *arg);
	void *on_end_arg;
};

/* link.c. Those that may free the link say so. */
void link_timer_in(struct link *l, ev_timer *w, double seconds);
void link_update_due(struct link *l); /* which deadline counts */
/* The guest stood still: put the deadlines off by as much. False: it did not. Before one of
 * them is set anew. */
bool link_put_off(struct link *l);
void link_update_io(struct link *l);  /* what the descriptor is watched for */
bool link_held(const struct link *l); /* paused, and past Opened */
bool link_frame_waits(const struct link *l);
void link_free(struct link *l);
void link_end(struct link *l, const struct err *why,
              const Sandgate__Refused *refused);                         /* may */
void link_end_with(struct link *l, enum err_code code, const char *msg); /* may */
void link_peer_gone(struct link *l);                                     /* may */

/* link_connect.c */
void link_connect(struct link *l);       /* as soon as the gate has room */
void link_connect_later(struct link *l); /* after the backoff */
void link_turn_late(struct link *l);     /* turn_due is over; may free the link */

/* link_write.c */
int link_queue(struct link *l, const Sandgate__HostFrame *f); /* -1 only when memory fails */
void link_flush(struct link *l);                              /* as much as the socket takes */
bool link_writable(struct link *l); /* the socket takes more. False: the link is gone */
void link_send_open(struct link *l);

/* link_read.c: each may free the link. */
void link_parse(struct link *l);    /* hand over the whole frames in `in` */
void link_readable(struct link *l); /* the socket has bytes, or its end */
void link_discard(struct link *l);  /* likewise, when nobody wants them */

#endif
