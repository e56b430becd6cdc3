/*
 * Server-sent events (api.md section 4): what they look like, and one open stream of
 * them to a client. Calls and hubs render each event once into a buffer and write it to
 * one stream or many. It never decides when a stream ends.
 *
 * Sequence numbers count raw bytes of both streams. The id of an event is the number of
 * bytes from the start that have been emitted without a hole: half a character that is
 * held back keeps the id in front of it, so that a resume there loses nothing. The
 * terminal event's id is one past the end, which no other event has.
 */
#ifndef SANDGATE_SSE_H
#define SANDGATE_SSE_H

#include <ev.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host-bridge/api/api.h"
#include "host-bridge/http/json_out.h"
#include "proto/sandgate.pb-c.h"

/* ---- events of one exec ---- */

#define SSE_HELD_MAX 3 /* the front of a 4-byte character */

struct sse_text {
	const char *exec_id;
	bool base64;   /* chunks are whole bytes: nothing is held back */
	bool lossy;    /* a chunk had bytes that were no UTF-8 */
	uint64_t next; /* sequence number of the next raw byte expected */
	char held[2][SSE_HELD_MAX];
	uint8_t held_len[2];
	uint64_t held_at[2]; /* sequence number of the first held byte */
	bool torn[2];        /* after a gap: what comes next may be a character's rest */
};

void sse_text_init(struct sse_text *t, const char *exec_id, bool base64, uint64_t next);
/* The id that a resume may start from. */
uint64_t sse_text_id(const struct sse_text *t);

/* Render one event each. `start` may be 0 when it is not known. */
void sse_start(struct sse_text *t, struct json_out *out, uint64_t started_at_ms);
void sse_chunk(struct sse_text *t, struct json_out *out, const Sandgate__Output *o);
/* Bytes that the guest does not have any more. A character that it cut is gone as a whole:
 * its other bytes are told as lost, too, and are never repaired into what nobody wrote. */
void sse_gap(struct sse_text *t, struct json_out *out, const Sandgate__Gap *g);
/* Bytes that one slow reader did not get. */
void sse_skipped(struct sse_text *t, struct json_out *out, Sandgate__Stream stream,
                 uint64_t bytes);
/* The terminal event, after what was held back. */
void sse_exit(struct sse_text *t, struct json_out *out, const Sandgate__Result *r,
              bool truncated);
void sse_error(struct sse_text *t, struct json_out *out, const char *request_id,
               const struct err *e, const struct api_details *d);

/* Parse an event id "<exec id>:<number>"; -1 when it is none. */
int sse_parse_id(const char *id, char exec_id[EXEC_ID_MAX + 1], uint64_t *number);

/* ---- an open stream ---- */

struct sse {
	struct api_request *r;
	ev_timer quiet; /* sends the comment; looks back at `wrote` rather than being reset */
	ev_tstamp wrote;
};

/* Send the headers. */
void sse_open(struct sse *s, struct api_request *r);
/* False: the client is slow, wait for room. */
bool sse_write(struct sse *s, const struct json_out *events);
/* Stop the timer; the request is ended by the caller. Harmless when never opened. */
void sse_stop(struct sse *s);

#endif
