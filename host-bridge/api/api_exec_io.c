/* Raw bytes of an exec: what it wrote, as it is, and input for it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/ask.h"
#include "host-bridge/api/handlers.h"

/* ---- output: what is retained at the time of asking ---- */

struct output {
	struct ask ask;
	Sandgate__Stream stream;
	uint64_t end; /* what is written later is another request's */
};

static void output_end(struct ask *a)
{
	api_end(ask_done(a));
}

static void on_output_room(struct api_request *r)
{
	struct output *o = r->owner;
	if (o->ask.dial.link != NULL)
		link_resume(o->ask.dial.link);
}

static void on_chunk(struct output *o, const Sandgate__Output *chunk)
{
	size_t n = chunk->data.len;
	if (chunk->sequence >= o->end)
		n = 0;
	else if (chunk->sequence + n > o->end)
		n = (size_t)(o->end - chunk->sequence);
	if (n > 0 && chunk->stream == o->stream &&
	    !http_write(o->ask.r->x, chunk->data.data, n))
		link_pause(o->ask.dial.link);
	if (chunk->sequence + chunk->data.len >= o->end)
		output_end(&o->ask);
}

static void on_output(struct ask *a, const Sandgate__GuestFrame *f)
{
	struct output *o = (struct output *)a;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_OUTPUT)
		on_chunk(o, f->output);
	else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXIT ||
	         (f->body_case == SANDGATE__GUEST_FRAME__BODY_GAP &&
	          f->gap->sequence + f->gap->bytes >= o->end))
		output_end(a);
}

static void on_output_state(struct ask *a, const Sandgate__GuestFrame *f)
{
	struct output *o = (struct output *)a;
	if (f->body_case != SANDGATE__GUEST_FRAME__BODY_EXEC_STATE)
		return;
	const Sandgate__ExecState *s = f->exec_state;
	uint64_t first = s->first_sequence;
	struct err e;
	o->end = s->end_sequence;
	if (first >= o->end && o->end > 0 && s->phase == SANDGATE__EXEC_PHASE__PHASE_FINISHED) {
		err_set(&e, ERR_OUTPUT_GONE, "the exec's output is not kept%s",
		        s->released ? ": it was in the reply" : " any more");
		ask_fail(a, &e);
		return;
	}
	http_begin(a->r->x, 200, "application/octet-stream");
	if (first >= o->end) {
		output_end(a);
		return;
	}
	a->r->on_room = on_output_room;
	ask_attach(a, SANDGATE__ROLE__ROLE_OUTPUT, first, on_output);
}

static void output(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct err e;
	const char *which = http_query(r->x, "stream");
	(void)data;
	(void)len;
	bool is_stderr = which != NULL && strcmp(which, "stderr") == 0;
	if (which != NULL && !is_stderr && strcmp(which, "stdout") != 0) {
		err_field(&e, ERR_INVALID_FIELD, "stream", "stream must be stdout or stderr");
		api_fail(r, &e, NULL);
		return;
	}
	struct output *o = ask_create(r, s, sizeof(*o));
	if (o == NULL)
		return;
	o->stream =
	    is_stderr ? SANDGATE__STREAM__STREAM_STDERR : SANDGATE__STREAM__STREAM_STDOUT;
	ask_exec_info(&o->ask, on_output_state);
}

void api_exec_output(struct api_request *r, char *data, size_t len)
{
	ask_running(r, output, data, len);
}

/* ---- input ---- */

/*
 * The body is read only while the agent owes no acknowledgement, so the process's own pace
 * holds the client back. A retry at the same offset is refused rather than doubled.
 */
struct input {
	struct ask ask;
	bool has_offset, close, ended;
	bool closed;     /* the input takes no more: it was ended, or is not read any more */
	uint64_t offset; /* of the next byte, when given */
	unsigned owed;   /* acknowledgements */
	uint64_t taken;  /* as the agent last said … */
	uint64_t due;    /* … and is to say when all that was sent is taken */
};

static void reply_input(struct input *in)
{
	char *body;
	int n = asprintf(&body, "{\"offset\":%" PRIu64 "}", in->taken);
	struct api_request *r = ask_done(&in->ask);
	if (n < 0) {
		struct err e;
		err_set(&e, ERR_INTERNAL, "out of memory");
		api_fail(r, &e, NULL);
		return;
	}
	api_reply_take(r, 200, "application/json", body, (size_t)n);
}

/* Bytes came that nobody will read: the client must hear of it. */
static void refuse_input(struct input *in)
{
	struct err e;
	struct api_details d = {.has_limit = true, .limit = in->taken};
	struct api_request *r = ask_done(&in->ask);
	d.exec_id = r->exec_id;
	err_field(&e, ERR_STDIN_OFFSET, "stdin_open", "the input is closed: it takes no more");
	api_fail(r, &e, &d);
}

static void send_input(struct input *in, const char *data, size_t len)
{
	dial_stdin(&in->ask.dial, in->has_offset ? &in->offset : NULL, data, len);
	in->offset += len;
	in->due += len;
	in->owed++;
}

static void on_data(struct http_exchange *x, const char *data, size_t len, void *owner)
{
	struct api_request *r = owner;
	struct input *in = r->owner;
	if (in->closed) {
		refuse_input(in);
		return;
	}
	sandbox_touch(in->ask.sandbox);
	for (size_t n; len > 0; data += n, len -= n) {
		n = len < CHUNK_MAX ? len : CHUNK_MAX;
		send_input(in, data, n);
	}
	http_stream_pause(x);
}

static void on_data_end(struct http_exchange *x, void *owner)
{
	struct api_request *r = owner;
	struct input *in = r->owner;
	(void)x;
	in->ended = true;
	if (in->close) {
		dial_close_stdin(&in->ask.dial);
		in->owed++;
	} else if (in->owed == 0 && in->has_offset) {
		send_input(in, "",
		           0); /* an empty body still asks whether the offset is right */
	}
	if (in->owed == 0)
		reply_input(in);
}

/* The client's turn: it may take its time. */
static void read_on(struct input *in)
{
	dial_rest(&in->ask.dial);
	http_stream_resume(in->ask.r->x);
}

static void on_ack(struct input *in, const Sandgate__StdinAck *ack)
{
	in->taken = ack->offset;
	in->closed |= ack->closed;
	if (in->owed > 0)
		in->owed--;
	if (in->owed > 0)
		return;
	if (in->taken < in->due)
		refuse_input(in);
	else if (in->ended)
		reply_input(in);
	else
		read_on(in);
}

static void on_input(struct ask *a, const Sandgate__GuestFrame *f)
{
	struct input *in = (struct input *)a;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE) {
		in->taken = in->due = f->exec_state->stdin_offset;
		read_on(in);
	} else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_STDIN_ACK) {
		on_ack(in, f->stdin_ack);
	}
}

static int input_query(struct api_request *r, struct input *in, struct err *e)
{
	const char *close = http_query(r->x, "close");
	if (api_query_integer(r, "offset", INT64_MAX, &in->has_offset, &in->offset, e) < 0)
		return -1;
	in->close = close != NULL && (strcmp(close, "true") == 0 || strcmp(close, "1") == 0);
	if (close != NULL && !in->close && strcmp(close, "false") != 0 &&
	    strcmp(close, "0") != 0)
		return err_field(e, ERR_INVALID_FIELD, "close", "close must be true or false");
	return 0;
}

static void input(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct err e;
	(void)data;
	(void)len;
	struct input *in = ask_create(r, s, sizeof(*in));
	if (in == NULL)
		return;
	if (input_query(r, in, &e) < 0)
		ask_fail(&in->ask, &e);
	else
		ask_attach(&in->ask, SANDGATE__ROLE__ROLE_CONTROL, 0, on_input);
}

void api_exec_stdin(struct api_request *r, char *data, size_t len)
{
	http_stream(r->x, on_data, on_data_end, r);
	http_stream_pause(r->x);
	ask_running(r, input, data, len);
}
