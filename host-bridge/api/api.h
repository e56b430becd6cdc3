/*
 * One HTTP request as the handlers see it, and what they all share. api.c turns an
 * exchange into a request (id, route, token, body), hands it to its handler, and is the
 * one place through which every reply leaves: so each is counted and audited once.
 *
 * Lifetime: a request lives until it is ended by a call below, or until its on_gone has
 * returned (the client left: stop what was started for it, answer nothing).
 */
#ifndef SANDGATE_API_H
#define SANDGATE_API_H

#include <ev.h>
#include <jansson.h>
#include <stdbool.h>

#include "host-bridge/api/api_error.h"
#include "host-bridge/api/auth.h"
#include "host-bridge/http/http.h"
#include "host-bridge/http/http_respond.h"
#include "host-bridge/http/http_server.h"
#include "host-bridge/sandbox/sandbox.h"
#include "host-bridge/settings.h"
#include "proto/limits.h"

struct api {
	struct ev_loop *loop;
	const struct settings *settings;
	struct http_server *http;
	struct sandbox_set *sandboxes;
	struct auth *auth;
	struct audit *audit;
	struct metrics *metrics;
	struct hub_set *hubs;
	struct exec_wait_set *exec_waits;
	struct call_set *calls;
	struct quota *quota;
	size_t buffered; /* bytes of output that the buffers of all calls hold */
	bool draining;   /* new work is refused; set by a signal or POST /v1/node/drain */
};

struct api_request {
	struct api *api;
	struct http_exchange *x;
	const struct route *route; /* NULL: none matched */
	struct auth_identity who;
	char id[REQUEST_ID_MAX + 1];
	char sandbox_id[EXEC_ID_MAX + 1]; /* the path's {id} */
	char exec_id[EXEC_ID_MAX + 1];    /* the path's {eid}, or the exec that was started */
	int refused;                      /* the HTTP layer answered with this status; or 0 */
	const char *outcome;              /* of an exec, for the audit log; static, or NULL */
	double received;                  /* steady_now() */
	void (*on_gone)(struct api_request *r);
	void (*on_room)(struct api_request *r);
	void *owner; /* the handler's own */
};

extern const struct http_handlers api_handlers; /* `arg` is the struct api */

const char *api_workspace(const struct api_request *r); /* NULL for an admin: all */
/* The sandbox that the path names; when there is none the request has been answered. */
struct sandbox *api_sandbox(struct api_request *r);

/* A number in the query, within 0..max, in decimal; the second one whole. Absent: `*value` is
 * left, `*set` is false. */
int api_query_number(const struct api_request *r, const char *key, double max, bool *set,
                     double *value, struct err *e);
int api_query_integer(const struct api_request *r, const char *key, uint64_t max, bool *set,
                      uint64_t *value, struct err *e);

/* Each ends the request. `body` is malloc'd and taken over; `doc` is decref'd; NULL is a reply
 * that there was no memory for: 500. */
void api_reply_take(struct api_request *r, int status, const char *type, char *body,
                    size_t len);
void api_reply_json(struct api_request *r, int status, json_t *doc);
void api_reply_text(struct api_request *r, int status, char *text); /* the same of a text */
/* The text of `doc`, for api_reply_text; NULL: there is no memory. `doc` is decref'd. */
char *api_json_text(json_t *doc);
void api_reply_empty(struct api_request *r, int status);
void api_fail(struct api_request *r, const struct err *e, const struct api_details *d);
void api_end(struct api_request *r); /* of a streamed response */
void api_abort(struct api_request *r);

#endif
