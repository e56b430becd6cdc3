#include "host-bridge/api/bulk_reply.h"

#include <stdlib.h>
#include <string.h>

#include "host-bridge/http/utf8.h"

/* Raw bytes encoded at a time; a multiple of three, so that base64 has no padding inside. */
#define PIECE (48 * KIB)

struct bulk {
	struct api_request *r;
	struct json_out text; /* the reply without the streams' text */
	struct result_gaps gaps;
	struct call_buffer buffers[2];
	struct result_stream streams[2]; /* what of them is told */
	bool base64;
	size_t told;   /* of text */
	size_t sent;   /* of the stream in turn */
	unsigned turn; /* 2: both are done */
	bool repaired;
};

static void bulk_free(struct bulk *b)
{
	json_out_free(&b->text);
	for (int i = 0; i < 2; i++)
		call_buffer_clear(&b->buffers[i]);
	free(b);
}

static void on_gone(struct api_request *r)
{
	bulk_free(r->owner);
}

/* ---- pieces ---- */

static void tell_until(struct bulk *b, struct json_out *out, size_t end)
{
	json_out_raw(out, b->text.data + b->told, end - b->told);
	b->told = end;
}

/* The next piece of the stream in turn, and what stands in front of it. */
static void encode(struct bulk *b, struct json_out *out)
{
	const struct result_stream *s = &b->streams[b->turn];
	const char *from = s->data + b->sent;
	size_t left = s->len - b->sent, n = left < PIECE ? left : PIECE;
	tell_until(b, out, b->gaps.at[b->turn]);
	if (b->base64) {
		json_out_base64_text(out, from, n);
	} else {
		n -= n < left ? utf8_split(from, n) : 0;
		json_out_text(out, from, n);
	}
	b->sent += n;
	if (b->sent == s->len) {
		call_buffer_clear(&b->buffers[b->turn]);
		b->sent = 0;
		b->turn++;
	}
}

static void finish_text(struct bulk *b, struct json_out *out)
{
	static const char lossy[] = "true";
	tell_until(b, out, b->gaps.lossy);
	if (b->repaired) {
		json_out_raw(out, lossy, strlen(lossy));
		b->told += strlen("false");
	}
	tell_until(b, out, b->text.len);
}

/* ---- the two ways ---- */

static void out_of_memory(struct api_request *r)
{
	struct err e;
	struct api_details d = {.started = "yes", .exec_id = r->exec_id};
	err_set(&e, ERR_INTERNAL, "out of memory");
	api_fail(r, &e, &d);
}

static void reply_whole(struct bulk *b)
{
	struct api_request *r = b->r;
	struct json_out out = {0};
	size_t len;
	while (b->turn < 2)
		encode(b, &out);
	b->repaired = out.repaired;
	finish_text(b, &out);
	bulk_free(b);
	char *body = json_out_take(&out, &len);
	if (body == NULL)
		out_of_memory(r);
	else
		api_reply_take(r, 200, "application/json", body, len);
}

/* A reply that cannot go on is broken off: half of it must not pass for the whole. */
static void go_on(struct api_request *r)
{
	struct bulk *b = r->owner;
	struct json_out out = {0};
	bool room = true;
	while (room && b->turn < 2 && !out.failed) {
		json_out_reset(&out);
		encode(b, &out);
		b->repaired |= out.repaired;
		if (b->turn == 2)
			finish_text(b, &out);
		room = http_write(r->x, out.data, out.len);
	}
	bool failed = out.failed, done = b->turn == 2;
	json_out_free(&out);
	if (!failed && !done) /* on_room follows */
		return;
	r->on_gone = NULL;
	r->on_room = NULL;
	bulk_free(b);
	if (failed)
		api_abort(r);
	else
		api_end(r);
}

void bulk_reply(struct api_request *r, const Sandgate__Result *result,
                struct call_buffer streams[2], bool base64)
{
	struct bulk *b = calloc(1, sizeof(*b));
	if (b == NULL) {
		out_of_memory(r);
		return;
	}
	b->r = r;
	b->base64 = base64;
	for (int i = 0; i < 2; i++) {
		call_buffer_move(&b->buffers[i], &streams[i]);
		b->streams[i] = (struct result_stream){b->buffers[i].data, b->buffers[i].len};
	}
	result_json_around(&b->text, r->exec_id, result, b->streams, base64, &b->gaps);
	if (b->text.failed) {
		bulk_free(b);
		out_of_memory(r);
		return;
	}
	if (b->streams[0].len + b->streams[1].len <= PIECE) {
		reply_whole(b);
		return;
	}
	r->owner = b;
	r->on_gone = on_gone;
	r->on_room = go_on;
	http_begin(r->x, 200, "application/json");
	go_on(r);
}
