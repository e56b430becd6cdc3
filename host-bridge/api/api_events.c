/* Streams of what happens to sandboxes: of one, or of all that the token may see. A stream
 * reads the node's log at its client's pace; what the log has forgotten by then is told as a
 * gap. That of one sandbox ends with it. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/handlers.h"
#include "host-bridge/api/sse.h"
#include "host-bridge/exec/result_json.h"
#include "host-bridge/sandbox/event_log.h"

struct event_stream {
	struct event_listener listener;
	struct api_request *r;
	struct event_log *log;
	struct sse sse;
	uint64_t next;        /* to be sent */
	char sandbox_id[128]; /* "" for all */
	bool last;            /* it is deleted: nothing will be added */
};

static void stream_destroy(struct event_stream *s)
{
	event_log_unlisten(&s->listener);
	sse_stop(&s->sse);
	free(s);
}

static void on_gone(struct api_request *r)
{
	stream_destroy(r->owner);
}

static bool is_wanted(const struct event_stream *s, const struct event *e)
{
	const char *workspace = api_workspace(s->r);
	return (s->sandbox_id[0] == '\0' || strcmp(s->sandbox_id, e->sandbox_id) == 0) &&
	       (workspace == NULL || strcmp(workspace, e->workspace) == 0);
}

static void begin_event(const struct event_stream *s, struct json_out *out, uint64_t number,
                        const char *type)
{
	char head[96];
	int n =
	    snprintf(head, sizeof(head), "id: %016" PRIx64 "-%" PRIu64 "\nevent: %s\ndata: ",
	             event_log_epoch(s->log), number, type);
	json_out_raw(out, head, (size_t)n);
	json_out_object(out, NULL);
	json_out_string(out, "type", type);
}

static void end_event(struct json_out *out)
{
	json_out_end(out, '}');
	json_out_raw(out, "\n\n", 2);
}

static void put_event(const struct event_stream *s, struct json_out *out, uint64_t number,
                      const struct event *e)
{
	begin_event(s, out, number, e->type);
	json_out_string(out, "sandbox_id", e->sandbox_id);
	result_instant_json(out, "at", (uint64_t)e->at_ms);
	json_out_string(out, "exec_id", e->exec_id[0] != '\0' ? e->exec_id : NULL);
	json_out_string(out, "detail", e->detail);
	end_event(out);
}

static bool is_before_wanted(const struct event_stream *s)
{
	const struct event *e = event_log_at(s->log, s->next);
	return e != NULL && !is_wanted(s, e);
}

/* What is lost lies before the oldest event that is kept. Its id reaches as far as it can, else
 * others' events would soon make it one that is forgotten, too. */
static void put_gap(struct event_stream *s, struct json_out *out)
{
	s->next = event_log_first(s->log);
	while (is_before_wanted(s))
		s->next++;
	begin_event(s, out, s->next - 1, "gap");
	json_out_null(out, "sandbox_id");
	json_out_null(out, "at");
	json_out_null(out, "exec_id");
	json_out_null(out, "detail");
	end_event(out);
}

static void finish(struct event_stream *s)
{
	struct api_request *r = s->r;
	r->on_gone = r->on_room = NULL;
	stream_destroy(s);
	api_end(r);
}

/* What there is, while the client takes it. The stream may have ended then. */
static void pump(struct event_stream *s)
{
	bool room = true;
	while (room && s->next < event_log_next(s->log)) {
		struct json_out out = {0};
		const struct event *e = event_log_at(s->log, s->next);
		if (e == NULL) {
			put_gap(s, &out);
		} else {
			if (is_wanted(s, e))
				put_event(s, &out, s->next, e);
			s->last |= s->sandbox_id[0] != '\0' && out.len > 0 &&
			           strcmp(e->type, "deleted") == 0;
			s->next++;
		}
		if (out.len > 0)
			room = sse_write(&s->sse, &out);
		json_out_free(&out);
	}
	if (s->last && s->next == event_log_next(s->log))
		finish(s);
}

static void on_event(struct event_listener *l)
{
	struct event_stream *s =
	    (struct event_stream *)((char *)l - offsetof(struct event_stream, listener));
	if (s->next + 1 == event_log_next(s->log)) /* else it waits for room */
		pump(s);
}

static void on_end(struct event_listener *l)
{
	finish((struct event_stream *)((char *)l - offsetof(struct event_stream, listener)));
}

static void on_room(struct api_request *r)
{
	pump(r->owner);
}

/* Where to begin: after `id` when it is one of this log's, with a gap when it is another's. */
static int take_id(struct event_stream *s, const char *id, struct json_out *out, struct err *e)
{
	uint64_t epoch, number;
	int used = 0;
	s->next = event_log_next(s->log);
	if (id == NULL)
		return 0;
	if (sscanf(id, "%16" SCNx64 "-%" SCNu64 "%n", &epoch, &number, &used) != 2 ||
	    id[used] != '\0')
		return err_field(e, ERR_INVALID_FIELD, "Last-Event-ID",
		                 "Last-Event-ID must be the id of an event");
	if (epoch == event_log_epoch(s->log) && number < s->next) {
		s->next = number + 1;
		return 0;
	}
	put_gap(s, out);
	return 0;
}

static bool has_more(const struct event_stream *s)
{
	for (uint64_t n = s->next; n < event_log_next(s->log); n++) {
		const struct event *e = event_log_at(s->log, n);
		if (e == NULL || is_wanted(s, e)) /* NULL: a gap */
			return true;
	}
	return false;
}

/* `last`: nothing will happen any more. A client that has it all is told not to ask again. */
static void watch(struct api_request *r, const char *sandbox_id, bool last)
{
	struct err e = {0};
	struct json_out first = {0};
	struct event_stream *s = calloc(1, sizeof(*s));
	if (s == NULL) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return;
	}
	s->r = r;
	s->log = sandbox_set_events(r->api->sandboxes);
	s->last = last;
	s->listener.on_event = on_event;
	s->listener.on_end = on_end;
	snprintf(s->sandbox_id, sizeof(s->sandbox_id), "%s", sandbox_id);
	if (take_id(s, http_header(r->x, "last-event-id"), &first, &e) < 0) {
		free(s);
		api_fail(r, &e, NULL);
		return;
	}
	if (last && first.len == 0 && !has_more(s)) {
		free(s);
		api_reply_empty(r, 204);
		return;
	}
	event_log_listen(s->log, &s->listener);
	r->owner = s;
	r->on_gone = on_gone;
	r->on_room = on_room;
	sse_open(&s->sse, r);
	if (first.len > 0)
		sse_write(&s->sse, &first);
	json_out_free(&first);
	pump(s);
}

void api_events(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	watch(r, "", false);
}

/* Of a deleted one the rest of what a client has begun to read. */
void api_sandbox_events(struct api_request *r, char *data, size_t len)
{
	struct err e = {0};
	struct sandbox_set *set = r->api->sandboxes;
	(void)data;
	(void)len;
	bool lives = sandbox_find(set, r->sandbox_id, api_workspace(r), &e) != NULL ||
	             sandbox_find_ending(set, r->sandbox_id, api_workspace(r)) != NULL;
	if (lives || (e.code == ERR_SANDBOX_GONE && http_header(r->x, "last-event-id") != NULL))
		watch(r, r->sandbox_id, !lives);
	else
		api_fail(r, &e, NULL);
}
