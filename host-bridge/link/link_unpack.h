/*
 * A guest's frame, unpacked within a budget: two bytes on the wire can ask for a structure
 * a hundred times their size, and a frame has room for thousands. link_read.c calls it.
 */
#ifndef SANDGATE_LINK_UNPACK_H
#define SANDGATE_LINK_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/sandgate.pb-c.h"

/* NULL when it is no message, or would take more than UNPACK_MAX bytes; or there is no memory,
 * which `lacks` tells, and is no fault of the guest's. */
Sandgate__GuestFrame *link_unpack(const uint8_t *payload, size_t len, bool *lacks);
void link_unpack_free(Sandgate__GuestFrame *f);

#endif
