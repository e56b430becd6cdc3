#include "host-bridge/sandbox/event_log.h"

#include <stdlib.h>
#include <sys/random.h>

struct event_log {
	uint64_t epoch, next; /* numbers start at 1 */
	LIST_HEAD(, event_listener) listeners;
	struct event ring[EVENTS_KEPT];
};

struct event_log *event_log_create(void)
{
	struct event_log *log = calloc(1, sizeof(*log));
	if (log == NULL)
		return NULL;
	if (getrandom(&log->epoch, sizeof(log->epoch), 0) != sizeof(log->epoch)) {
		free(log);
		return NULL;
	}
	log->next = 1;
	return log;
}

void event_log_destroy(struct event_log *log)
{
	free(log);
}

void event_log_add(struct event_log *log, const struct event *e)
{
	struct event_listener *l, *after;
	log->ring[log->next++ % EVENTS_KEPT] = *e;
	for (l = LIST_FIRST(&log->listeners); l != NULL; l = after) {
		after = LIST_NEXT(l, entry);
		l->on_event(l);
	}
}

void event_log_end(struct event_log *log)
{
	struct event_listener *l;
	while ((l = LIST_FIRST(&log->listeners)) != NULL)
		l->on_end(l);
}

uint64_t event_log_next(const struct event_log *log)
{
	return log->next;
}

uint64_t event_log_first(const struct event_log *log)
{
	return log->next > EVENTS_KEPT ? log->next - EVENTS_KEPT : 1;
}

const struct event *event_log_at(const struct event_log *log, uint64_t number)
{
	if (number < event_log_first(log) || number >= log->next)
		return NULL;
	return &log->ring[number % EVENTS_KEPT];
}

uint64_t event_log_epoch(const struct event_log *log)
{
	return log->epoch;
}

void event_log_listen(struct event_log *log, struct event_listener *l)
{
	LIST_INSERT_HEAD(&log->listeners, l, entry);
}

void event_log_unlisten(struct event_listener *l)
{
	LIST_REMOVE(l, entry);
}
