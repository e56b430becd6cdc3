/*
 * One client that watches an exec: its stream of events, and what it missed while it was slow.
 * Its hub owns it and writes to it; it knows nothing of the agent or of other watchers.
 */
#ifndef SANDGATE_WATCHER_H
#define SANDGATE_WATCHER_H

#include <sys/queue.h>

#include "host-bridge/api/sse.h"

struct hub;

struct watcher {
	LIST_ENTRY(watcher) entry; /* in its hub, which sets the next two */
	struct hub *hub;
	struct sse_text *text;
	struct api_request *r;
	struct sse sse;
	bool begun;
	bool behind;         /* over its high watermark: what comes now is skipped */
	bool gapped, lossy;  /* what it was sent is not all, or not as it was */
	uint64_t skipped[2]; /* bytes of each stream since then */
};
LIST_HEAD(watcher_list, watcher);

/* Tie it to the request, whose owner it is for `on_gone`. NULL when memory fails. */
struct watcher *watcher_create(struct api_request *r, void (*on_gone)(struct api_request *r));
/* Free it and give the request back, for its reply. */
struct api_request *watcher_destroy(struct watcher *w);

/* The exec exists: its headers and its `start` go out. */
void watcher_begin(struct watcher *w, uint64_t started_at_ms);
/* A rendered event, which may be empty, of so many bytes of a stream. One who is behind counts
 * the bytes of it instead. */
void watcher_write(struct watcher *w, const struct json_out *events, unsigned stream,
                   uint64_t bytes);
/* The terminal event, with word of its gap first, or the reply to one that has not begun.
 * Either ends the request, and the watcher is gone. */
void watcher_finish(struct watcher *w, const Sandgate__Exit *x);
void watcher_fail(struct watcher *w, const struct err *e, const struct api_details *d);

#endif
