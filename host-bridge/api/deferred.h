/*
 * The reply to a request that has begun an operation on a sandbox (to save it, stop it, delete
 * it): it is given when that is done. When the client leaves first the operation goes on all
 * the same, and this outlives the request. Handlers make one and pass it to the sandbox as the
 * argument of their callback, which ends it.
 */
#ifndef SANDGATE_DEFERRED_H
#define SANDGATE_DEFERRED_H

#include "host-bridge/api/api.h"

struct deferred {
	struct api_request *r; /* NULL: gone */
};

/* NULL: the request has been answered. */
struct deferred *deferred_create(struct api_request *r);
/* Free it and give the request back, for its reply; NULL when the client has left. */
struct api_request *deferred_end(struct deferred *d);
/* The same, and this is the reply. `doc` is decref'd. */
void deferred_fail(struct deferred *d, const struct err *e);
void deferred_reply(struct deferred *d, int status, json_t *doc);

/* Begin an operation that takes no arguments, on the sandbox that the path names. */
void deferred_begin(struct api_request *r,
                    int (*begin)(struct sandbox *s, sandbox_done *on_done, void *arg,
                                 struct err *e),
                    sandbox_done *on_done);

#endif
