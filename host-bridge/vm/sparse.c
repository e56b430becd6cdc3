#include "host-bridge/vm/sparse.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/limits.h"

#define BLOCK (256 * KIB)
#define PAGE (4 * KIB)

static int failed(struct err *e, const char *what)
{
	return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", what);
}

static bool is_zero(const char *p, size_t n)
{
	return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

/* Write the runs of pages that hold anything. */
static int write_data(int to, const char *block, size_t len, off_t at, struct err *e)
{
	for (size_t begin = 0; begin < len;) {
		size_t end = begin;
		while (end < len && !is_zero(block + end, len - end < PAGE ? len - end : PAGE))
			end += PAGE;
		end = end < len ? end : len;
		while (begin < end) {
			ssize_t n = pwrite(to, block + begin, end - begin, at + (off_t)begin);
			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				return failed(e, "writing a copy");
			begin += (size_t)n;
		}
		begin += PAGE; /* that one is zero */
	}
	return 0;
}

static int copy_range(int from, int to, off_t at, off_t end, char *block, struct err *e)
{
	while (at < end) {
		size_t want = end - at < (off_t)BLOCK ? (size_t)(end - at) : BLOCK;
		ssize_t n = pread(from, block, want, at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return failed(e, "reading what is copied");
		if (write_data(to, block, (size_t)n, at, e) < 0)
			return -1;
		at += n;
	}
	return 0;
}

static int copy_data(int from, int to, off_t size, struct err *e)
{
	int rc = 0;
	char *block = malloc(BLOCK);
	if (block == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	for (off_t at = 0, end; rc == 0 && (at = lseek(from, at, SEEK_DATA)) >= 0; at = end) {
		end = lseek(from, at, SEEK_HOLE);
		end = end > at ? end : size;
		rc = copy_range(from, to, at, end, block, e);
	}
	if (rc == 0 && errno != ENXIO) /* ENXIO: no data is left */
		rc = failed(e, "reading what is copied");
	free(block);
	return rc;
}

static int copy(int from, int to, struct err *e)
{
	struct stat st, there;
	if (fstat(from, &st) < 0 || fstat(to, &there) < 0)
		return failed(e, "making a copy");
	if (!S_ISREG(st.st_mode) || !S_ISREG(there.st_mode))
		return err_set(e, ERR_LAUNCHER_FAILED, "what is copied is no file");
	if (there.st_size != 0 && there.st_size != st.st_size)
		return err_set(e, ERR_LAUNCHER_FAILED,
		               "what is copied has not the size that is due");
	if (ioctl(to, FICLONE, from) == 0)
		return 0;
	if (ftruncate(to, st.st_size) < 0)
		return failed(e, "making a copy");
	return copy_data(from, to, st.st_size, e);
}

int sparse_copy(const char *from, const char *to, struct err *e)
{
	int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (in < 0)
		return failed(e, "opening what is copied");
	int out = open(to, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (out < 0) {
		int rc = failed(e, "making a copy");
		close(in);
		return rc;
	}
	int rc = copy(in, out, e);
	if (close(out) < 0 && rc == 0)
		rc = failed(e, "writing a copy");
	close(in);
	if (rc < 0)
		unlink(to);
	return rc;
}
