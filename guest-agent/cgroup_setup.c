#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "guest-agent/cgroup_files.h"
#include "guest-agent/cgroup_private.h"
#include "guest-agent/init.h"
#include "guest-agent/own_mount.h"
#include "proto/limits.h"
#include "proto/log.h"

#define TOPS_MAX 1024 /* agents side by side in one cgroup */

static const struct {
	const char *name;
	unsigned feature;
} controllers[] = {
    {"memory", CGROUP_MEMORY},
    {"pids", CGROUP_PIDS},
    {"cpu", CGROUP_CPU},
    {"io", CGROUP_IO},
};

/* The agent's own cgroup v2 path, from the line "0::<path>". */
static bool own_path(char *out, size_t size)
{
	char line[PATH_MAX + 16];
	bool found = false;
	FILE *f = fopen("/proc/self/cgroup", "re");

	while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, "0::/", 4) == 0)
			found = (size_t)snprintf(out, size, "%s", line + 3) < size;
	}
	if (f != NULL)
		fclose(f);
	return found;
}

/* Where that path is mounted: the part of it below the mount's root, after the mount point.
 * mountinfo: id, parent, device, root, mount point, options … "-", type. */
static bool find_base(char *out, size_t size)
{
	char path[PATH_MAX], line[3 * PATH_MAX], *field[5];
	bool found = false;

	if (!own_path(path, sizeof(path)))
		return false;
	FILE *f = fopen("/proc/self/mountinfo", "re");
	while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
		char *rest = line;
		if (strstr(line, " - cgroup2 ") == NULL)
			continue;
		for (size_t i = 0; i < 5; i++)
			field[i] = strsep(&rest, " ");
		char *root = field[3], *point = field[4];
		if (root == NULL || point == NULL)
			continue;
		size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
		if (strncmp(path, root, n) != 0 || (path[n] != '/' && path[n] != '\0'))
			continue;
		found = (size_t)snprintf(out, size, "%s%s", point, path + n) < size;
	}
	if (f != NULL)
		fclose(f);
	return found;
}

static void pause_ms(long ms)
{
	struct timespec t = {.tv_nsec = ms * 1000000};
	nanosleep(&t, NULL);
}

/* What an agent that died left in a top: at most half a second, before the loop runs. */
static bool clear_out(int top)
{
	char events[256];

	for (int tries = 0; tries < 100; tries++) {
		cgroup_files_kill(top);
		cgroup_files_prune(top);
		if (cgroup_files_read(top, "cgroup.events", events, sizeof(events)) == 0 &&
		    cgroup_files_field(events, "populated") == 0)
			return true;
		pause_ms(5);
	}
	return false;
}

/* Take "sandgate", or "sandgate-1" … when that is another agent's. An agent holds a lock on
 * its top while it lives, whatever its pid namespace, so what can be locked is nobody's. */
static int take_top(struct cgroup_tree *t)
{
	struct stat held, named;

	for (int n = 0; n < TOPS_MAX; n++) {
		if (n == 0)
			strcpy(t->name, "sandgate");
		else
			snprintf(t->name, sizeof(t->name), "sandgate-%d", n);
		if (mkdirat(t->base, t->name, 0755) != 0 && errno != EEXIST)
			return -1;
		int fd = cgroup_files_open(t->base, t->name, false);
		if (fd < 0)
			continue;
		if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &held) == 0 &&
		    fstatat(t->base, t->name, &named, 0) == 0 && held.st_ino == named.st_ino &&
		    clear_out(fd))
			return fd;
		close(fd);
	}
	errno = EBUSY;
	return -1;
}

static int enter(int top)
{
	int agent = cgroup_files_open(top, "agent", true);
	if (agent < 0)
		return -1;
	int rc = cgroup_files_write(agent, "cgroup.procs", "0");
	int saved = errno;
	close(agent);
	errno = saved;
	return rc;
}

/* Each controller for itself, top down: one that is missing takes no other with it. Each makes
 * every leaf dearer, so there is none that no limit could use. */
static void enable_controllers(struct cgroup_tree *t)
{
	int dirs[] = {t->base, t->top, t->exec};
	char word[16], enabled[256];

	for (size_t c = 0; c < sizeof(controllers) / sizeof(controllers[0]); c++) {
		if (controllers[c].feature == CGROUP_IO && t->disks[0][0] == '\0')
			continue;
		snprintf(word, sizeof(word), "+%s", controllers[c].name);
		for (size_t i = 0; i < 3; i++)
			if (cgroup_files_write(dirs[i], "cgroup.subtree_control", word) != 0)
				break;
	}
	if (cgroup_files_read(t->exec, "cgroup.subtree_control", enabled, sizeof(enabled)) != 0)
		return;
	for (size_t c = 0; c < sizeof(controllers) / sizeof(controllers[0]); c++)
		if (cgroup_files_has_word(enabled, controllers[c].name))
			t->features |= controllers[c].feature;
}

static uint64_t number_in(int dir, const char *file)
{
	char text[64];
	if (cgroup_files_read(dir, file, text, sizeof(text)) != 0 || text[0] < '0' ||
	    text[0] > '9')
		return UINT64_MAX;
	return strtoull(text, NULL, 10);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* RAM less the reserve for exec/, the reserve's core guaranteed to the agent. */
static void share_memory(struct cgroup_tree *t)
{
	struct sysinfo si;
	uint64_t total = UINT64_MAX;

	if (sysinfo(&si) == 0) {
		total = (uint64_t)si.totalram * si.mem_unit;
		t->has_swap = si.totalswap > 0;
	}
	total = smaller(total, number_in(t->base, "memory.max"));
	uint64_t reserve = total / RESERVE_RAM_SHARE;
	if (reserve < (uint64_t)RESERVE_MIB * MIB)
		reserve = (uint64_t)RESERVE_MIB * MIB;
	t->memory = total > 2 * reserve ? total - reserve : total / 2;
	if ((t->features & CGROUP_MEMORY) == 0)
		return;
	cgroup_files_write_number(t->exec, "memory.max", t->memory);
	if (!t->has_swap) /* swap that comes later is for no exec; leaves need not say so */
		cgroup_files_write_number(t->exec, "memory.swap.max", 0);
	cgroup_files_write_number(t->top, "memory.min", AGENT_MEMORY_MIN_MIB * MIB);
	cgroup_files_write_number(t->top, "agent/memory.min", AGENT_MEMORY_MIN_MIB * MIB);
}

/* All execs leave an eighth of the kernel's process numbers alone, and one exec by default
 * leaves half of the rest: a fork bomb starves neither the agent nor another exec. */
static void share_pids(struct cgroup_tree *t)
{
	uint64_t total = smaller(number_in(AT_FDCWD, "/proc/sys/kernel/threads-max"),
	                         number_in(AT_FDCWD, "/proc/sys/kernel/pid_max"));
	total = smaller(total, number_in(t->base, "pids.max"));
	uint64_t all = total - total / 8;

	t->pids = smaller(PIDS_DEFAULT, all / 2);
	if ((t->features & CGROUP_PIDS) != 0)
		cgroup_files_write_number(t->exec, "pids.max", all);
}

/* What the agent does is short and what waits for it is everybody: among busy execs it runs
 * at once, not at the next tick. */
static void share_cpu(struct cgroup_tree *t)
{
	if ((t->features & CGROUP_CPU) != 0)
		cgroup_files_write(t->top, "agent/cpu.weight", "10000");
}

/* io.max takes whole disks only. Memory and network file systems have none. */
static void name_disk(dev_t device, char name[24])
{
	char path[64], dev[24];

	if (major(device) == 0)
		return;
	snprintf(dev, sizeof(dev), "%u:%u", major(device), minor(device));
	snprintf(path, sizeof(path), "/sys/dev/block/%s/partition", dev);
	if (access(path, F_OK) == 0) {
		snprintf(path, sizeof(path), "/sys/dev/block/%s/../dev", dev);
		if (cgroup_files_read(AT_FDCWD, path, dev, sizeof(dev)) != 0)
			return;
		dev[strcspn(dev, "\n")] = '\0';
	}
	strcpy(name, dev);
}

static void find_disks(struct cgroup_tree *t)
{
	const dev_t *made = init_disks();
	struct stat st;

	name_disk(made[0], t->disks[0]);
	name_disk(made[1], t->disks[1]);
	if (stat("/", &st) == 0 && major(st.st_dev) != 0)
		name_disk(st.st_dev, t->disks[0]);
}

void cgroup_setup(struct cgroup_tree *t)
{
	char path[PATH_MAX];
	const char *step = "no cgroup v2 is mounted";

	t->base = t->top = t->exec = -1;
	if (find_base(path, sizeof(path))) {
		step = "its cgroup cannot be used";
		t->base = own_mount(path);
		if (t->base >= 0)
			t->top = take_top(t);
		if (t->top >= 0 && enter(t->top) == 0)
			t->exec = cgroup_files_open(t->top, "exec", true);
	}
	if (t->exec >= 0) {
		t->features = CGROUP_V2;
		if (faccessat(t->exec, "cgroup.kill", F_OK, 0) == 0)
			t->features |= CGROUP_KILL;
		find_disks(t);
		enable_controllers(t);
		cgroup_files_write_number(t->exec, "cgroup.max.depth", CGROUP_DEPTH_MAX);
	} else {
		log_warn("cgroup", NULL, "no cgroups for execs: %s", step);
		cgroup_setup_undo(t);
	}
	share_memory(t);
	share_pids(t);
	share_cpu(t);
}

static void close_dir(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void cgroup_setup_undo(struct cgroup_tree *t)
{
	if (t->top >= 0) {
		cgroup_files_write(t->base, "cgroup.procs", "0");
		for (int tries = 0; tries < 100; tries++) {
			if (t->exec >= 0) {
				cgroup_files_kill(t->exec);
				cgroup_files_prune(t->exec);
			}
			cgroup_files_prune(t->top);
			if (unlinkat(t->base, t->name, AT_REMOVEDIR) == 0 || errno != EBUSY)
				break;
			pause_ms(5);
		}
	}
	close_dir(&t->exec);
	close_dir(&t->top);
	close_dir(&t->base);
	t->features = 0;
}
