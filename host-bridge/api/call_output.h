/*
 * What a call tells its client: the buffered reply, the event stream, or "started". call.c
 * hands it what the agent says; it ends the request, and knows nothing of links.
 *
 * A buffered reply holds the first output_bytes of each stream; what comes after is counted
 * and dropped as it comes. A stream asks for a pause when its client is slow.
 */
#ifndef SANDGATE_CALL_OUTPUT_H
#define SANDGATE_CALL_OUTPUT_H

#include "host-bridge/api/call.h"
#include "host-bridge/api/call_buffer.h"
#include "host-bridge/api/sse.h"

struct call_output {
	struct api_request *r; /* until it was answered */
	struct ev_loop *loop;
	enum call_kind kind;
	const struct call_request *q;
	uint64_t next;                 /* sequence number of the next byte expected */
	struct call_buffer streams[2]; /* CALL_RUN */
	struct sse sse;                /* CALL_STREAM: */
	struct sse_text text;
	ev_timer headers; /* at the latest now */
	bool open;        /* they are sent */
	bool told_start;
	bool gapped;
};

void call_output_init(struct call_output *o, struct api_request *r, enum call_kind kind,
                      const struct call_request *q);
void call_output_free(struct call_output *o);
uint64_t call_output_next(const struct call_output *o);

/* The agent has accepted. With CALL_START this is the reply. */
void call_output_started(struct call_output *o, uint64_t started_at_ms);
/* False: pause, until the request has room. */
bool call_output_chunk(struct call_output *o, const Sandgate__Output *chunk);
void call_output_gap(struct call_output *o, const Sandgate__Gap *g);
/* Of which streams a buffered reply with this result will not have all. */
void call_output_cut(const struct call_output *o, const Sandgate__Result *r, bool cut[2]);
/* The reply, or the terminal event. Either ends the request. */
void call_output_finish(struct call_output *o, Sandgate__Result *result, uint64_t end);
void call_output_fail(struct call_output *o, const struct err *e, const struct api_details *d);

#endif
