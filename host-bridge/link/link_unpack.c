#include "host-bridge/link/link_unpack.h"

#include <stdlib.h>

#include "proto/limits.h"

static void *on_alloc(void *data, size_t size)
{
	size_t *left = data;
	if (size > *left)
		return NULL;
	*left -= size;
	return malloc(size);
}

static void on_free(void *data, void *p)
{
	(void)data;
	free(p);
}

Sandgate__GuestFrame *link_unpack(const uint8_t *payload, size_t len)
{
	size_t left = UNPACK_MAX;
	ProtobufCAllocator budget = {on_alloc, on_free, &left};
	return sandgate__guest_frame__unpack(&budget, len, payload);
}

void link_unpack_free(Sandgate__GuestFrame *f)
{
	sandgate__guest_frame__free_unpacked(f, NULL);
}
