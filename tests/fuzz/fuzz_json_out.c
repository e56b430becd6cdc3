/*
 * Any bytes written as JSON read back: as themselves where they were UTF-8, repaired where
 * they were not; split pieces give the same as the whole; base64 is what
 * libsodium reads.
 */
#include <assert.h>
#include <jansson.h>
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/http/base64.h"
#include "host-bridge/http/json_out.h"
#include "host-bridge/http/utf8.h"

static bool is_valid(const char *s, size_t len)
{
	bool valid = true, cut;
	for (size_t i = 0; valid && i < len;)
		i += utf8_char(s + i, len - i, &valid, &cut);
	return valid;
}

static void check_string(const char *s, size_t len)
{
	struct json_out j = {0};
	json_t *back;

	json_out_array(&j, NULL);
	json_out_bytes(&j, NULL, s, len);
	json_out_end(&j, ']');
	assert(!j.failed && j.repaired == !is_valid(s, len));
	back = json_loadb(j.data, j.len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
	assert(back);
	if (!j.repaired) {
		json_t *value = json_array_get(back, 0);

		assert(json_string_length(value) == len);
		assert(memcmp(json_string_value(value), s, len) == 0);
	}
	json_decref(back);
	json_out_free(&j);
}

/* Two chunks, the first without its cut character, against the whole. */
static void check_split(const char *s, size_t len, size_t at)
{
	struct json_out whole = {0}, parts = {0};
	size_t first = at - utf8_split(s, at);

	json_out_bytes(&whole, NULL, s, len);
	json_out_bytes(&parts, NULL, s, first);
	parts.len--; /* its closing quote, and the opening one of the next */
	size_t joint = parts.len;
	json_out_bytes(&parts, NULL, s + first, len - first);
	memmove(parts.data + joint, parts.data + joint + 1, parts.len - joint - 1);
	parts.len--;
	assert(parts.len == whole.len && memcmp(parts.data, whole.data, whole.len) == 0);
	json_out_free(&whole);
	json_out_free(&parts);
}

static void check_base64(const char *s, size_t len)
{
	char *text = malloc(BASE64_LEN(len) + 1), *back = malloc(len + 1);
	size_t n;

	base64_encode(text, s, len);
	assert(sodium_base642bin((unsigned char *)back, len + 1, text, BASE64_LEN(len), NULL,
	                         &n, NULL, sodium_base64_VARIANT_ORIGINAL) == 0);
	assert(n == len && memcmp(back, s, len) == 0);
	free(text);
	free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *s = (const char *)data + 1;

	if (size < 1)
		return 0;
	check_string(s, size - 1);
	check_split(s, size - 1, data[0] % size);
	check_base64(s, size - 1);
	return 0;
}
