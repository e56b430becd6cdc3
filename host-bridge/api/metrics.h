/*
 * Counters of this process and their Prometheus text. Handlers count; api_node.c prints.
 * No label names a sandbox, a token or a workspace.
 */
#ifndef SANDGATE_METRICS_H
#define SANDGATE_METRICS_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/sandgate.pb-c.h"

struct metrics;

/* What is read off the parts at the time of asking. */
struct metrics_gauges {
	size_t connections, requests, sandboxes, calls, buffered, watchers;
	bool draining;
};

struct metrics *metrics_create(void);
void metrics_destroy(struct metrics *m);

void metrics_request(struct metrics *m, int status);
/* An exec that this bridge started and saw the end of; seconds from request to result. */
void metrics_exec(struct metrics *m, Sandgate__Outcome outcome, double seconds);
/* One that ended in an error instead of a result. */
void metrics_exec_failed(struct metrics *m);
/* A sandbox became ready, or did not. */
void metrics_sandbox(struct metrics *m, bool ready, double seconds);

/* Prometheus text format 0.0.4, malloc'd; NULL when memory fails. */
char *metrics_text(const struct metrics *m, const struct metrics_gauges *g, size_t *len);

#endif
