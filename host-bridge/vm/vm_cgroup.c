#include "host-bridge/vm/vm_cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/limits.h"
#include "proto/log.h"

#define CPU_PERIOD_US 100000u

/* A file that is not there belongs to a controller that is not, either. -1 with errno, when it
 * could not be opened for a shortage: another failure is only logged. */
static int put(const char *leaf, const char *file, const char *fmt, ...)
{
	char path[PATH_MAX + 32], value[64];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(value, sizeof(value), fmt, ap);
	va_end(ap);
	snprintf(path, sizeof(path), "%s/%s", leaf, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 && (errno == ENOENT || err_is_shortage(errno)))
		return errno == ENOENT ? 0 : -1;
	if (fd < 0 || write(fd, value, (size_t)n) < 0)
		log_warn("vm", NULL, "%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return 0;
}

int vm_cgroup_bound(const char *leaf, const struct vm_cgroup_size *size, struct err *e)
{
	if (leaf[0] == '\0' || size->memory_mib == 0)
		return 0;
	if (put(leaf, "memory.max", "%lluM",
	        VM_CGROUP_RAM_TIMES * (unsigned long long)size->memory_mib +
	            VM_CGROUP_MEMORY_MIB) == 0 &&
	    put(leaf, "memory.oom.group", "1") == 0 &&
	    put(leaf, "pids.max", "%u", VM_CGROUP_PIDS) == 0 &&
	    put(leaf, "cpu.max", "%u %u", (size->vcpus + VM_CGROUP_SPARE_CPUS) * CPU_PERIOD_US,
	        CPU_PERIOD_US) == 0)
		return 0;
	return err_errno(e, ERR_CAPACITY, errno, "the VM's bounds");
}

int vm_cgroup_make(const char *leaf, const struct vm_cgroup_size *size, struct err *e)
{
	if (mkdir(leaf, 0755) < 0 && errno != EEXIST)
		return err_errno(e, ERR_LAUNCHER_FAILED, errno, "the VM's cgroup");
	return vm_cgroup_bound(leaf, size, e);
}

void vm_cgroup_kill(const char *leaf)
{
	if (leaf[0] != '\0')
		put(leaf, "cgroup.kill", "1");
}

/* A cgroup's files go with their directory. */
static int on_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	return type == FTW_DP && rmdir(path) < 0 && errno != ENOENT ? errno : 0;
}

bool vm_cgroup_remove(const char *leaf)
{
	int rc =
	    leaf[0] != '\0' ? nftw(leaf, on_entry, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) : 0;
	if (rc > 0)
		errno = rc;
	if (rc > 0 && rc != EBUSY)
		log_warn("vm", NULL, "%s: %s", leaf, strerror(rc));
	return rc == 0 || (errno != EBUSY && !err_is_shortage(errno));
}
