#include "host-bridge/link/link_unpack.h"

#include <stdlib.h>

#include "proto/limits.h"

struct budget {
	size_t left;
	bool lacks;
};

static void *on_alloc(void *data, size_t size)
{
	struct budget *b = data;
	if (size > b->left)
		return NULL;
	b->left -= size;
	void *p = malloc(size);
	b->lacks |= p == NULL;
	return p;
}

static void on_free(void *data, void *p)
{
	(void)data;
	free(p);
}

Sandgate__GuestFrame *link_unpack(const uint8_t *payload, size_t len, bool *lacks)
{
	struct budget b = {.left = UNPACK_MAX};
	ProtobufCAllocator allocator = {on_alloc, on_free, &b};
	Sandgate__GuestFrame *f = sandgate__guest_frame__unpack(&allocator, len, payload);
	*lacks = b.lacks;
	return f;
}

void link_unpack_free(Sandgate__GuestFrame *f)
{
	sandgate__guest_frame__free_unpacked(f, NULL);
}
