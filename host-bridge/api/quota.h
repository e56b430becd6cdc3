/*
 * What workspaces use, held against what the token file lets them have (tokens.h). The
 * sandbox set asks here before it makes a sandbox, once it knows what that takes; exec_gate.c
 * before an exec is started. It refuses with ERR_QUOTA_EXCEEDED and the limit's name in
 * `field`, as GET /v1/quota has it; it ends nothing that runs.
 *
 * Sandboxes are counted when it is asked. Creates are metered: as many at once as a minute
 * allows, then one each 60/N seconds. Of execs the bridge sees only those that it serves; the
 * others, detached, are counted by asking the agents (exec_count.h).
 */
#ifndef SANDGATE_QUOTA_H
#define SANDGATE_QUOTA_H

#include <jansson.h>

#include "host-bridge/api/api.h"
#include "host-bridge/api/exec_count.h"

struct quota;

/* What is remembered of a workspace, from its first request to the end of the process. */
struct quota_use {
	char workspace[TOKENS_NAME_MAX + 1];
	double creates_due; /* monotonic: by then all creates are worked off */
	struct exec_count execs;
};

/* Judges the creates of `api`'s sandboxes from now on. */
struct quota *quota_create(struct api *api, struct err *e);
/* Before the set is destroyed, after every request has ended. */
void quota_destroy(struct quota *q);

/* NULL when memory fails; lives as long as the quota. */
struct quota_use *quota_use(struct quota *q, const char *workspace);

/* Whether `count` sandboxes like this one may be made; asked before work that they need. */
int quota_room(struct quota *q, const struct sandbox_spec *like, unsigned count, struct err *e);

/* ERR_QUOTA_EXCEEDED for one limit. */
int quota_refuse(enum tokens_limit which, uint64_t max, struct err *e);
/* What the details of such a refusal say of its limit; other errors have none. */
void quota_explain(struct quota *q, const char *workspace, const struct err *e,
                   struct api_details *d);

/* The API's Quota object, new reference. */
json_t *quota_json(const struct quota *q, const struct quota_use *use);

#endif
