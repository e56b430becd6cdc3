#include "host-bridge/api/watcher.h"

#include <stdlib.h>

/* False: there is no room for more. */
static bool put(struct watcher *w, const struct json_out *events)
{
	bool nothing = events->len == 0 && !events->failed; /* of a whole character, yet */
	return nothing || sse_write(&w->sse, events);
}

static void write_and_free(struct watcher *w, struct json_out *events)
{
	put(w, events);
	json_out_free(events);
}

static void catch_up(struct watcher *w)
{
	struct json_out out = {0};
	w->behind = false;
	w->gapped = true;
	for (int i = 0; i < 2; i++)
		if (w->skipped[i] > 0)
			sse_skipped(w->text, &out, (Sandgate__Stream)i, w->skipped[i]);
	w->skipped[0] = w->skipped[1] = 0;
	write_and_free(w, &out);
}

static void on_room(struct api_request *r)
{
	struct watcher *w = r->owner;
	if (w->behind)
		catch_up(w);
}

struct watcher *watcher_create(struct api_request *r, void (*on_gone)(struct api_request *r))
{
	struct watcher *w = calloc(1, sizeof(*w));
	if (w == NULL)
		return NULL;
	w->r = r;
	r->owner = w;
	r->on_gone = on_gone;
	r->on_room = on_room;
	return w;
}

struct api_request *watcher_destroy(struct watcher *w)
{
	struct api_request *r = w->r;
	r->on_gone = NULL;
	r->on_room = NULL;
	sse_stop(&w->sse);
	free(w);
	return r;
}

void watcher_begin(struct watcher *w, uint64_t started_at_ms)
{
	struct json_out out = {0};
	w->begun = true;
	sse_open(&w->sse, w->r);
	sse_start(w->text, &out, started_at_ms);
	write_and_free(w, &out);
}

void watcher_write(struct watcher *w, const struct json_out *events, unsigned stream,
                   uint64_t bytes)
{
	if (w->behind) {
		w->skipped[stream] += bytes;
		return;
	}
	w->lossy |= w->text->lossy;
	w->behind = !put(w, events);
}

void watcher_finish(struct watcher *w, const Sandgate__Exit *x)
{
	struct sse_text text = *w->text;
	struct json_out last = {0};
	text.lossy = w->lossy;
	if (w->behind)
		catch_up(w);
	sse_exit(&text, &last, x->result, w->gapped);
	write_and_free(w, &last);
	api_end(watcher_destroy(w));
}

void watcher_fail(struct watcher *w, const struct err *e, const struct api_details *d)
{
	struct json_out out = {0};
	if (!w->begun) {
		api_fail(watcher_destroy(w), e, d);
		return;
	}
	sse_error(w->text, &out, w->r->id, e, d);
	write_and_free(w, &out);
	api_end(watcher_destroy(w));
}
