#include "host-bridge/http/base64.h"

#include <stdint.h>
#include <string.h>

static const char alphabet[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(char *out, const void *data, size_t len)
{
	const uint8_t *in = data;

	for (; len >= 3; len -= 3, in += 3, out += 4) {
		uint32_t bits = (uint32_t)in[0] << 16 | (uint32_t)in[1] << 8 | in[2];

		out[0] = alphabet[bits >> 18];
		out[1] = alphabet[bits >> 12 & 63];
		out[2] = alphabet[bits >> 6 & 63];
		out[3] = alphabet[bits & 63];
	}
	if (len > 0) {
		uint32_t bits = (uint32_t)in[0] << 16 | (len > 1 ? (uint32_t)in[1] << 8 : 0);

		out[0] = alphabet[bits >> 18];
		out[1] = alphabet[bits >> 12 & 63];
		out[2] = len > 1 ? alphabet[bits >> 6 & 63] : '=';
		out[3] = '=';
	}
}

static int value_of(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	if (c == '+')
		return 62;
	return c == '/' ? 63 : -1;
}

ssize_t base64_decode(void *out, const char *text, size_t len)
{
	uint8_t *start = out, *o = out;

	if (len % 4 != 0)
		return -1;
	for (size_t i = 0; i < len; i += 4) {
		const char *q = text + i;
		int pad = i + 4 < len ? 0 : (q[3] == '=') + (q[3] == '=' && q[2] == '=');
		uint32_t bits = 0;

		for (int k = 0; k < 4; k++) {
			int v = k >= 4 - pad ? 0 : value_of(q[k]);

			if (v < 0)
				return -1;
			bits = bits << 6 | (uint32_t)v;
		}
		if (pad > 0 && (bits & (pad == 1 ? 0xff : 0xffff)) != 0)
			return -1;
		*o++ = (uint8_t)(bits >> 16);
		if (pad < 2)
			*o++ = (uint8_t)(bits >> 8);
		if (pad < 1)
			*o++ = (uint8_t)bits;
	}
	return o - start;
}
