/*
 * The error envelope of every refusal (api.md section 5): one place that writes it, for
 * HTTP replies and for the `error` event of a stream. It sends nothing itself.
 */
#ifndef SANDGATE_API_ERROR_H
#define SANDGATE_API_ERROR_H

#include <stddef.h>

#include "host-bridge/api/api.h"
#include "host-bridge/http/json_out.h"

/* {"error":{…}} */
void api_error_envelope(struct json_out *out, const char *request_id, const struct err *e,
                        const struct api_details *d);

/* The members of the inner object, without its braces; the caller has opened it. */
void api_error_members(struct json_out *out, const char *request_id, const struct err *e,
                       const struct api_details *d);

/* For on_refused: what the HTTP layer refused before there was a request. */
size_t api_error_refusal(int status, const char *reason, char *buf, size_t room);

#endif
