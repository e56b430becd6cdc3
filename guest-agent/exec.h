/*
 * One command from its start to its result. Owns its process, leaf, pipes, timers and ring;
 * exec_table.c creates and destroys execs, sessions attach to them as peers and read the
 * ring. An exec knows no session and no frame.
 *
 *              spawn failed ─────────────────────────────────────────────┐
 *             │                                                          ▼
 *   STARTING ─┴─► RUNNING ──reaped──► DRAINING ──drained──► CLEARING ─► FINISHED
 *
 * RUNNING ends with the leader, or when it will not die. DRAINING reads what the pipes hold:
 * to their end, or while leftovers hold them until DRAIN_IDLE_MS of silence. CLEARING waits
 * for the leaf to be empty, when we ended the exec or its leftovers are to be killed.
 * Callbacks record facts; exec_step() alone assigns the state.
 */
#ifndef SANDGATE_EXEC_H
#define SANDGATE_EXEC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest-agent/exec_env.h"
#include "guest-agent/exec_request.h"
#include "guest-agent/ring.h"
#include "proto/sandgate.pb-c.h"

struct exec;

enum exec_state { EXEC_STARTING, EXEC_RUNNING, EXEC_DRAINING, EXEC_CLEARING, EXEC_FINISHED };

/* A session's hold on an exec, embedded in the session. The exec lives while it has peers. */
struct exec_peer {
	struct exec_peer *next;
	struct exec *exec; /* NULL: not attached */
	Sandgate__Role role;
	struct ring_cursor cursor;            /* of what was sent */
	void (*on_news)(struct exec_peer *p); /* started, output, room for stdin, or the end */
	void (*on_replaced)(
	    struct exec_peer *p); /* another owner took over; detached already */
};

/* Start it: `r` is taken over, also on failure. NULL: nothing was started. */
struct exec *exec_create(struct exec_env *env, struct exec_request *r, void *link,
                         struct err *e);
/* For a finished exec without peers. Its leftovers run on. */
void exec_destroy(struct exec *x);

/* `p` wants what follows `seq`, which is at most ring_end(). A second owner replaces the
 * first; one that stands by owns a running exec that has no owner. */
void exec_attach(struct exec *x, struct exec_peer *p, Sandgate__Role role, uint64_t seq);
/* `lost`: an owner went without having sent Cancel or seen the end. */
void exec_detach(struct exec_peer *p, bool lost);
/* The peer's cursor moved on. */
void exec_consumed(struct exec_peer *p);

/* exec_env.suspended was set, before the peers leave: a suspended owner holds the exec as if
 * it were attached and read nothing. */
void exec_suspend(struct exec *x);
/* It was cleared: owners are awaited from now on. */
void exec_resume(struct exec *x);
/* No owner will come any more: what on_disconnect says. */
void exec_disown(struct exec *x, Sandgate__CancelReason reason);

/* Cancel of the protocol; `grace` NULL is the exec's own. */
void exec_cancel(struct exec *x, Sandgate__CancelReason reason, const uint64_t *grace_ms);
/* Cancel{CLIENT_GONE} of `p`, owner or standby: from an owner whoever stands by takes over, or
 * on_disconnect applies. */
void exec_client_gone(struct exec_peer *p, const uint64_t *grace_ms);
/* To the leader or to all processes; reaching nobody is no error. */
int exec_signal(struct exec *x, int signal, bool all, struct err *e);
/* `data` is malloc'ed and taken over. `offset` NULL: at the end. */
int exec_stdin(struct exec *x, const uint64_t *offset, uint8_t *data, size_t n, struct err *e);
void exec_close_stdin(struct exec *x);
uint64_t exec_stdin_offset(const struct exec *x);
bool exec_stdin_closed(const struct exec *x); /* no more is taken */
bool exec_stdin_full(const struct exec *x);   /* over STDIN_WINDOW waits */
/* The output is not wanted any more: dropped at the end, once nobody reads it. */
void exec_release(struct exec *x, const Sandgate__Release *r);

enum exec_state exec_state(const struct exec *x);
const struct exec_request *exec_request(const struct exec *x);
struct ring *exec_ring(const struct exec *x);
bool exec_was_started(const struct exec *x);
uint64_t exec_started_at(const struct exec *x);            /* wall clock, ms */
const Sandgate__Result *exec_result(const struct exec *x); /* NULL while it runs */
/* `s` points into `x`, until the loop runs on. */
void exec_describe(const struct exec *x, Sandgate__ExecState *s);
bool exec_has_peers(const struct exec *x);
bool exec_owns_pid(const struct exec *x, pid_t pid);
uint64_t exec_cpu_us(struct exec *x);

#endif
