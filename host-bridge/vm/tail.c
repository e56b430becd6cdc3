#include "host-bridge/vm/tail.h"

#include <string.h>

void tail_add(char *tail, size_t *len, size_t room, const void *more, size_t n)
{
	const char *from = more;
	if (n > room) {
		from += n - room;
		n = room;
	}
	size_t keep = room - n;
	if (*len > keep) {
		memmove(tail, tail + *len - keep, keep);
		*len = keep;
	}
	if (n > 0)
		memcpy(tail + *len, from, n);
	*len += n;
}
