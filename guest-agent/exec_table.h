/*
 * All execs of one agent, by id: idempotent start, retention of results, tombstones of ids
 * that must not start any more, and the common bound of retained output. Sessions ask it;
 * it alone creates and destroys execs. It never touches a process itself.
 */
#ifndef SANDGATE_EXEC_TABLE_H
#define SANDGATE_EXEC_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "guest-agent/exec.h"
#include "proto/sandgate.pb-c.h"

struct exec_table;

/* What the execs run with; `budget_bytes` bounds the output of all of them together.
 * Everything stays the caller's. NULL: out of memory. */
struct exec_table *exec_table_create(struct ev_loop *loop, const struct config *config,
                                     struct idle *idle, struct cgroup_tree *tree,
                                     struct spawner *spawner, struct workers *pipe_workers,
                                     uint64_t budget_bytes, struct err *e);
/* Only when nothing runs and no session is attached. */
void exec_table_destroy(struct exec_table *t);

/* For tests that must start no process: see exec_env.h. */
struct exec_env *exec_table_env(struct exec_table *t);

/* Start what `m` asks for, or find the exec of that id whose request_digest is equal: then
 * *existing is set. `m` loses its stdin bytes. ERR_EXEC_ID_CONFLICT: the id is another
 * request's, or was forgotten; ERR_QUOTA_EXCEEDED; what exec_request_parse() refuses. */
struct exec *exec_table_start(struct exec_table *t, Sandgate__Exec *m, bool *existing,
                              struct err *e);
/* ERR_EXEC_NOT_FOUND, ERR_INVALID_FIELD. */
struct exec *exec_table_find(struct exec_table *t, const char *id, struct err *e);
/* Kill it with its leftovers, drop its result, and refuse its id for TOMBSTONE_S; the same
 * for an id that was never seen. */
int exec_table_forget(struct exec_table *t, const char *id, struct err *e);

/* Hear of each exec that has ended. */
void exec_table_on_end(struct exec_table *t, void (*on_end)(const struct exec *x, void *arg),
                       void *arg);

/* Start nothing any more and cancel what runs (CANCEL_SHUTDOWN); on_idle once, from the
 * loop, when the last exec is finished. */
void exec_table_shutdown(struct exec_table *t, uint64_t grace_ms, void (*on_idle)(void *arg),
                         void *arg);

bool exec_table_is_stopping(const struct exec_table *t);

/* Before a snapshot, before the sessions are: see exec_suspend(). */
void exec_table_suspend(struct exec_table *t);
/* Go on. In a clone no owner comes back (CANCEL_FORKED), and results and tombstones, which
 * are another guest's, are dropped. */
void exec_table_resume(struct exec_table *t, bool clone);

/* Every known exec, running ones first. */
void exec_table_each(struct exec_table *t, void (*visit)(struct exec *x, void *arg), void *arg);

struct exec_table_counts {
	unsigned running, retained;
	uint64_t retained_bytes, cpu_us;
};
struct exec_table_counts exec_table_counts(struct exec_table *t);
/* Whether `pid` is a leader that its exec still waits for. */
bool exec_table_owns_pid(const struct exec_table *t, pid_t pid);

#endif
