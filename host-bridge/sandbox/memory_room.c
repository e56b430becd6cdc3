#include "host-bridge/sandbox/memory_room.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "proto/limits.h"

/* Bytes that its files have not taken yet; -1 with `e`. */
static long long promised(const char *dir, struct err *e)
{
	unsigned long long bytes = 0;
	struct dirent *d;
	struct stat st;
	DIR *all = opendir(dir);
	if (all == NULL)
		return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno,
		                 "the guests' memory");
	while ((d = readdir(all)) != NULL) {
		if (fstatat(dirfd(all), d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		unsigned long long size = (unsigned long long)st.st_size;
		unsigned long long taken = (unsigned long long)st.st_blocks * 512;
		bytes += size > taken ? size - taken : 0;
	}
	closedir(all);
	return (long long)bytes;
}

int memory_room_check(const char *dir, unsigned mib, struct err *e)
{
	struct statvfs fs;
	long long taken = promised(dir, e);
	if (taken < 0)
		return -1;
	unsigned long long need = (unsigned long long)mib * MIB + (unsigned long long)taken;
	if (statvfs(dir, &fs) == 0 && need > (unsigned long long)fs.f_bavail * fs.f_frsize)
		return err_set(e, ERR_STORAGE_FULL,
		               "this host has no room for the RAM of %u MiB more", mib);
	return 0;
}
