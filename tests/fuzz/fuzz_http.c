/*
 * The request parser, fed in pieces whose sizes the input's first byte chooses. What it
 * makes of a byte stream must not depend on where the stream is cut.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/http/http_parse.h"
#include "proto/limits.h"

struct result {
	unsigned requests;
	int status;
	uint64_t body_len;
	uint32_t hash; /* of heads and bodies */
};

static void mix(struct result *r, const void *data, size_t len)
{
	const unsigned char *s = data;

	for (size_t i = 0; i < len; i++)
		r->hash = (r->hash ^ s[i]) * 16777619u;
}

static void mix_head(struct result *r, const struct http_head *h)
{
	const char *key;

	mix(r, h->text, strlen(h->text));
	for (size_t n = 0; (key = http_head_query_key(h, n)); n++)
		mix(r, http_head_query(h, key), strlen(http_head_query(h, key)));
	assert(h->version_1_0 || http_head_header(h, "host"));
	assert(!h->chunked || h->content_length == 0);
	assert(h->n_headers <= HTTP_HEADERS_MAX);
}

static struct result run(const uint8_t *data, size_t size, size_t piece)
{
	struct http_parse p;
	struct result r = {0};
	size_t at = 0;

	http_parse_init(&p);
	for (;;) {
		size_t len = size - at < piece ? size - at : piece, used;
		/* The piece alone, so that a read past it is seen. */
		char *copy = malloc(len + 1);
		enum http_event event;

		memcpy(copy, data + at, len);
		copy = realloc(copy, len ? len : 1);
		event = http_parse_feed(&p, copy, len, &used);
		assert(used <= len);
		if (event == HTTP_EV_DATA) {
			assert(p.data_len > 0 && p.data >= copy &&
			       p.data + p.data_len <= copy + len);
			mix(&r, p.data, p.data_len);
			r.body_len += p.data_len;
		}
		free(copy);
		at += used;
		if (event == HTTP_EV_HEAD)
			mix_head(&r, &p.head);
		if (event == HTTP_EV_DONE) {
			r.requests++;
			http_parse_next(&p);
		}
		if (event == HTTP_EV_BAD) {
			r.status = p.status;
			break;
		}
		if (event == HTTP_EV_MORE) {
			assert(used == len);
			if (at == size)
				break;
		}
	}
	http_parse_free(&p);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct result whole, cut;

	if (size < 1)
		return 0;
	whole = run(data + 1, size - 1, SIZE_MAX);
	cut = run(data + 1, size - 1, 1 + data[0] % 64);
	assert(whole.requests == cut.requests);
	assert(whole.hash == cut.hash && whole.body_len == cut.body_len);
	/* Which of two limits is met first may depend on the cut; being met does not. */
	assert((whole.status != 0) == (cut.status != 0));
	return 0;
}
