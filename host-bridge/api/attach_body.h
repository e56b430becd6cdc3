/*
 * `attach` in a body: where the agent of a VM is that somebody else owns. Creates and the end
 * of a bracket take it. It checks the caller's rights, and opens no more than a token file.
 */
#ifndef SANDGATE_ATTACH_BODY_H
#define SANDGATE_ATTACH_BODY_H

#include "host-bridge/api/api.h"
#include "host-bridge/http/body.h"
#include "host-bridge/link/transport.h"

/* Given when `transport` is set. */
struct attach_fields {
	struct body_int transport, cid, port;
	struct body_str path, agent_token_file;
};
extern const struct body_field attach_body_fields[];

/* For admins alone; paths only under the operator's directories. */
int attach_body_take(struct api_request *r, const struct attach_fields *f, struct endpoint *to,
                     struct err *e);

#endif
