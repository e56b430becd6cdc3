#include "host-bridge/sandbox/vm_sweep.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/log.h"

static int on_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	if ((type == FTW_DP ? rmdir(path) : unlink(path)) < 0)
		log_warn("vm", NULL, "%s: %s", path, strerror(errno));
	return 0;
}

void vm_remove_dir(const char *path)
{
	nftw(path, on_file, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* A VM's processes keep its directory as their working directory, or as their root; also when
 * it is gone, as proc(5) has it. */
static void kill_those_in(const char *path)
{
	char link[64], cwd[PATH_MAX], gone[PATH_MAX + 16];
	snprintf(gone, sizeof(gone), "%s (deleted)", path);
	DIR *proc = opendir("/proc");
	struct dirent *d;
	while (proc != NULL && (d = readdir(proc)) != NULL) {
		pid_t pid = (pid_t)atoi(d->d_name);
		snprintf(link, sizeof(link), "/proc/%d/cwd", (int)pid);
		ssize_t n = pid > 1 ? readlink(link, cwd, sizeof(cwd) - 1) : -1;
		if (n <= 0)
			continue;
		cwd[n] = '\0';
		if (strcmp(cwd, path) == 0 || strcmp(cwd, gone) == 0)
			kill(pid, SIGKILL);
	}
	if (proc != NULL)
		closedir(proc);
}

void vm_sweep(const char *dir, bool (*is_known)(const char *path, void *arg), void *arg)
{
	char path[PATH_MAX];
	DIR *all = opendir(dir);
	struct dirent *d;
	while (all != NULL && (d = readdir(all)) != NULL) {
		if (d->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, d->d_name);
		if (is_known(path, arg))
			continue;
		log_info("vm", NULL, "removing what was left in %s", path);
		kill_those_in(path);
		vm_remove_dir(path);
		kill_those_in(path); /* one that was being started may have come there since */
	}
	if (all != NULL)
		closedir(all);
}
