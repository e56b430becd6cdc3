#include "host-bridge/vm/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host-bridge/vm/sparse.h"
#include "host-bridge/vm/vmm.h"
#include "proto/limits.h"

#define PROGRAM "mke2fs"

/* What a kernel of the last ten years knows, whatever this host's configuration prefers. No
 * journal: a guest that ends without unmounting has lost its disk as well. The file is new, so
 * nothing on it has to be overwritten with zeroes, neither now nor by the guest later. */
static const char *const arguments[] = {
    PROGRAM,
    "-q",
    "-F",
    "-t",
    "ext4",
    "-b",
    "4096",
    "-i",
    "16384",
    "-m",
    "0",
    "-O",
    "none,ext_attr,dir_index,filetype,extents,64bit,flex_bg,sparse_super,large_file,huge_file,"
    "dir_nlink,extra_isize,metadata_csum",
    "-E",
    "assume_storage_prezeroed=1,nodiscard,root_owner=0:0",
};
#define ARGUMENTS (sizeof(arguments) / sizeof(*arguments))

void vmm_boot_words(const struct vmm_boot *b, char out[VMM_WORDS_MAX])
{
	bool root = b->root[0] != '\0', disk = b->disk_mib > 0;
	snprintf(out, VMM_WORDS_MAX, "%s%s%s%s", b->hostname[0] != '\0' ? " hostname=" : "",
	         b->hostname, root ? " sandgate.root=/dev/vda" : "",
	         !disk  ? ""
	         : root ? " sandgate.disk=/dev/vdb"
	                : " sandgate.disk=/dev/vda");
}

int disk_make(const char *path, unsigned mib, uid_t owner, struct err *e)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int rc = fd < 0 ? -1 : ftruncate(fd, (off_t)mib * MIB);
	if (rc == 0 && geteuid() == 0 && owner != 0)
		rc = fchown(fd, owner, owner);
	if (rc < 0)
		err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno, "the VM's disk");
	if (fd >= 0)
		close(fd);
	return rc;
}

/* The program's exit status, and what it said; -1 with errno when it could not be run. */
static int run(char *const argv[], char *said, size_t room)
{
	posix_spawn_file_actions_t actions;
	int fds[2], status;
	pid_t pid;
	size_t len = 0;
	ssize_t n;
	if (pipe2(fds, O_CLOEXEC) < 0)
		return -1;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
	posix_spawn_file_actions_adddup2(&actions, 0, 1);
	posix_spawn_file_actions_adddup2(&actions, fds[1], 2);
	int failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	while (failed == 0 && (n = read(fds[0], said + len, room - 1 - len)) > 0)
		len += (size_t)n;
	said[len] = '\0';
	close(fds[0]);
	errno = failed;
	if (failed != 0 || waitpid(pid, &status, 0) < 0)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

int disk_format(const char *path, struct err *e)
{
	char *argv[ARGUMENTS + 2], said[1024];
	for (size_t i = 0; i < ARGUMENTS; i++)
		argv[i] = (char *)arguments[i];
	argv[ARGUMENTS] = (char *)path;
	argv[ARGUMENTS + 1] = NULL;
	setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
	setenv("LC_ALL", "C", 1);
	setenv("MKE2FS_CONFIG", "/dev/null", 1);
	int status = run(argv, said, sizeof(said));
	if (status == 0)
		return 0;
	if (status < 0)
		return err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		                 PROGRAM " cannot be run");
	if (strstr(said, strerror(ENOSPC)) != NULL)
		return err_set(e, ERR_STORAGE_FULL, "no room for the VM's disk");
	said[strcspn(said, "\n")] = '\0';
	return err_set(e, ERR_LAUNCHER_FAILED, PROGRAM ": %.100s", said);
}

/* Its VMM, which may have been taken over, can put anything under that name: only a file that
 * is nobody else's is given another. */
static bool give_name(const char *path, const char *to)
{
	char self[32];
	struct stat st;
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	bool given = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	             st.st_nlink == 1 &&
	             linkat(AT_FDCWD, self, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0;
	if (fd >= 0)
		close(fd);
	return given;
}

int disk_save(const char *path, const char *to, bool last, struct err *e)
{
	return last && give_name(path, to) ? 0 : sparse_copy(path, to, e);
}
