#include "host-bridge/http/utf8.h"

/* What may follow a lead byte: how many continuation bytes, and the range of the first,
 * which excludes overlong forms, surrogates and what is past U+10FFFF. */
struct lead {
	unsigned char more, low, high;
};

static struct lead lead_of(unsigned char c)
{
	if (c < 0xc2 || c > 0xf4)
		return (struct lead){0, 0, 0};
	if (c < 0xe0)
		return (struct lead){1, 0x80, 0xbf};
	if (c < 0xf0)
		return (struct lead){2, c == 0xe0 ? 0xa0 : 0x80, c == 0xed ? 0x9f : 0xbf};
	return (struct lead){3, c == 0xf0 ? 0x90 : 0x80, c == 0xf4 ? 0x8f : 0xbf};
}

size_t utf8_char(const char *s, size_t len, bool *valid, bool *cut)
{
	const unsigned char *u = (const unsigned char *)s;
	struct lead lead;
	size_t n = 1;

	*cut = false;
	*valid = u[0] < 0x80;
	if (*valid)
		return 1;
	lead = lead_of(u[0]);
	if (lead.more == 0)
		return 1;
	for (; n <= lead.more; n++) {
		*cut = n == len;
		if (n == len || u[n] < lead.low || u[n] > lead.high)
			return n;
		lead.low = 0x80;
		lead.high = 0xbf;
	}
	*valid = true;
	return n;
}

size_t utf8_split(const char *s, size_t len)
{
	for (size_t back = 1; back <= 3 && back <= len; back++) {
		unsigned char c = (unsigned char)s[len - back];
		bool valid, cut;

		if (c < 0x80)
			return 0;
		if (c >= 0xc0)
			return utf8_char(s + len - back, back, &valid, &cut) == back && cut
			           ? back
			           : 0;
	}
	return 0;
}
