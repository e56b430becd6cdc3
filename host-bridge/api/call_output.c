#include "host-bridge/api/call_output.h"

#include "host-bridge/api/bulk_reply.h"
#include "host-bridge/exec/result_json.h"

static void open_stream(struct call_output *o)
{
	ev_timer_stop(o->loop, &o->headers);
	if (!o->open)
		sse_open(&o->sse, o->r);
	o->open = true;
}

static void on_headers_due(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	open_stream(w->data);
}

void call_output_init(struct call_output *o, struct api_request *r, enum call_kind kind,
                      const struct call_request *q)
{
	*o = (struct call_output){.r = r, .loop = r->api->loop, .kind = kind, .q = q};
	for (int i = 0; i < 2; i++)
		call_buffer_init(&o->streams[i], &r->api->buffered);
	sse_text_init(&o->text, q->exec_id, q->base64, 0);
	ev_timer_init(&o->headers, on_headers_due, SSE_HEADERS_MS / 1000., 0.);
	o->headers.data = o;
	if (kind == CALL_STREAM)
		ev_timer_start(o->loop, &o->headers);
}

void call_output_free(struct call_output *o)
{
	ev_timer_stop(o->loop, &o->headers);
	sse_stop(&o->sse);
	for (int i = 0; i < 2; i++)
		call_buffer_clear(&o->streams[i]);
}

uint64_t call_output_next(const struct call_output *o)
{
	return o->next;
}

/* ---- the event stream ---- */

static bool write_events(struct call_output *o, struct json_out *events)
{
	bool room = sse_write(&o->sse, events);
	json_out_free(events);
	return room;
}

static void tell_start(struct call_output *o, uint64_t started_at_ms)
{
	struct json_out out = {0};
	open_stream(o);
	if (o->told_start)
		return;
	o->told_start = true;
	sse_start(&o->text, &out, started_at_ms);
	write_events(o, &out);
}

static void end_stream(struct call_output *o, struct json_out *last)
{
	struct api_request *r = o->r;
	write_events(o, last);
	sse_stop(&o->sse);
	api_end(r);
}

/* ---- what the agent says ---- */

/* The reply of exec_start: it runs, or nothing could be started and that is its result. */
static void reply_exec(struct call_output *o, uint64_t started_at_ms, Sandgate__Result *result)
{
	struct json_out out = {0};
	Sandgate__ExecState s = SANDGATE__EXEC_STATE__INIT;
	size_t len;
	s.exec_id = o->r->exec_id;
	s.phase = result != NULL ? SANDGATE__EXEC_PHASE__PHASE_FINISHED
	                         : SANDGATE__EXEC_PHASE__PHASE_RUNNING;
	s.detached = true;
	s.started_at_ms = started_at_ms;
	s.finished_at_ms = result != NULL ? result->finished_at_ms : 0;
	s.result = result;
	result_json_exec(&out, &s);
	char *body = json_out_take(&out, &len);
	api_reply_take(o->r, 201, "application/json", body, len);
}

void call_output_started(struct call_output *o, uint64_t started_at_ms)
{
	if (o->kind == CALL_START)
		reply_exec(o, started_at_ms, NULL);
	else if (o->kind == CALL_STREAM)
		tell_start(o, started_at_ms);
}

bool call_output_chunk(struct call_output *o, const Sandgate__Output *chunk)
{
	struct json_out out = {0};
	unsigned stream = chunk->stream == SANDGATE__STREAM__STREAM_STDERR;
	o->next = chunk->sequence + chunk->data.len;
	if (o->kind == CALL_RUN)
		call_buffer_add(&o->streams[stream], chunk->data.data, chunk->data.len,
		                o->q->output_bytes);
	if (o->kind != CALL_STREAM)
		return true;
	tell_start(o, 0);
	sse_chunk(&o->text, &out, chunk);
	return write_events(o, &out);
}

void call_output_gap(struct call_output *o, const Sandgate__Gap *g)
{
	struct json_out out = {0};
	o->next = g->sequence + g->bytes;
	o->gapped = true;
	for (unsigned i = 0; i < 2; i++)
		if (g->both || (unsigned)g->stream == i)
			o->streams[i].cut = true;
	if (o->kind != CALL_STREAM)
		return;
	tell_start(o, 0);
	sse_gap(&o->text, &out, g);
	write_events(o, &out);
}

void call_output_cut(const struct call_output *o, const Sandgate__Result *r, bool cut[2])
{
	cut[0] = o->streams[0].len < r->stdout_bytes;
	cut[1] = o->streams[1].len < r->stderr_bytes;
}

void call_output_finish(struct call_output *o, Sandgate__Result *result, uint64_t end)
{
	struct json_out out = {0};
	if (o->kind == CALL_RUN) {
		bulk_reply(o->r, result, o->streams, o->q->base64);
		return;
	}
	if (o->kind == CALL_START) {
		reply_exec(o, result->started_at_ms, result);
		return;
	}
	tell_start(o, result->started_at_ms);
	o->text.next = end;
	sse_exit(&o->text, &out, result, o->gapped);
	end_stream(o, &out);
}

/* The reply says how the output began, as far as an error may be long. */
static void reply_failure(struct call_output *o, const struct err *e,
                          const struct api_details *d)
{
	struct api_details all = *d;
	struct result_partial p = {.base64 = o->q->base64};
	for (int i = 0; i < 2; i++) {
		const struct call_buffer *b = &o->streams[i];
		size_t len = b->len < PARTIAL_BYTES_MAX ? b->len : PARTIAL_BYTES_MAX;
		p.streams[i] = (struct result_stream){b->data, len};
		p.bytes[i] = b->seen;
	}
	if (p.bytes[0] + p.bytes[1] > 0)
		all.partial = &p;
	api_fail(o->r, e, &all);
}

void call_output_fail(struct call_output *o, const struct err *e, const struct api_details *d)
{
	struct json_out out = {0};
	ev_timer_stop(o->loop, &o->headers);
	if (!o->open) {
		reply_failure(o, e, d);
		return;
	}
	sse_error(&o->text, &out, o->r->id, e, d);
	end_stream(o, &out);
}
