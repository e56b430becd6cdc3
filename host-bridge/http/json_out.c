#include "host-bridge/http/json_out.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/http/base64.h"
#include "host-bridge/http/utf8.h"

#define FIRST_CAP 512

/* Strings are escaped in blocks: room for the worst case of one (\u00XX for every byte,
 * and a character that straddles its end) is reserved at once. */
#define BLOCK 2048

static bool reserve(struct json_out *j, size_t more)
{
	size_t cap = j->cap ? j->cap : FIRST_CAP;
	char *data;

	if (j->failed)
		return false;
	if (more <= j->cap - j->len)
		return true;
	while (cap - j->len < more)
		cap *= 2;
	data = realloc(j->data, cap);
	if (!data) {
		j->failed = true;
		return false;
	}
	j->data = data;
	j->cap = cap;
	return true;
}

static void add(struct json_out *j, const char *text, size_t len)
{
	if (len == 0 || !reserve(j, len))
		return;
	memcpy(j->data + j->len, text, len);
	j->len += len;
}

/* What comes before a value: the comma, unless it is the first, and its name. No value
 * ends in an opening bracket, so the last byte tells. */
static void begin_value(struct json_out *j, const char *key)
{
	if (j->depth > 0 && j->len > 0 && !strchr("{[", j->data[j->len - 1]))
		add(j, ",", 1);
	if (key) {
		add(j, "\"", 1);
		add(j, key, strlen(key));
		add(j, "\":", 2);
	}
}

void json_out_object(struct json_out *j, const char *key)
{
	begin_value(j, key);
	add(j, "{", 1);
	j->depth++;
}

void json_out_array(struct json_out *j, const char *key)
{
	begin_value(j, key);
	add(j, "[", 1);
	j->depth++;
}

void json_out_end(struct json_out *j, char bracket)
{
	add(j, &bracket, 1);
	j->depth--;
}

/* The escape of a byte below 0x20, a quote or a backslash. */
static size_t escape(char *out, unsigned char c)
{
	static const char short_for[] = "btn?fr"; /* from 0x08 on */

	out[0] = '\\';
	if (c == '"' || c == '\\') {
		out[1] = (char)c;
		return 2;
	}
	if (c >= 0x08 && c <= 0x0d && c != 0x0b) {
		out[1] = short_for[c - 0x08];
		return 2;
	}
	memcpy(out + 1, "u00", 3);
	out[4] = "0123456789abcdef"[c >> 4];
	out[5] = "0123456789abcdef"[c & 15];
	return 6;
}

/* Whether all eight bytes are ASCII that stands for itself: tests them side by side. */
static bool plain8(const char *s)
{
	const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
	uint64_t w, quote, slash;

	memcpy(&w, s, 8);
	quote = w ^ ones * '"';
	slash = w ^ ones * '\\';
	return ((w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & tops) == 0;
}

/* Escape from `s` (of `len` bytes) until BLOCK of them are used up; bytes used. The room
 * is reserved. */
static size_t add_block(struct json_out *j, const char *s, size_t len)
{
	size_t stop = len < BLOCK ? len : BLOCK, i = 0;
	char *out = j->data + j->len;

	while (i < stop) {
		unsigned char c = (unsigned char)s[i];
		bool valid, cut;
		size_t n;

		if (i + 8 <= stop && plain8(s + i)) {
			memcpy(out, s + i, 8);
			out += 8;
			i += 8;
		} else if (c < 0x20 || c == '"' || c == '\\') {
			out += escape(out, c);
			i++;
		} else if (c < 0x80) {
			*out++ = (char)c;
			i++;
		} else {
			n = utf8_char(s + i, len - i, &valid, &cut);
			memcpy(out, valid ? s + i : "\xef\xbf\xbd", valid ? n : 3);
			out += valid ? n : 3;
			j->repaired |= !valid;
			i += n;
		}
	}
	j->len = (size_t)(out - j->data);
	return i;
}

void json_out_text(struct json_out *j, const void *data, size_t len)
{
	const char *s = data;

	while (len > 0) {
		size_t block = len < BLOCK ? len : BLOCK, used;

		if (!reserve(j, 6 * (block + 4)))
			return;
		used = add_block(j, s, len);
		s += used;
		len -= used;
	}
}

void json_out_bytes(struct json_out *j, const char *key, const void *data, size_t len)
{
	begin_value(j, key);
	add(j, "\"", 1);
	json_out_text(j, data, len);
	add(j, "\"", 1);
}

void json_out_string(struct json_out *j, const char *key, const char *value)
{
	if (value)
		json_out_bytes(j, key, value, strlen(value));
	else
		json_out_null(j, key);
}

void json_out_base64_text(struct json_out *j, const void *data, size_t len)
{
	if (!reserve(j, BASE64_LEN(len)))
		return;
	base64_encode(j->data + j->len, data, len);
	j->len += BASE64_LEN(len);
}

void json_out_base64(struct json_out *j, const char *key, const void *data, size_t len)
{
	begin_value(j, key);
	add(j, "\"", 1);
	json_out_base64_text(j, data, len);
	add(j, "\"", 1);
}

void json_out_int(struct json_out *j, const char *key, int64_t value)
{
	char text[24];

	begin_value(j, key);
	add(j, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)value));
}

void json_out_bool(struct json_out *j, const char *key, bool value)
{
	begin_value(j, key);
	add(j, value ? "true" : "false", value ? 4 : 5);
}

void json_out_null(struct json_out *j, const char *key)
{
	begin_value(j, key);
	add(j, "null", 4);
}

void json_out_raw(struct json_out *j, const char *text, size_t len)
{
	add(j, text, len);
}

char *json_out_take(struct json_out *j, size_t *len)
{
	char *data = j->failed ? NULL : j->data;

	if (j->failed)
		free(j->data);
	*len = data ? j->len : 0;
	*j = (struct json_out){0};
	return data;
}

void json_out_reset(struct json_out *j)
{
	*j = (struct json_out){.data = j->data, .cap = j->cap};
}

void json_out_free(struct json_out *j)
{
	free(j->data);
	*j = (struct json_out){0};
}
