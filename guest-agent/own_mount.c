#include "guest-agent/own_mount.h"

#include <fcntl.h>
#include <sys/mount.h>

int own_mount(const char *path)
{
	struct mount_attr sealed = {.attr_set = MOUNT_ATTR_NODEV, .propagation = MS_PRIVATE};
	int fd = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);

	if (fd < 0)
		return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Linux 5.12; before, what is mounted in a shared tree comes to the copy as well. */
	mount_setattr(fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &sealed, sizeof(sealed));
	return fd;
}

int own_proc(void)
{
	static int proc = -1;

	if (proc < 0)
		proc = own_mount("/proc");
	return proc;
}
