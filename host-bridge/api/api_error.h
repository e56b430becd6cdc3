/*
 * The error envelope of every refusal (api.md section 5): one place that writes it, for
 * HTTP replies and for the `error` event of a stream. It sends nothing itself.
 */
#ifndef SANDGATE_API_ERROR_H
#define SANDGATE_API_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host-bridge/http/http_server.h"
#include "host-bridge/http/json_out.h"
#include "proto/err.h"

/* error.details beyond what struct err holds; zeroed: nothing is known. */
struct api_details {
	const char *started; /* "no", "yes", "unknown" or NULL */
	const char *exec_id;
	const char *status;      /* the sandbox's */
	bool has_limit;          /* whether the next is known */
	uint64_t limit;          /* the right offset; else the error's own limit is told */
	int retry_after;         /* seconds; also sent as Retry-After; 0: none */
	bool retry_known, retry; /* retryable, where the code alone does not tell */
	const struct result_partial *partial; /* output of an exec whose end is not known */
};

/* {"error":{…}} */
void api_error_envelope(struct json_out *out, const char *request_id, const struct err *e,
                        const struct api_details *d);

/* The members of the inner object, without its braces; the caller has opened it. */
void api_error_members(struct json_out *out, const char *request_id, const struct err *e,
                       const struct api_details *d);

/* For on_refused: the envelope of what the HTTP layer refused by itself. */
void api_error_refusal(struct http_refusal *f, const char *request_id);

#endif
