#include "host-bridge/api/sse.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/api_error.h"
#include "host-bridge/exec/result_json.h"
#include "host-bridge/http/utf8.h"
#include "host-bridge/steady.h"

/* ---- events ---- */

static const char *const stream_names[] = {"stdout", "stderr"};

void sse_text_init(struct sse_text *t, const char *exec_id, bool base64, uint64_t next)
{
	*t = (struct sse_text){.exec_id = exec_id, .base64 = base64, .next = next};
}

uint64_t sse_text_id(const struct sse_text *t)
{
	uint64_t id = t->next;
	for (int i = 0; i < 2; i++)
		if (t->held_len[i] > 0 && t->held_at[i] < id)
			id = t->held_at[i];
	return id;
}

/* The lines up to the data's first member; the caller adds others and ends it. */
static void begin(const struct sse_text *t, struct json_out *out, uint64_t id, const char *type)
{
	char front[EXEC_ID_MAX + 64];
	int n = snprintf(front, sizeof(front), "id: %s:%ju\nevent: %s\ndata: ", t->exec_id,
	                 (uintmax_t)id, type);
	json_out_raw(out, front, (size_t)n);
	json_out_object(out, NULL);
	json_out_string(out, "type", type);
}

static void end(struct json_out *out)
{
	json_out_end(out, '}');
	json_out_raw(out, "\n\n", 2);
}

void sse_start(struct sse_text *t, struct json_out *out, uint64_t started_at_ms)
{
	begin(t, out, sse_text_id(t), "start");
	json_out_string(out, "exec_id", t->exec_id);
	result_instant_json(out, "started_at", started_at_ms);
	end(out);
}

static void chunk(struct sse_text *t, struct json_out *out, unsigned stream, const char *data,
                  size_t len)
{
	out->repaired = false;
	begin(t, out, sse_text_id(t), stream_names[stream]);
	if (t->base64)
		json_out_base64(out, "chunk", data, len);
	else
		json_out_bytes(out, "chunk", data, len);
	t->lossy |= out->repaired;
	end(out);
}

/* Put what was held in front of the new bytes, as far as its character goes. Returns how
 * many of them that took. */
static size_t complete_held(struct sse_text *t, struct json_out *out, unsigned stream,
                            uint64_t at, const char *data, size_t len)
{
	char joined[SSE_HELD_MAX + 1];
	size_t n = t->held_len[stream], took = 0;
	bool valid, cut;
	memcpy(joined, t->held[stream], n);
	utf8_char(joined, n, &valid, &cut);
	while (cut && took < len) {
		joined[n++] = data[took++];
		utf8_char(joined, n, &valid, &cut);
	}
	if (cut) {
		memcpy(t->held[stream], joined, n);
		t->held_len[stream] = (uint8_t)n;
		return took;
	}
	if (!valid) { /* the last byte broke it, and stands for itself */
		n--;
		took--;
	}
	t->held_len[stream] = 0;
	t->next = at + took;
	chunk(t, out, stream, joined, n);
	return took;
}

static void gap(struct sse_text *t, struct json_out *out, const char *stream, uint64_t bytes)
{
	begin(t, out, sse_text_id(t), "gap");
	json_out_string(out, "stream", stream);
	json_out_int(out, "bytes", (int64_t)bytes);
	end(out);
}

/* The rest of a character whose front was lost is lost with it. Returns its length. */
static size_t drop_torn(struct sse_text *t, struct json_out *out, unsigned stream, uint64_t at,
                        const char *data, size_t len)
{
	size_t n = 0;
	while (!t->base64 && n < len && n < SSE_HELD_MAX && (data[n] & 0xc0) == 0x80)
		n++;
	t->torn[stream] = false;
	if (n == 0)
		return 0;
	t->next = at + n;
	gap(t, out, stream_names[stream], n);
	return n;
}

void sse_chunk(struct sse_text *t, struct json_out *out, const Sandgate__Output *o)
{
	unsigned stream = o->stream == SANDGATE__STREAM__STREAM_STDERR;
	const char *data = (const char *)o->data.data;
	size_t len = o->data.len, keep;
	uint64_t at = o->sequence;

	if (t->torn[stream] || t->held_len[stream] > 0) {
		size_t took = t->torn[stream] ? drop_torn(t, out, stream, at, data, len)
		                              : complete_held(t, out, stream, at, data, len);
		data += took;
		len -= took;
		at += took;
	}
	keep = t->base64 ? 0 : utf8_split(data, len);
	if (keep > 0) {
		memcpy(t->held[stream], data + len - keep, keep);
		t->held_len[stream] = (uint8_t)keep;
		t->held_at[stream] = at + len - keep;
	}
	t->next = at + len;
	if (len > keep)
		chunk(t, out, stream, data, len - keep);
}

/* What is held will not be completed any more: it is told as it is. */
static void flush_held(struct sse_text *t, struct json_out *out)
{
	for (unsigned i = 0; i < 2; i++) {
		size_t n = t->held_len[i];
		t->held_len[i] = 0;
		if (n > 0)
			chunk(t, out, i, t->held[i], n);
	}
}

void sse_skipped(struct sse_text *t, struct json_out *out, Sandgate__Stream stream,
                 uint64_t bytes)
{
	gap(t, out, stream_names[stream == SANDGATE__STREAM__STREAM_STDERR], bytes);
}

void sse_gap(struct sse_text *t, struct json_out *out, const Sandgate__Gap *g)
{
	unsigned stream = g->stream == SANDGATE__STREAM__STREAM_STDERR;
	uint64_t bytes = g->bytes;
	for (unsigned i = 0; i < 2; i++) {
		if (!g->both && i != stream)
			continue;
		bytes += t->held_len[i];
		t->held_len[i] = 0;
		t->torn[i] = true;
	}
	t->next = g->sequence + g->bytes;
	gap(t, out, g->both ? "both" : stream_names[stream], bytes);
}

void sse_exit(struct sse_text *t, struct json_out *out, const Sandgate__Result *r,
              bool truncated)
{
	const bool cut[2] = {truncated, truncated};
	flush_held(t, out);
	begin(t, out, t->next + 1, "exit");
	json_out_int(out, "exit_code", r->exit_code);
	result_json_summary(out, "result", t->exec_id, r, cut, t->lossy);
	end(out);
}

void sse_error(struct sse_text *t, struct json_out *out, const char *request_id,
               const struct err *e, const struct api_details *d)
{
	/* Not past the end: the exec may still be attached to from here. */
	begin(t, out, sse_text_id(t), "error");
	api_error_members(out, request_id, e, d);
	end(out);
}

int sse_parse_id(const char *id, char exec_id[EXEC_ID_MAX + 1], uint64_t *number)
{
	const char *colon = strrchr(id, ':');
	if (colon == NULL || colon == id || colon - id > EXEC_ID_MAX ||
	    !isdigit((unsigned char)colon[1]))
		return -1;
	char *stop;
	errno = 0;
	*number = strtoull(colon + 1, &stop, 10);
	if (errno != 0 || *stop != '\0')
		return -1;
	memcpy(exec_id, id, (size_t)(colon - id));
	exec_id[colon - id] = '\0';
	return 0;
}

/* ---- an open stream ---- */

static void on_quiet(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct sse *s = w->data;
	double left = s->wrote + SSE_COMMENT_S - steady_now();
	(void)revents;
	if (left <= 0) {
		http_write(s->r->x, ":\n\n", 3);
		s->wrote = steady_now();
		left = SSE_COMMENT_S;
	}
	ev_timer_set(w, left, 0.);
	ev_timer_start(loop, w);
}

void sse_open(struct sse *s, struct api_request *r)
{
	s->r = r;
	s->wrote = steady_now();
	http_set_header(r->x, "Cache-Control", "no-cache");
	http_set_header(r->x, "X-Accel-Buffering", "no");
	http_begin(r->x, 200, "text/event-stream");
	ev_timer_init(&s->quiet, on_quiet, SSE_COMMENT_S, 0.);
	s->quiet.data = s;
	ev_timer_start(r->api->loop, &s->quiet);
}

bool sse_write(struct sse *s, const struct json_out *events)
{
	s->wrote = steady_now();
	if (events->failed) /* half an event, and what it told is missing */
		http_break(s->r->x);
	return http_write(s->r->x, events->data, events->len);
}

void sse_stop(struct sse *s)
{
	if (s->r != NULL)
		ev_timer_stop(s->r->api->loop, &s->quiet);
	s->r = NULL;
}
