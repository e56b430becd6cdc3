/*
 * One session with the agent of a running sandbox, as calls, hubs and control requests
 * use it: takes a link, sends Open, hears of the sandbox's end. It adds nothing to what is
 * said in the session and never repeats anything. What the agent says is checked here: a
 * frame that does not fit ends the session, and so does an owed answer that does not come
 * within ANSWER_DEADLINE_S or STARTED_DEADLINE_S.
 *
 * Embedded in its owner. Open from dial_open until on_end was called or dial_close.
 */
#ifndef SANDGATE_DIAL_H
#define SANDGATE_DIAL_H

#include "host-bridge/link/link.h"
#include "host-bridge/sandbox/sandbox.h"

struct dial;

/* How a session ended by itself. */
struct dial_end {
	struct err err;
	bool sent;      /* the Open may have reached the agent */
	bool opened;    /* it has accepted it */
	bool refused;   /* err is the agent's own word: the operation was not done */
	bool suspended; /* the agent ended the session for a snapshot: the same may be asked
	                 * again at once, and is sent when the guest goes on */
	bool has_offset;
	uint64_t offset; /* Refused.offset */
};

struct dial_handlers {
	void (*on_frame)(struct dial *d, const Sandgate__GuestFrame *f);
	/* Once; the dial is closed already and may be opened again. */
	void (*on_end)(struct dial *d, const struct dial_end *end);
	/* The sandbox is being ended on purpose: say something to the agent and wait, for a
	 * moment, for its last frame. on_end follows; at once when this is NULL, or the link
	 * is in line still. */
	void (*on_going)(struct dial *d, Sandgate__CancelReason reason);
};

struct dial {
	const struct dial_handlers *handlers;
	struct link *link;
	struct sandbox *sandbox;
	struct sandbox_listener listener;
	Sandgate__CancelReason going; /* why the sandbox ends, or CANCEL_NONE */
	bool follows, opened;
	bool lingers;  /* a Cancel was sent: it must arrive */
	uint64_t next; /* sequence number of the next byte of output */
};

enum dial_kind {
	DIAL_ASKS,   /* each frame sent, and each one received, is to be followed by another */
	DIAL_ENDS,   /* the same, and it is to end something: it gets a link when others wait */
	DIAL_FOLLOWS /* an exec: keeps the sandbox from idling out, is owed Started and nothing
	              * after it, since an exec may be silent */
};

/* Start a session. */
int dial_open(struct dial *d, struct sandbox *s, Sandgate__Open *open, enum dial_kind kind,
              const struct dial_handlers *h, struct err *e);
/* It is no activity, and ends with ERR_TIMEOUT when the sandbox is to be saved or stopped. */
void dial_yield(struct dial *d);
/* All is answered: nothing is owed until the next frame is sent. */
void dial_rest(struct dial *d);
/* Let go: no handler is called any more. A Cancel still arrives. Harmless when closed. */
void dial_close(struct dial *d);

/* Send one frame. */
void dial_cancel(struct dial *d, Sandgate__CancelReason reason, const uint64_t *grace_ms);
/* `cut`: of which streams not all was passed on. */
void dial_release(struct dial *d, const bool cut[2]);
void dial_signal(struct dial *d, uint32_t number, bool all);
void dial_stdin(struct dial *d, const uint64_t *offset, const void *data, size_t len);
void dial_close_stdin(struct dial *d);

#endif
