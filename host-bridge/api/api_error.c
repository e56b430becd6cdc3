#include "host-bridge/api/api_error.h"

#include <stdlib.h>
#include <string.h>

#include "host-bridge/exec/result_json.h"

static const char *or_null(const char *text)
{
	return text != NULL && *text != '\0' ? text : NULL;
}

static void number(struct json_out *out, const char *key, bool set, uint64_t value)
{
	if (set)
		json_out_int(out, key, (int64_t)value);
	else
		json_out_null(out, key);
}

void api_error_members(struct json_out *out, const char *request_id, const struct err *e,
                       const struct api_details *d)
{
	json_out_string(out, "code", err_name(e->code));
	json_out_string(out, "message", e->msg);
	json_out_string(out, "request_id", request_id);
	json_out_bool(out, "retryable", d->retry_known ? d->retry : err_retryable(e->code));
	json_out_object(out, "details");
	json_out_string(out, "field", or_null(e->field));
	number(out, "limit", d->has_limit || e->limit > 0, d->has_limit ? d->limit : e->limit);
	json_out_string(out, "started", d->started);
	json_out_string(out, "exec_id", or_null(d->exec_id));
	json_out_string(out, "status", d->status);
	number(out, "retry_after_seconds", d->retry_after > 0, (uint64_t)d->retry_after);
	result_json_partial(out, "partial", d->partial);
	json_out_end(out, '}');
}

void api_error_envelope(struct json_out *out, const char *request_id, const struct err *e,
                        const struct api_details *d)
{
	json_out_object(out, NULL);
	json_out_object(out, "error");
	api_error_members(out, request_id, e, d);
	json_out_end(out, '}');
	json_out_end(out, '}');
}

/* The HTTP layer knows statuses only; these are the codes that mean them. */
static enum err_code code_of(int status)
{
	switch (status) {
	case 413:
	case 431:
		return ERR_TOO_LARGE;
	case 503:
		return ERR_CAPACITY;
	default:
		return ERR_MALFORMED_JSON;
	}
}

void api_error_refusal(struct http_refusal *f, const char *request_id)
{
	struct json_out out = {0};
	struct err e;
	const struct api_details d = {.started = "no"};
	err_set(&e, code_of(f->status), "%s", f->reason);
	api_error_envelope(&out, request_id, &e, &d);
	size_t len;
	char *body = json_out_take(&out, &len);
	f->len = len < sizeof(f->body) ? len : 0;
	if (body != NULL)
		memcpy(f->body, body, f->len);
	free(body);
}
