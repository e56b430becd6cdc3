/*
 * The guest's memory as the VMM shares it: a table of mapped regions, and the only place
 * that turns a guest's address into a pointer. Called by vhost_user (which fills the
 * table) and virtqueue. It never trusts an address or a length, and never copies.
 *
 * A file behind a region can still be truncated later; touching it is then a SIGBUS.
 */
#ifndef SANDGATE_GUEST_MEM_H
#define SANDGATE_GUEST_MEM_H

#include <stdint.h>

#include "proto/err.h"
#include "proto/limits.h"

struct guest_region {
	uint64_t gpa;  /* guest physical address */
	uint64_t uva;  /* address in the VMM, which ring addresses use */
	uint64_t size; /* bytes */
	uint8_t *base; /* our mapping */
};

struct guest_mem {
	struct guest_region regions[GUEST_REGIONS_MAX];
	unsigned n;
};

/* Map `size` bytes of `fd` from `offset`. The descriptor stays the caller's. Refused: a
 * table that is full, an empty, wrapping or overlapping region, a file that is too short,
 * an offset that is not page-aligned. */
int guest_mem_add(struct guest_mem *m, uint64_t gpa, uint64_t uva, uint64_t size, int fd,
                  uint64_t offset, struct err *e);

/* Unmap everything. */
void guest_mem_clear(struct guest_mem *m);

/* The `len` (> 0) bytes at a guest physical address, or NULL unless they lie in one region. */
void *guest_mem_gpa(const struct guest_mem *m, uint64_t gpa, uint64_t len);

/* The same for an address of the VMM. */
void *guest_mem_uva(const struct guest_mem *m, uint64_t uva, uint64_t len);

#endif
