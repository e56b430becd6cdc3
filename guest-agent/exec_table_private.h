/*
 * What exec_table.c and exec_retain.c share: the execs of an agent by their ids, and the ids
 * that must not start any more.
 */
#ifndef SANDGATE_EXEC_TABLE_PRIVATE_H
#define SANDGATE_EXEC_TABLE_PRIVATE_H

#include <ev.h>
#include <sys/queue.h>

#include "guest-agent/exec_table.h"
#include "proto/limits.h"

#define BUCKETS 1024u /* EXECS_RUNNING_MAX and RETAINED_RESULTS_MAX stay short chains */

/* An exec by its id, or a tombstone: an id that must not start. */
struct entry {
	LIST_ENTRY(entry) in_bucket; /* unless forgotten */
	TAILQ_ENTRY(entry) in_list;  /* running, finished or tombs */
	struct exec *exec;           /* NULL: a tombstone */
	bool finished, forgotten;
	uint64_t expires_ms; /* finished and tombstones, monotonic */
	char id[EXEC_ID_MAX + 1];
};

TAILQ_HEAD(entry_list, entry);

struct exec_table {
	struct exec_env env; /* first: the callbacks get it back */
	LIST_HEAD(, entry) buckets[BUCKETS];
	struct entry_list running, finished, tombs;
	unsigned running_count, finished_count, tomb_count;
	uint64_t cpu_us; /* of execs that are gone */
	ev_timer sweep;
	bool stopping;
	void (*on_idle)(void *arg);
	void *idle_arg;
	void (*on_end)(const struct exec *x, void *arg);
	void *end_arg;
};

/* ---- exec_retain.c: how long each is known ---- */

void retain_init(struct exec_table *t);
/* Drops what has ended; nothing runs. */
void retain_end(struct exec_table *t);
struct entry *retain_find(const struct exec_table *t, const char *id);
/* By its id, in no list yet. NULL: out of memory. */
struct entry *retain_create(struct exec_table *t, const char *id);
/* Nobody finds it by its id any more; it goes once it has ended and nobody reads it. */
void retain_forget(struct entry *n);
/* Until `expires_ms` a start with this id is refused, so that nothing runs twice. */
void retain_bury(struct exec_table *t, const char *id, uint64_t expires_ms);
void retain_drop_tombs(struct exec_table *t);
/* Freeing waits for the sweep, so that no caller loses an exec under its feet. */
void retain_sweep_in(struct exec_table *t, uint64_t ms);

#endif
