#include "guest-agent/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

int plain_file_open(int dir, const char *path, int flags)
{
	struct stat st;
	int fd = openat(dir, path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return fd;
	if (fd >= 0) {
		close(fd);
		errno = ENOENT;
	} else if (errno == EBADF || (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	                              !S_ISREG(st.st_mode))) {
		errno = ENOENT;
	}
	return -1;
}

FILE *plain_file_read(int dir, const char *path)
{
	int fd = plain_file_open(dir, path, O_RDONLY | O_NOFOLLOW);
	FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;

	if (fd >= 0 && f == NULL)
		close(fd);
	return f;
}
