#include "host-bridge/http/http_parse.h"

#include "proto/limits.h"

/* Framing bytes that one body byte excuses: a chunk of one byte has five. */
#define FRAMING_A_BODY_BYTE 8

static int refuse(struct http_parse *p, int status, const char *reason)
{
	p->event = HTTP_EV_BAD;
	p->status = status;
	p->reason = reason;
	return HPE_USER;
}

static int on_text(llhttp_t *ll, const char *at, size_t len)
{
	struct http_parse *p = ll->data;

	if (p->stage != HTTP_IN_HEAD) /* a trailer: counted as framing, not kept */
		return 0;
	return http_buf_add(&p->raw, at, len) < 0 ? refuse(p, 503, "out of memory") : 0;
}

static int on_name(llhttp_t *ll, const char *at, size_t len)
{
	struct http_parse *p = ll->data;
	size_t start = p->raw.len;
	int rc = on_text(ll, at, len);

	for (size_t i = start; i < p->raw.len; i++)
		if (p->raw.data[i] >= 'A' && p->raw.data[i] <= 'Z')
			p->raw.data[i] |= 0x20;
	return rc;
}

static int on_text_end(llhttp_t *ll)
{
	return on_text(ll, "", 1);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static int on_value_end(llhttp_t *ll)
{
	struct http_parse *p = ll->data;

	if (p->stage != HTTP_IN_HEAD)
		return 0;
	/* Stops at the name's NUL at the latest. */
	while (is_blank(p->raw.data[p->raw.len - 1]))
		p->raw.len--;
	if (++p->n_headers > HTTP_HEADERS_MAX)
		return refuse(p, 431, "too many headers");
	return on_text_end(ll);
}

static int on_headers_complete(llhttp_t *ll)
{
	struct http_parse *p = ll->data;

	/* An Upgrade that nobody asked us to honour leaves an ordinary request. */
	ll->upgrade = 0;
	p->event = HTTP_EV_HEAD;
	return HPE_PAUSED;
}

static int on_body(llhttp_t *ll, const char *at, size_t len)
{
	struct http_parse *p = ll->data;

	if (len == 0) /* the input ended where the body goes on */
		return 0;
	p->event = HTTP_EV_DATA;
	p->data = at;
	p->data_len = len;
	return HPE_PAUSED;
}

static int on_message_complete(llhttp_t *ll)
{
	struct http_parse *p = ll->data;

	p->event = HTTP_EV_DONE;
	return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_url = on_text,
    .on_url_complete = on_text_end,
    .on_header_field = on_name,
    .on_header_field_complete = on_text_end,
    .on_header_value = on_text,
    .on_header_value_complete = on_value_end,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void http_parse_init(struct http_parse *p)
{
	*p = (struct http_parse){.stage = HTTP_IN_HEAD};
	llhttp_init(&p->ll, HTTP_REQUEST, &settings);
	p->ll.data = p;
}

/* llhttp unfolds a header that goes on in the next line; we refuse it. */
static bool has_fold(struct http_parse *p, const char *data, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (p->last == '\n' && is_blank(data[i]))
			return true;
		p->last = data[i];
	}
	return false;
}

static void after_head_bytes(struct http_parse *p, const char *data, size_t len)
{
	p->head_len += len;
	if (has_fold(p, data, len)) {
		refuse(p, 400, "folded header");
	} else if (p->head_len > HTTP_HEAD_MAX) {
		refuse(p, 431, "request head too large");
	} else if (p->event == HTTP_EV_HEAD) {
		const char *reason;
		int status = http_head_build(&p->head, &p->ll, &p->raw, p->n_headers, &reason);

		http_buf_free(&p->raw);
		p->stage = HTTP_IN_BODY;
		if (status != 0)
			refuse(p, status, reason);
	}
}

static void after_body_bytes(struct http_parse *p, size_t len)
{
	size_t body = p->event == HTTP_EV_DATA ? p->data_len : 0;
	size_t excused = body * FRAMING_A_BODY_BYTE;

	p->body_len += body;
	if (p->ll.flags & F_CHUNKED)
		p->framing += len - body;
	p->framing -= excused < p->framing ? excused : p->framing;
	if (p->framing > HTTP_CHUNK_EXT_MAX)
		refuse(p, 413, "chunk extensions or trailers too large");
	else if (p->event == HTTP_EV_DONE)
		p->stage = HTTP_COMPLETE;
}

enum http_event http_parse_feed(struct http_parse *p, const char *data, size_t len,
                                size_t *used)
{
	enum llhttp_errno rc;
	size_t n = len;

	*used = 0;
	if (p->event == HTTP_EV_BAD || p->stage == HTTP_COMPLETE)
		return p->event;
	/* One byte over the limit is enough to know. */
	if (p->stage == HTTP_IN_HEAD && n > HTTP_HEAD_MAX + 1 - p->head_len)
		n = HTTP_HEAD_MAX + 1 - p->head_len;
	p->event = HTTP_EV_MORE;
	llhttp_resume(&p->ll);
	rc = llhttp_execute(&p->ll, data, n);
	if (p->event == HTTP_EV_BAD)
		return p->event;
	if (rc != HPE_OK && rc != HPE_PAUSED) {
		refuse(p, 400, llhttp_get_error_reason(&p->ll));
		return p->event;
	}
	if (rc == HPE_PAUSED)
		n = (size_t)(llhttp_get_error_pos(&p->ll) - data);
	*used = n;
	if (p->stage == HTTP_IN_HEAD)
		after_head_bytes(p, data, n);
	else
		after_body_bytes(p, n);
	return p->event;
}

void http_parse_next(struct http_parse *p)
{
	http_parse_free(p);
	http_parse_init(p);
}

void http_parse_free(struct http_parse *p)
{
	http_buf_free(&p->raw);
	http_head_free(&p->head);
}
