/*
 * One connection from the host, serving one operation: frames in, frames out, and for exec
 * operations a peer of an exec. Owns its descriptor and buffers; agent.c hands connections
 * in, session_ops.c carries out what they ask. It never waits for a slow host: what the
 * socket does not take stays in the exec's ring.
 *
 *   IDLE ──first byte──► OPENING ──Open──► SERVING ──last frame──► CLOSING ──sent──► gone
 *
 * From any state the host's close, a broken socket or a failed allocation ends it.
 */
#ifndef SANDGATE_SESSION_H
#define SANDGATE_SESSION_H

#include <ev.h>

struct agent;
struct session_set;

/* All sessions of one agent. NULL: out of memory. */
struct session_set *session_set_create(struct agent *a, struct ev_loop *loop);
/* Closes every session. */
void session_set_destroy(struct session_set *set);
unsigned session_set_count(const struct session_set *set);

/* Tell the sessions that follow; `set` is a struct session_set. */
struct exec;
void session_set_exec_ended(const struct exec *x, void *set);

/* Before a snapshot: exec sessions end with Suspended, those without Open at once. */
void session_set_suspend(struct session_set *set);
/* How many have yet to send their last frames, and an end to waiting for that. */
unsigned session_set_leaving(const struct session_set *set);
void session_set_close_leaving(struct session_set *set);
/* After a snapshot: those whose socket has ended go, be they read or not. */
void session_set_close_dead(struct session_set *set);

/* Serve the connected, non-blocking `fd`, which is taken over in every case. */
void session_create(struct session_set *set, int fd);

#endif
