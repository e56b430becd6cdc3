/*
 * What happens to the sandboxes of this node, in order: the last EVENTS_KEPT events, each with
 * a number. Sandboxes and calls add to it; streams of the API read it, each at its own pace,
 * and are told when there is more. It is forgotten with the process.
 */
#ifndef SANDGATE_EVENT_LOG_H
#define SANDGATE_EVENT_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/limits.h"

struct event_log;

struct event {
	const char *type;   /* literal: "running", "exec_ended", … */
	const char *detail; /* literal: an outcome or a reason; or NULL */
	int64_t at_ms;      /* wall clock */
	char sandbox_id[128], workspace[64];
	char exec_id[EXEC_ID_MAX + 1]; /* "" when it is about no exec */
};

struct event_listener {
	LIST_ENTRY(event_listener) entry;
	void (*on_event)(struct event_listener *l); /* there is more to read */
	void (*on_end)(struct event_listener *l);   /* there will be no more: unlisten */
};

struct event_log *event_log_create(void); /* NULL: out of memory */
void event_log_destroy(struct event_log *log);

/* Tell all listeners that this is the end; more may be added all the same. */
void event_log_end(struct event_log *log);

/* Copied. Its listeners are told from inside. */
void event_log_add(struct event_log *log, const struct event *e);
/* The number of the next one to come; the first that is still kept. */
uint64_t event_log_next(const struct event_log *log);
uint64_t event_log_first(const struct event_log *log);
/* NULL: not kept any more, or not there yet. */
const struct event *event_log_at(const struct event_log *log, uint64_t number);
/* Random, of this log: numbers of another process's are not this one's. */
uint64_t event_log_epoch(const struct event_log *log);

void event_log_listen(struct event_log *log, struct event_listener *l);
void event_log_unlisten(struct event_listener *l);

#endif
