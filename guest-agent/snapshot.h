/*
 * Before and after a snapshot: Prepare brings the agent to rest, Resume sets it going again,
 * in the guest that was copied or in a copy. Holds what tells the guests apart, and decides
 * whether work is taken. session_snapshot.c asks on behalf of hosts; what a Resume does to
 * the machine is renew.h's.
 *
 *             Prepare                 at rest
 *   WORKING ───────────► PREPARING ───────────► PREPARED ──┐
 *      ▲                     │                     │       │ nothing heard:
 *      │    carried out      ▼       Resume        ▼       │ go on as before
 *      └───────────────── RESUMING ◄───────────────┘       │
 *      ▲                                                   │
 *      └───────────────────────────────────────────────────┘
 *
 * A Resume is carried out in WORKING, too. One that must be refused goes back to where it
 * came from.
 */
#ifndef SANDGATE_SNAPSHOT_H
#define SANDGATE_SNAPSHOT_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "guest-agent/config.h"
#include "guest-agent/exec_table.h"
#include "guest-agent/session.h"
#include "guest-agent/workers.h"
#include "proto/sandgate.pb-c.h"

struct snapshot;

/* Embedded in a session that waits for the answer. */
struct snapshot_waiter {
	LIST_ENTRY(snapshot_waiter) link;
	/* From the loop, once; `e` is NULL when it was carried out. */
	void (*on_done)(struct snapshot_waiter *w, const struct err *e);
	bool waits;
};

/* Everything stays the caller's and outlives it; clones add to the config's environment.
 * NULL: no memory, no random bytes. */
struct snapshot *snapshot_create(struct ev_loop *loop, struct config *config,
                                 struct exec_table *table, struct session_set *sessions,
                                 struct workers *workers, struct err *e);
void snapshot_destroy(struct snapshot *sn);

/* Whether new work is taken. */
bool snapshot_takes_work(const struct snapshot *sn);
uint64_t snapshot_generation(const struct snapshot *sn);
const uint8_t *snapshot_instance(const struct snapshot *sn); /* RENEW_ID_SIZE bytes */
/* Whether `pid` is a child that is still waited for. */
bool snapshot_owns(const struct snapshot *sn, pid_t pid);

/* Begin, or join one that is under way; `w` is told later. ERR_INVALID_STATE, and what
 * renewal_parse() refuses: nothing was done. */
int snapshot_prepare(struct snapshot *sn, struct snapshot_waiter *w, struct err *e);
int snapshot_resume(struct snapshot *sn, const Sandgate__Resume *m, struct snapshot_waiter *w,
                    struct err *e);
/* `w` goes, if it waits. */
void snapshot_leave(struct snapshot_waiter *w);

/* The answers; arrays stay the snapshot's. */
void snapshot_fill_prepared(const struct snapshot *sn, Sandgate__Prepared *p);
void snapshot_fill_resumed(struct snapshot *sn, Sandgate__Resumed *r);

#endif
