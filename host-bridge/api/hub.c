#include "host-bridge/api/hub.h"

#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "host-bridge/api/dial.h"
#include "host-bridge/api/watcher.h"
#include "host-bridge/steady.h"
#include "proto/log.h"

#define BUCKETS 256 /* a power of two */

LIST_HEAD(hub_list, hub);

struct hub {
	LIST_ENTRY(hub) entry;
	struct hub_set *set;
	struct sandbox *sandbox; /* a key only; the dial knows whether it is still there */
	char exec_id[EXEC_ID_MAX + 1];
	struct dial dial;
	struct sse_text text;
	bool attached;
	bool retried; /* the link was lost; nothing was heard since */
	double attached_at;
	struct watcher_list watchers;
};

struct hub_set {
	struct hub_list buckets[BUCKETS];
	size_t watchers;
};

static const struct dial_handlers dial_handlers;

/* ---- life ---- */

/* FNV-1a over what must be equal for two hubs to merge one day. */
static struct hub_list *bucket(struct hub_set *set, const struct sandbox *s,
                               const char *exec_id)
{
	uint32_t h = 2166136261u ^ (uint32_t)((uintptr_t)s >> 4);
	for (; *exec_id != '\0'; exec_id++)
		h = (h ^ (uint8_t)*exec_id) * 16777619u;
	return &set->buckets[h & (BUCKETS - 1)];
}

static struct hub *hub_create(struct hub_set *set, struct sandbox *s, const char *exec_id,
                              uint64_t after, bool base64)
{
	struct hub *h = calloc(1, sizeof(*h));
	if (h == NULL)
		return NULL;
	h->set = set;
	h->sandbox = s;
	strcpy(h->exec_id, exec_id);
	LIST_INIT(&h->watchers);
	sse_text_init(&h->text, h->exec_id, base64, after);
	LIST_INSERT_HEAD(bucket(set, s, exec_id), h, entry);
	return h;
}

static void hub_destroy(struct hub *h)
{
	dial_close(&h->dial);
	LIST_REMOVE(h, entry);
	free(h);
}

static void join(struct hub *h, struct watcher *w)
{
	w->hub = h;
	w->text = &h->text;
	LIST_INSERT_HEAD(&h->watchers, w, entry);
	h->set->watchers++;
}

static struct watcher *leave(struct watcher *w)
{
	w->hub->set->watchers--;
	LIST_REMOVE(w, entry);
	return w;
}

static void on_gone(struct api_request *r)
{
	struct watcher *w = r->owner;
	struct hub *h = w->hub;
	watcher_destroy(leave(w));
	if (LIST_EMPTY(&h->watchers))
		hub_destroy(h);
}

/* ---- to all watchers ---- */

/* One rendered event, of so many bytes of a stream. */
static void broadcast(struct hub *h, struct json_out *events, unsigned stream, uint64_t bytes)
{
	struct watcher *w;
	LIST_FOREACH (w, &h->watchers, entry)
		watcher_write(w, events, stream, bytes);
	h->text.lossy = false;
	json_out_free(events);
}

static void finish(struct hub *h, const Sandgate__Exit *x)
{
	struct watcher *w;
	h->text.next = x->sequence;
	while ((w = LIST_FIRST(&h->watchers)) != NULL)
		watcher_finish(leave(w), x);
	hub_destroy(h);
}

static void fail(struct hub *h, const struct err *e)
{
	struct api_details d = {.exec_id = h->exec_id};
	struct watcher *w;
	while ((w = LIST_FIRST(&h->watchers)) != NULL)
		watcher_fail(leave(w), e, &d);
	hub_destroy(h);
}

/* ---- merging ---- */

static bool same_place(const struct hub *a, const struct hub *b)
{
	const struct sse_text *x = &a->text, *y = &b->text;
	if (x->next != y->next || x->base64 != y->base64)
		return false;
	for (int i = 0; i < 2; i++)
		if (x->torn[i] != y->torn[i] || x->held_len[i] != y->held_len[i] ||
		    (x->held_len[i] > 0 && x->held_at[i] != y->held_at[i]))
			return false;
	return true;
}

/* Move the watchers of `h` to another hub that stands where it stands; `h` is gone then. */
static bool merge(struct hub *h)
{
	struct hub *other;
	struct watcher *w;
	LIST_FOREACH (other, bucket(h->set, h->sandbox, h->exec_id), entry)
		if (other != h && other->sandbox == h->sandbox && other->attached &&
		    strcmp(other->exec_id, h->exec_id) == 0 && same_place(h, other))
			break;
	if (other == NULL)
		return false;
	while ((w = LIST_FIRST(&h->watchers)) != NULL)
		join(other, leave(w));
	hub_destroy(h);
	return true;
}

/* ---- the agent ---- */

static void attach(struct hub *h, struct sandbox *s)
{
	struct err e;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Attach a = SANDGATE__ATTACH__INIT;
	a.exec_id = h->exec_id;
	a.offset = h->text.next;
	a.role = SANDGATE__ROLE__ROLE_OUTPUT;
	open.op_case = SANDGATE__OPEN__OP_ATTACH;
	open.attach = &a;
	if (dial_open(&h->dial, s, &open, DIAL_FOLLOWS, &dial_handlers, &e) < 0)
		fail(h, &e);
}

/* A link may break though the guest is well. */
static bool attach_again(struct hub *h, const struct dial_end *end)
{
	if (!h->attached || !end->opened || end->err.code != ERR_SANDBOX_LOST)
		return false;
	bool good = steady_now() - h->attached_at > REATTACH_GOOD_S;
	if (h->retried && !end->suspended && !good)
		return false;
	h->retried = !end->suspended;
	attach(h, h->sandbox);
	return true;
}

/* Where the client has said from which event it wants to hear. */
static const char *place_of(const struct api_request *r)
{
	const char *last = http_header(r->x, "last-event-id");
	return last != NULL && *last != '\0' ? "Last-Event-ID" : "after";
}

/* The answer to ExecInfo decides what the watcher gets. */
static void on_state(struct hub *h, const Sandgate__ExecState *s)
{
	struct err e;
	struct watcher *w = LIST_FIRST(&h->watchers);
	struct sandbox *sandbox = h->dial.sandbox;
	bool finished = s->phase == SANDGATE__EXEC_PHASE__PHASE_FINISHED;
	if (h->text.next == s->end_sequence + 1 && finished) {
		api_reply_empty(watcher_destroy(leave(w)), 204);
		hub_destroy(h);
		return;
	}
	if (h->text.next > s->end_sequence) {
		err_field(&e, ERR_INVALID_FIELD, place_of(w->r),
		          "the exec has no such event yet");
		fail(h, &e);
		return;
	}
	dial_close(&h->dial);
	h->attached = true;
	watcher_begin(w, s->started_at_ms);
	if (!merge(h))
		attach(h, sandbox);
}

/* Bytes of unfinished characters: no event has told of them yet. */
static uint64_t held(const struct hub *h)
{
	return h->text.held_len[0] + h->text.held_len[1];
}

static void on_gap(struct hub *h, const Sandgate__Gap *g)
{
	struct watcher *w;
	struct json_out out = {0};
	LIST_FOREACH (w, &h->watchers, entry)
		w->gapped = true;
	uint64_t had = held(h);
	sse_gap(&h->text, &out, g);
	broadcast(h, &out, g->stream == SANDGATE__STREAM__STREAM_STDERR,
	          had + g->bytes - held(h));
	merge(h);
}

static void on_output(struct hub *h, const Sandgate__Output *o)
{
	struct json_out out = {0};
	uint64_t had = held(h);
	sse_chunk(&h->text, &out, o);
	broadcast(h, &out, o->stream == SANDGATE__STREAM__STREAM_STDERR,
	          had + o->data.len - held(h));
	merge(h);
}

static void on_frame(struct dial *d, const Sandgate__GuestFrame *f)
{
	struct hub *h = (struct hub *)((char *)d - offsetof(struct hub, dial));
	bool started = f->body_case == SANDGATE__GUEST_FRAME__BODY_STARTED;
	h->retried &= started;
	if (started)
		h->attached_at = steady_now();
	switch (f->body_case) {
	case SANDGATE__GUEST_FRAME__BODY_EXEC_STATE:
		if (!h->attached)
			on_state(h, f->exec_state);
		break;
	case SANDGATE__GUEST_FRAME__BODY_OUTPUT:
		on_output(h, f->output);
		break;
	case SANDGATE__GUEST_FRAME__BODY_GAP:
		on_gap(h, f->gap);
		break;
	case SANDGATE__GUEST_FRAME__BODY_EXIT:
		if (f->exit->result != NULL)
			finish(h, f->exit);
		break;
	default:
		break;
	}
}

static void on_end(struct dial *d, const struct dial_end *end)
{
	struct hub *h = (struct hub *)((char *)d - offsetof(struct hub, dial));
	struct err e = end->err;
	if (attach_again(h, end))
		return;
	if (h->retried && e.code != ERR_SANDBOX_GONE) /* whatever attaching again said */
		err_set(&e, ERR_SANDBOX_LOST, "the connection to the sandbox was lost");
	fail(h, &e);
}

static const struct dial_handlers dial_handlers = {.on_frame = on_frame, .on_end = on_end};

/* ---- what handlers call ---- */

void hub_watch(struct api_request *r, struct sandbox *s, const char *exec_id, uint64_t after,
               bool base64)
{
	struct err e;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ExecInfo info = SANDGATE__EXEC_INFO__INIT;
	struct hub *h = hub_create(r->api->hubs, s, exec_id, after, base64);
	struct watcher *w = h != NULL ? watcher_create(r, on_gone) : NULL;
	if (w == NULL) {
		if (h != NULL)
			hub_destroy(h);
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return;
	}
	join(h, w);
	info.exec_id = h->exec_id;
	open.op_case = SANDGATE__OPEN__OP_EXEC_INFO;
	open.exec_info = &info;
	if (dial_open(&h->dial, s, &open, DIAL_ASKS, &dial_handlers, &e) < 0)
		fail(h, &e);
}

struct hub_set *hub_set_create(void)
{
	return calloc(1, sizeof(struct hub_set));
}

size_t hub_set_watchers(const struct hub_set *set)
{
	return set->watchers;
}

void hub_set_suspend(struct hub_set *set)
{
	struct err e;
	err_set(&e, ERR_DRAINING, "this bridge shut down; attach to the exec by its id");
	for (size_t i = 0; i < BUCKETS; i++)
		while (!LIST_EMPTY(&set->buckets[i]))
			fail(LIST_FIRST(&set->buckets[i]), &e);
}

void hub_set_destroy(struct hub_set *set)
{
	free(set);
}
