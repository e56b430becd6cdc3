/*
 * The inside of a session, for session.c (connection, input, the turn of the loop),
 * session_write.c (output), session_ops.c (operations), session_snapshot.c (Prepare, Resume)
 * and session_messages.c (what follows Open). Nobody else includes this.
 */
#ifndef SANDGATE_SESSION_PRIVATE_H
#define SANDGATE_SESSION_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "guest-agent/exec.h"
#include "guest-agent/outq.h"
#include "guest-agent/session.h"
#include "guest-agent/snapshot.h"
#include "proto/err.h"
#include "proto/sandgate.pb-c.h"

enum session_state { SESSION_IDLE, SESSION_OPENING, SESSION_SERVING, SESSION_CLOSING };

TAILQ_HEAD(session_list, session);

struct session_set {
	struct agent *agent;
	struct ev_loop *loop;
	struct session_list all;   /* oldest first */
	struct session_list dirty; /* have something to send, or to end */
	ev_prepare flush;          /* once a turn of the loop: one write a session */
	unsigned count, idle_count, followers;
};

struct session {
	struct session_set *set;
	TAILQ_ENTRY(session) in_all, in_dirty;
	enum session_state state;
	uint64_t born_ms; /* monotonic */
	ev_io readable, writable;
	ev_timer timer; /* OPENING: the deadline of Open; SERVING: the end of `holds` */
	uint8_t *in;
	size_t in_len, in_room;
	struct outq out;

	struct exec_peer peer;
	bool is_dirty, broken;
	bool holds;      /* do not write yet: Started, output or Exit may follow at once */
	bool existing;   /* Started says so */
	bool only_start; /* a detached exec: the session ends with Started */
	bool watches_shutdown;
	bool follows;                    /* is told which execs end */
	struct snapshot_waiter snapshot; /* Prepare and Resume */
	bool started_sent, exit_sent;
	bool stalled;       /* a frame waits in `in` for StdinAck to leave first */
	unsigned acks_owed; /* StdinAck that wait for room in the process's input */
	bool cancel_seen;   /* the host said why it goes */
};

/* ---- session.c ---- */

/* Something changed: look at the session before the loop sleeps. */
void session_touch(struct session *s);
/* Queue one frame. Out of memory ends the session. */
void session_put(struct session *s, Sandgate__GuestFrame *g);
/* Queue Refused as the last frame. */
void session_refuse(struct session *s, const struct err *e, const uint64_t *offset);
/* What was held back may leave. */
void session_unhold(struct session *s);
/* Nothing follows what is queued. */
void session_close_when_sent(struct session *s);

/* ---- session_write.c ---- */

/* One write of what there is; what the socket did not take stays. -1: it is broken. */
int session_write(struct session *s);
bool session_has_more(const struct session *s);

/* ---- session_ops.c ---- */

void session_ops_init(struct session *s);
void session_put_opened(struct session *s);
void session_put_stdin_ack(struct session *s);
void session_put_done(struct session *s);
void session_open(struct session *s, Sandgate__Open *open);
/* Queue what the exec has for this session and is no output: Started, StdinAck. */
void session_pull(struct session *s);
/* Whether the output is sent to its end, and Exit may follow. */
bool session_wants_exit(const struct session *s, const struct ring_cursor *at);
void session_exit_frame(const struct session *s, Sandgate__GuestFrame *g, Sandgate__Exit *x);

/* ---- session_snapshot.c ---- */

int session_prepare(struct session *s, struct err *e);
int session_resume(struct session *s, const Sandgate__Resume *m, struct err *e);
/* An exec session ends here: its host attaches again where it got to. */
void session_suspend(struct session *s);

/* ---- session_messages.c ---- */

/* False: not yet, offer the frame again once no ack is owed. */
bool session_message(struct session *s, Sandgate__HostFrame *h);

#endif
