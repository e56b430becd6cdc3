/* Starting execs, and watching them as events. */
#include <string.h>

#include "host-bridge/api/ask.h"
#include "host-bridge/api/exec_gate.h"
#include "host-bridge/api/handlers.h"
#include "host-bridge/api/hub.h"
#include "host-bridge/api/sse.h"

/* ---- start ---- */

static struct call_request *parse(struct api_request *r, struct sandbox *s, const char *data,
                                  size_t len, bool detached)
{
	struct err e;
	struct api_details d = {.started = "no"};
	struct call_request *q =
	    call_request_parse(data, len, sandbox_spec(s)->exec_defaults, detached, &e);
	if (q == NULL)
		api_fail(r, &e, &d);
	return q;
}

static void run(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct call_request *q = parse(r, s, data, len, false);
	if (q != NULL)
		exec_gate_start(r, s, CALL_RUN, q);
}

void api_exec_run(struct api_request *r, char *data, size_t len)
{
	ask_running(r, run, data, len);
}

static void start(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct call_request *q = parse(r, s, data, len, true);
	if (q != NULL)
		exec_gate_start(r, s, CALL_START, q);
}

void api_exec_start(struct api_request *r, char *data, size_t len)
{
	ask_running(r, start, data, len);
}

/* ---- resume ---- */

/* Where an event stream resumes. An id of another exec than `exec_id` is refused. */
static int parse_event_id(const char *text, const char *field, const char *exec_id,
                          char id[EXEC_ID_MAX + 1], uint64_t *after, struct err *e)
{
	if (sse_parse_id(text, id, after) < 0)
		return err_field(e, ERR_INVALID_FIELD, field, "%s is no event id of this API",
		                 field);
	if (exec_id[0] != '\0' && strcmp(exec_id, id) != 0)
		return err_field(e, ERR_INVALID_FIELD, field, "%s belongs to another exec",
		                 field);
	return 0;
}

/* SSE clients re-send their request when a stream ends, with the last id that they saw: it
 * must lead back to that exec and never start another. One that saw no id has no exec to
 * lead back to, unless the client has named it. */
static void stream(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct err e;
	struct api_details d = {.started = "no"};
	uint64_t after = 0;
	char id[EXEC_ID_MAX + 1];
	const char *last = http_header(r->x, "last-event-id");
	struct call_request *q = parse(r, s, data, len, false);
	if (q == NULL)
		return;
	if (last == NULL || (*last == '\0' && q->id_given)) {
		exec_gate_start(r, s, CALL_STREAM, q);
		return;
	}
	int rc = *last == '\0' ? err_field(&e, ERR_INVALID_FIELD, "Last-Event-ID",
	                                   "an empty Last-Event-ID needs an exec_id")
	                       : parse_event_id(last, "Last-Event-ID",
	                                        q->id_given ? q->exec_id : "", id, &after, &e);
	bool base64 = q->base64;
	call_request_free(q);
	if (rc < 0) {
		api_fail(r, &e, &d);
		return;
	}
	memcpy(r->exec_id, id, sizeof(r->exec_id));
	hub_watch(r, s, id, after, base64);
}

void api_exec_stream(struct api_request *r, char *data, size_t len)
{
	ask_running(r, stream, data, len);
}

/* ---- watch ---- */

static int watch_from(struct api_request *r, uint64_t *after, struct err *e)
{
	char id[EXEC_ID_MAX + 1];
	const char *last = http_header(r->x, "last-event-id");
	const char *query = http_query(r->x, "after");
	*after = 0;
	if (last != NULL && *last != '\0')
		return parse_event_id(last, "Last-Event-ID", r->exec_id, id, after, e);
	if (query != NULL)
		return parse_event_id(query, "after", r->exec_id, id, after, e);
	return 0;
}

static void watch(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct err e;
	uint64_t after;
	const char *encoding = http_query(r->x, "output_encoding");
	(void)data;
	(void)len;
	bool base64 = encoding != NULL && strcmp(encoding, "base64") == 0;
	int rc = watch_from(r, &after, &e);
	if (rc == 0 && encoding != NULL && !base64 && strcmp(encoding, "utf-8") != 0)
		rc = err_field(&e, ERR_INVALID_FIELD, "output_encoding",
		               "output_encoding must be utf-8 or base64");
	if (rc < 0)
		api_fail(r, &e, NULL);
	else
		hub_watch(r, s, r->exec_id, after, base64);
}

void api_exec_watch(struct api_request *r, char *data, size_t len)
{
	ask_running(r, watch, data, len);
}
