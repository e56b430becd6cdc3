#include "host-bridge/sandbox/memory_room.h"

#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "proto/limits.h"

/* Bytes that its files have not taken yet. */
static unsigned long long promised(const char *dir)
{
	unsigned long long bytes = 0;
	struct dirent *d;
	struct stat st;
	DIR *all = opendir(dir);
	while (all != NULL && (d = readdir(all)) != NULL) {
		if (fstatat(dirfd(all), d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		unsigned long long size = (unsigned long long)st.st_size;
		unsigned long long taken = (unsigned long long)st.st_blocks * 512;
		bytes += size > taken ? size - taken : 0;
	}
	if (all != NULL)
		closedir(all);
	return bytes;
}

int memory_room_check(const char *dir, unsigned mib, struct err *e)
{
	struct statvfs fs;
	unsigned long long need = (unsigned long long)mib * MIB + promised(dir);
	if (statvfs(dir, &fs) == 0 && need > (unsigned long long)fs.f_bavail * fs.f_frsize)
		return err_set(e, ERR_STORAGE_FULL,
		               "this host has no room for the RAM of %u MiB more", mib);
	return 0;
}
