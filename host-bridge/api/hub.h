/*
 * Watchers of one exec share one output session with its agent. A hub is such a session:
 * it renders each event once and writes it to all its watchers. It never holds the process
 * back: a watcher that is slow misses bytes and gets a `gap` instead.
 *
 * Each watcher that wants a replay starts with a hub of its own; hubs of one exec that have
 * come to the same place merge, so that idle watchers cost one session together.
 *
 *   asking ExecInfo ──► 204, 404, 400, or attached ──► events ──► exit or error, gone
 */
#ifndef SANDGATE_HUB_H
#define SANDGATE_HUB_H

#include <stddef.h>

#include "host-bridge/api/api.h"

struct hub_set;

struct hub_set *hub_set_create(void);
void hub_set_destroy(struct hub_set *set);
size_t hub_set_watchers(const struct hub_set *set);
/* The end of draining: every stream ends with bridge.draining. */
void hub_set_suspend(struct hub_set *set);

/*
 * Stream the exec `exec_id` to the request from the event id number `after` on (0: from the
 * oldest retained byte). The number of the terminal event gets 204. Everything, failures
 * included, is the request's reply.
 */
void hub_watch(struct api_request *r, struct sandbox *s, const char *exec_id, uint64_t after,
               bool base64);

#endif
