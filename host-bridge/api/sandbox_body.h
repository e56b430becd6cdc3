/*
 * The bodies of the sandbox calls (api.md section 2) as what the sandbox set takes. It
 * checks the caller's rights to what it names, creates nothing.
 */
#ifndef SANDGATE_SANDBOX_BODY_H
#define SANDGATE_SANDBOX_BODY_H

#include <jansson.h>

#include "host-bridge/api/api.h"

/* Fill in `spec` but for its key. Returns the document that spec's trees belong to. */
json_t *sandbox_body_parse(struct api_request *r, const char *data, size_t len,
                           struct sandbox_spec *spec, struct err *e);

/* `patch` points into the rest; its metadata is the merged object (RFC 7396), the caller's to
 * drop, or NULL. */
struct sandbox_change {
	struct sandbox_patch patch;
	double ttl_seconds, max_lifetime_seconds;
	bool persistent;
};

/* The body of snapshots and forks, which may be absent. */
struct snapshot_body {
	json_t *metadata; /* the caller's to drop; or NULL */
	unsigned count;   /* forks: how many; 0 when absent */
};
int sandbox_body_snapshot(const char *data, size_t len, bool fork, struct snapshot_body *out,
                          struct err *e);

int sandbox_body_change(const char *data, size_t len, json_t *metadata,
                        struct sandbox_change *out, struct err *e);

#endif
