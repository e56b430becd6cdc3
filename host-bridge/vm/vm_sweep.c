#include "host-bridge/vm/vm_sweep.h"

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

#define DISCARDED ".discarded" /* the end of a name */

static int on_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	if ((type == FTW_DP ? rmdir(path) : unlink(path)) < 0)
		log_warn("vm", NULL, "%s: %s", path, strerror(errno));
	return 0;
}

int vm_remove_dir(const char *path)
{
	struct stat st;
	if (nftw(path, on_file, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) < 0)
		return errno == ENOENT ? 0 : -1;
	if (lstat(path, &st) < 0)
		return 0;
	errno = EBUSY;
	return -1;
}

static bool is_discarded(const char *path)
{
	const char *end = strrchr(path, '.');
	return end != NULL && strcmp(end, DISCARDED) == 0;
}

void vm_discard_dir(const char *path)
{
	char aside[PATH_MAX];
	if (vm_remove_dir(path) == 0 || is_discarded(path))
		return;
	log_warn("vm", NULL, "%s is left for later: %s", path, strerror(errno));
	snprintf(aside, sizeof(aside), "%.*s" DISCARDED, PATH_MAX - 32, path);
	if (rename(path, aside) < 0)
		log_error("vm", NULL, "%s: %s", aside, strerror(errno));
}

void vm_sweep_discarded(const char *dir)
{
	char path[PATH_MAX];
	DIR *all = opendir(dir);
	struct dirent *d;
	while (all != NULL && (d = readdir(all)) != NULL) {
		if (!is_discarded(d->d_name))
			continue;
		snprintf(path, sizeof(path), "%.*s/%s", PATH_MAX - 258, dir, d->d_name);
		if (vm_remove_dir(path) == 0)
			log_info("vm", NULL, "removed %s", path);
	}
	if (all != NULL)
		closedir(all);
}

/* A VM's processes keep its directory as their working directory, or as their root; also when
 * it is gone, as proc(5) has it. */
static int kill_those_in(const char *path, struct err *e)
{
	char link[64], cwd[PATH_MAX], gone[PATH_MAX + 16];
	snprintf(gone, sizeof(gone), "%s (deleted)", path);
	DIR *proc = opendir("/proc");
	struct dirent *d;
	if (proc == NULL)
		return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "/proc");
	while ((d = readdir(proc)) != NULL) {
		pid_t pid = (pid_t)atoi(d->d_name);
		snprintf(link, sizeof(link), "/proc/%d/cwd", (int)pid);
		ssize_t n = pid > 1 ? readlink(link, cwd, sizeof(cwd) - 1) : -1;
		if (n <= 0)
			continue;
		cwd[n] = '\0';
		if (strcmp(cwd, path) == 0 || strcmp(cwd, gone) == 0)
			kill(pid, SIGKILL);
	}
	closedir(proc);
	return 0;
}

/* A process that is being started may come there until the directory is gone. */
static int clear(const char *path, struct err *e)
{
	log_info("vm", NULL, "removing what was left in %s", path);
	if (kill_those_in(path, e) < 0)
		return -1;
	vm_discard_dir(path);
	return kill_those_in(path, e);
}

int vm_sweep(const char *dir, bool (*is_known)(const char *path, void *arg), void *arg,
             struct err *e)
{
	char path[PATH_MAX];
	DIR *all = opendir(dir);
	struct dirent *d;
	int rc = 0;
	if (all == NULL)
		return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", dir);
	while (rc == 0 && (d = readdir(all)) != NULL) {
		if (d->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, d->d_name);
		if (!is_known(path, arg))
			rc = clear(path, e);
	}
	closedir(all);
	return rc;
}
