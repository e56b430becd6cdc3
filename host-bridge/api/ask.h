/*
 * One question that a request puts to its sandbox's agent: a session, or a few in a row,
 * whose answer becomes the reply. The handlers of exec control embed it; it owns the
 * request's callbacks and turns every failure into the reply.
 */
#ifndef SANDGATE_ASK_H
#define SANDGATE_ASK_H

#include "host-bridge/api/api.h"
#include "host-bridge/api/dial.h"

struct ask {
	struct api_request *r;
	struct sandbox *sandbox; /* valid while the dial is open */
	struct dial dial;
	enum dial_kind kind; /* of its sessions; DIAL_ASKS when ask_create returns */
	void (*on_frame)(struct ask *a, const Sandgate__GuestFrame *f);
	void (*on_free)(struct ask *a); /* what the owner holds besides; may be NULL */
};

/* Allocate `size` zeroed bytes that begin with a struct ask, tied to the request. NULL: the
 * request has been answered. */
void *ask_create(struct api_request *r, struct sandbox *s, size_t size);
/* The next session. A failure is the reply, and the ask is gone. */
void ask_open(struct ask *a, Sandgate__Open *open,
              void (*on_frame)(struct ask *a, const Sandgate__GuestFrame *f));
/* Ask for the state of the path's exec, or attach to it. */
void ask_exec_info(struct ask *a,
                   void (*on_frame)(struct ask *a, const Sandgate__GuestFrame *f));
void ask_attach(struct ask *a, Sandgate__Role role, uint64_t offset,
                void (*on_frame)(struct ask *a, const Sandgate__GuestFrame *f));
/* Free it and give the request back, for its reply. */
struct api_request *ask_done(struct ask *a);
void ask_fail(struct ask *a, const struct err *e);

/*
 * Call `go` with the request's sandbox once it runs: at once, or after it was created. Who
 * is not running and will not be is refused. `data` lives as long as the exchange.
 */
void ask_running(struct api_request *r,
                 void (*go)(struct api_request *r, struct sandbox *s, char *data, size_t len),
                 char *data, size_t len);

#endif
