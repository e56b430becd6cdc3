#include "host-bridge/device/guest_mem.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>

static bool overlaps(uint64_t a, uint64_t b, uint64_t a_size, uint64_t b_size)
{
	return a < b + b_size && b < a + a_size;
}

int guest_mem_add(struct guest_mem *m, uint64_t gpa, uint64_t uva, uint64_t size, int fd,
                  uint64_t offset, struct err *e)
{
	uint64_t end;
	struct stat st;

	if (m->n == GUEST_REGIONS_MAX)
		return err_set(e, ERR_PROTOCOL, "too many memory regions");
	if (size == 0 || size > INT64_MAX || __builtin_add_overflow(gpa, size, &end) ||
	    __builtin_add_overflow(uva, size, &end) ||
	    __builtin_add_overflow(offset, size, &end))
		return err_set(e, ERR_PROTOCOL, "a memory region is empty or wraps");
	for (unsigned i = 0; i < m->n; i++) {
		const struct guest_region *r = &m->regions[i];
		if (overlaps(gpa, r->gpa, size, r->size) ||
		    overlaps(uva, r->uva, size, r->size))
			return err_set(e, ERR_PROTOCOL, "memory regions overlap");
	}
	if (fstat(fd, &st) < 0)
		return err_errno(e, ERR_PROTOCOL, errno, "memory region");
	if (st.st_size < 0 || (uint64_t)st.st_size < end)
		return err_set(e, ERR_PROTOCOL, "a memory region is longer than its file");

	void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	if (base == MAP_FAILED)
		return err_errno(e, ERR_PROTOCOL, errno, "cannot map a memory region");
	m->regions[m->n++] = (struct guest_region){gpa, uva, size, base};
	return 0;
}

void guest_mem_clear(struct guest_mem *m)
{
	for (unsigned i = 0; i < m->n; i++)
		munmap(m->regions[i].base, m->regions[i].size);
	m->n = 0;
}

/* `start` is the region's address in the address space asked about. */
static void *within(const struct guest_region *r, uint64_t start, uint64_t addr, uint64_t len)
{
	if (addr < start || addr - start >= r->size || len > r->size - (addr - start))
		return NULL;
	return r->base + (addr - start);
}

void *guest_mem_gpa(const struct guest_mem *m, uint64_t gpa, uint64_t len)
{
	for (unsigned i = 0; i < m->n; i++) {
		void *p = within(&m->regions[i], m->regions[i].gpa, gpa, len);
		if (p != NULL)
			return p;
	}
	return NULL;
}

void *guest_mem_uva(const struct guest_mem *m, uint64_t uva, uint64_t len)
{
	for (unsigned i = 0; i < m->n; i++) {
		void *p = within(&m->regions[i], m->regions[i].uva, uva, len);
		if (p != NULL)
			return p;
	}
	return NULL;
}
