/*
 * A request that changes a sandbox (saves, stops, wakes it) and waits for that. It outlives the
 * request when the client leaves first: the change is made all the same. Handlers make one, and
 * pass it to the sandbox as the argument of their callback, which ends it.
 */
#ifndef SANDGATE_TURN_H
#define SANDGATE_TURN_H

#include "host-bridge/api/api.h"

struct turn {
	struct api_request *r; /* NULL: gone */
};

/* NULL: the request has been answered. */
struct turn *turn_create(struct api_request *r);
/* One of these ends it. `doc` is decref'd. */
void turn_fail(struct turn *t, const struct err *e);
void turn_reply(struct turn *t, int status, json_t *doc);

/* Begin a change that takes no arguments, of the sandbox that the path names. */
void turn_begin(struct api_request *r,
                int (*begin)(struct sandbox *s, sandbox_changed *on_done, void *arg,
                             struct err *e),
                sandbox_changed *on_done);

#endif
