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
/* Each exec that this bridge started is counted once: with its result (seconds from request to
 * result), or by why the bridge has not seen that. What was refused is none. */
void metrics_exec(struct metrics *m, Sandgate__Outcome outcome, double seconds);
enum metrics_unseen { UNSEEN_ERROR, UNSEEN_DETACHED, UNSEEN_CLIENT_GONE };
void metrics_exec_unseen(struct metrics *m, enum metrics_unseen why);
/* A sandbox became ready, or did not though there was nothing wrong with the request. */
void metrics_sandbox(struct metrics *m, bool ready, double seconds);

/* Prometheus text format 0.0.4, malloc'd; NULL when memory fails. */
char *metrics_text(const struct metrics *m, const struct metrics_gauges *g, size_t *len);

#endif
