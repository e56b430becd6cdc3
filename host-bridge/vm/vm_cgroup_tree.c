/* Where the cgroups of VMs are made, and what can be had there. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host-bridge/vm/vm_cgroup.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "proto/log.h"

#define BRIDGE_GROUP "sandgate-bridge"
#define FILE_MAX 4096

static const char *const controllers[] = {"memory", "pids", "cpu"};
#define CONTROLLERS (sizeof(controllers) / sizeof(*controllers))

/* ---- files ---- */

/* A bridge must not run its VMs without bounds because it was short of descriptors when it
 * started. Every other failure says what can be had here. */
static bool is_short(void)
{
	return errno == EMFILE || errno == ENFILE;
}

static int write_file(const char *dir, const char *file, const char *text)
{
	char path[PATH_MAX + 32];
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? write(fd, text, strlen(text)) : -1;
	int saved = errno;
	if (fd >= 0)
		close(fd);
	errno = saved;
	return n < 0 ? -1 : 0;
}

/* "" and -1 with errno when it cannot be read. */
static int read_file(const char *dir, const char *file, char out[FILE_MAX])
{
	char path[PATH_MAX + 32];
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, out, FILE_MAX - 1) : -1;
	int saved = errno;
	if (fd >= 0)
		close(fd);
	out[n > 0 ? n : 0] = '\0';
	errno = saved;
	return n < 0 ? -1 : 0;
}

static bool has_word(const char *text, const char *word)
{
	size_t len = strlen(word);
	for (const char *p = text; (p = strstr(p, word)) != NULL; p += len)
		if ((p == text || p[-1] == ' ') && strchr(" \n", p[len]) != NULL)
			return true;
	return false;
}

/* ---- where ---- */

/* The directory of the cgroup that this process is in; "" where there is none. The hierarchy's
 * line in /proc/self/cgroup starts with "0::" (cgroups(7)). -1 in a shortage. */
static int own_cgroup(char out[PATH_MAX])
{
	char line[PATH_MAX], mount[PATH_MAX / 2] = "", path[PATH_MAX / 2] = "";
	out[0] = '\0';
	FILE *f = fopen("/proc/self/mounts", "re");
	if (f == NULL)
		return is_short() ? -1 : 0;
	while (fgets(line, sizeof(line), f) != NULL)
		if (mount[0] == '\0' && strstr(line, " cgroup2 ") != NULL)
			sscanf(line, "%*s %2047s", mount);
	fclose(f);
	f = fopen("/proc/self/cgroup", "re");
	if (f == NULL)
		return is_short() ? -1 : 0;
	while (fgets(line, sizeof(line), f) != NULL)
		if (strncmp(line, "0::", 3) == 0)
			sscanf(line + 3, "%2047s", path);
	fclose(f);
	if (mount[0] != '\0' && path[0] == '/')
		snprintf(out, PATH_MAX, "%s%s", mount, path[1] != '\0' ? path : "");
	return 0;
}

/* A bridge that was started by another one is in that one's place already. */
static int base_cgroup(char out[PATH_MAX])
{
	int rc = own_cgroup(out);
	char *last = strrchr(out, '/');
	if (last != NULL && strcmp(last + 1, BRIDGE_GROUP) == 0)
		*last = '\0';
	return rc;
}

/* ---- what can be had ---- */

/* Whether a process can be born in a cgroup here: a kernel or a container may refuse. */
static int try_birth(const char *tree)
{
	char leaf[PATH_MAX + 16];
	snprintf(leaf, sizeof(leaf), "%s/trial", tree);
	if (mkdir(leaf, 0755) < 0 && errno != EEXIST)
		return -1;
	int dir = open(leaf, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct clone_args args = {.flags = CLONE_INTO_CGROUP | CLONE_VFORK,
	                          .exit_signal = SIGCHLD,
	                          .cgroup = (__u64)dir};
	long pid = dir >= 0 ? syscall(SYS_clone3, &args, sizeof(args)) : -1;
	if (pid == 0)
		_exit(0);
	int saved = errno;
	if (pid > 0)
		waitpid((pid_t)pid, NULL, 0);
	if (dir >= 0)
		close(dir);
	vm_cgroup_remove(leaf);
	errno = saved;
	return pid > 0 ? 0 : -1;
}

/* Only the root of all may have processes and pass controllers on; it has no such file. */
static bool is_root(const char *dir)
{
	char type[PATH_MAX + 32];
	snprintf(type, sizeof(type), "%s/cgroup.type", dir);
	return access(type, F_OK) < 0;
}

/* Leave `base`, as the last one that is in there. -1 in a shortage. */
static int move_out(const char *base)
{
	char group[PATH_MAX + 32], procs[FILE_MAX], self[16];
	if (read_file(base, "cgroup.procs", procs) < 0 && is_short())
		return -1;
	snprintf(self, sizeof(self), "%d\n", (int)getpid());
	if (strcmp(procs, self) != 0)
		return 0;
	snprintf(group, sizeof(group), "%s/" BRIDGE_GROUP, base);
	if ((mkdir(group, 0755) == 0 || errno == EEXIST) &&
	    write_file(group, "cgroup.procs", "0") == 0)
		return 0;
	log_warn("vm", NULL, "%s: %s", group, strerror(errno));
	return is_short() ? -1 : 0;
}

/* Pass on to leaves what there is of controllers; the names of the others to `missing`. -1 in a
 * shortage. */
static int pass_on(const char *base, const char *tree, char *missing, size_t room)
{
	char there[FILE_MAX], passed[FILE_MAX];
	bool moved = is_root(base);
	size_t n = 0;
	missing[0] = '\0';
	if ((read_file(base, "cgroup.controllers", there) < 0 && is_short()) ||
	    (read_file(base, "cgroup.subtree_control", passed) < 0 && is_short()))
		return -1;
	for (size_t i = 0; i < CONTROLLERS; i++) {
		char word[16];
		bool is_there = has_word(there, controllers[i]);
		if (is_there && !moved && !has_word(passed, controllers[i])) {
			if (move_out(base) < 0)
				return -1;
			moved = true;
		}
		snprintf(word, sizeof(word), "+%s", controllers[i]);
		if (is_there && write_file(base, "cgroup.subtree_control", word) == 0 &&
		    write_file(tree, "cgroup.subtree_control", word) == 0)
			continue;
		if (is_there && is_short())
			return -1;
		n += (size_t)snprintf(missing + n, room - n, "%s%s", n > 0 ? ", " : "",
		                      controllers[i]);
	}
	return 0;
}

static int cannot_tell(struct err *e)
{
	return err_errno(e, ERR_CAPACITY, errno, "what cgroups VMs can have");
}

int vm_cgroup_open(char tree[PATH_MAX], const char *name, struct err *e)
{
	char base[PATH_MAX], missing[64];
	tree[0] = '\0';
	if (base_cgroup(base) < 0)
		return cannot_tell(e);
	if (base[0] == '\0') {
		log_info("vm", NULL, "VMs have no cgroups: there is no cgroup v2 here");
		return 0;
	}
	if ((size_t)snprintf(tree, PATH_MAX, "%.*s/%s", PATH_MAX / 2, base, name) >=
	        PATH_MAX / 2 ||
	    (mkdir(tree, 0755) < 0 && errno != EEXIST) || try_birth(tree) < 0) {
		if (is_short())
			return cannot_tell(e);
		log_info("vm", NULL, "VMs have no cgroups: %s: %s", tree, strerror(errno));
		rmdir(tree);
		tree[0] = '\0';
		return 0;
	}
	if (pass_on(base, tree, missing, sizeof(missing)) < 0)
		return cannot_tell(e);
	log_info("vm", NULL, "VMs have cgroups in %s%s%s", tree,
	         missing[0] != '\0' ? ", without bounds on " : "", missing);
	return 0;
}

/* ---- the end ---- */

/* The kernel tells of changes to cgroup.events by POLLPRI. */
static void kill_and_remove(const char *leaf)
{
	char path[PATH_MAX + 32], seen[256];
	snprintf(path, sizeof(path), "%s/cgroup.events", leaf);
	struct pollfd p = {.fd = open(path, O_RDONLY | O_CLOEXEC), .events = POLLPRI};
	uint64_t due = clock_mono_ms() + CLEANUP_WAIT_MS;
	vm_cgroup_kill(leaf);
	while (!vm_cgroup_remove(leaf)) {
		int64_t ms = (int64_t)(due - clock_mono_ms());
		if (ms <= 0 || p.fd < 0 || pread(p.fd, seen, sizeof(seen), 0) < 0) {
			log_warn("vm", NULL, "%s: it is not empty", leaf);
			break;
		}
		poll(&p, 1, ms < CLEANUP_RETRY_MS ? (int)ms : CLEANUP_RETRY_MS);
	}
	if (p.fd >= 0)
		close(p.fd);
}

int vm_cgroup_sweep(const char *tree, bool (*is_known)(const char *leaf, void *arg), void *arg,
                    struct err *e)
{
	char leaf[PATH_MAX];
	struct dirent *d;
	if (tree[0] == '\0')
		return 0;
	DIR *all = opendir(tree);
	if (all == NULL)
		return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", tree);
	while ((d = readdir(all)) != NULL) {
		snprintf(leaf, sizeof(leaf), "%.*s/%s", PATH_MAX / 2, tree, d->d_name);
		if (d->d_type != DT_DIR || d->d_name[0] == '.' || is_known(leaf, arg))
			continue;
		log_info("vm", NULL, "removing what was left in %s", leaf);
		kill_and_remove(leaf);
	}
	closedir(all);
	return 0;
}

void vm_cgroup_close(const char *tree)
{
	if (tree[0] != '\0')
		rmdir(tree);
}
