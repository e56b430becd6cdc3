/*
 * A VMM's HTTP API on its Unix socket: one conversation, a script of requests one after the
 * other, each with a JSON body or none. The VMMs' own files write the scripts (vmm_room.h);
 * nobody else speaks to such a socket. A conversation is its own connection, so that nothing is
 * kept while a VM merely runs, and a VM that a restarted bridge takes up is spoken to like any
 * other. The VMM may have been taken over by its guest: what it answers is bounded and
 * distrusted.
 */
#ifndef SANDGATE_VMM_HTTP_H
#define SANDGATE_VMM_HTTP_H

#include <ev.h>
#include <jansson.h>
#include <stdbool.h>

#include "proto/err.h"

#define VMM_HTTP_STEPS_MAX 8

struct vmm_http;

struct vmm_http_step {
	const char *method, *path; /* literals */
	char *body;                /* owned; NULL: none */
};

struct vmm_http_script {
	struct vmm_http_step steps[VMM_HTTP_STEPS_MAX];
	unsigned count;
	bool lacks,
	    too_long; /* it could not be made, for want of memory or room: told when run */
};

/* Append a request; `body` is as for json_pack, NULL for none. */
void vmm_http_add(struct vmm_http_script *s, const char *method, const char *path,
                  const char *body, ...);

/* Connect to the socket at `path`, as soon as it is there, and run `script`, which is taken
 * over, within `seconds`. `on_done` once, never from inside this call: err NULL when every
 * request was answered with a 2xx status, and `answer` is the JSON that came with the last of
 * them (NULL: none), valid during the call; else ERR_LAUNCHER_FAILED with what the VMM said,
 * or ERR_CAPACITY when there was no descriptor to connect with, or no memory.
 * The conversation is over then and freed. */
struct vmm_http *vmm_http_run(struct ev_loop *loop, const char *path,
                              struct vmm_http_script *script, double seconds,
                              void (*on_done)(const json_t *answer, const struct err *e,
                                              void *arg),
                              void *arg, struct err *e);
/* Break it off; on_done is not called. NULL is fine. */
void vmm_http_cancel(struct vmm_http *h);

#endif
