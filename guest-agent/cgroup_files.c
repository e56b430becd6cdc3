#include "guest-agent/cgroup_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/limits.h"

int cgroup_files_open(int dir, const char *name, bool make)
{
	if (make && mkdirat(dir, name, 0755) != 0)
		return -1;
	return openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

int cgroup_files_write(int dir, const char *file, const char *text)
{
	int fd = openat(dir, file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = write(fd, text, strlen(text));
	int saved = errno;
	close(fd);
	errno = saved;
	return n < 0 ? -1 : 0;
}

int cgroup_files_write_number(int dir, const char *file, uint64_t value)
{
	char text[24];
	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	return cgroup_files_write(dir, file, text);
}

int cgroup_files_pread(int fd, char *buf, size_t size)
{
	ssize_t n = pread(fd, buf, size - 1, 0);
	buf[n > 0 ? n : 0] = '\0';
	return n < 0 ? -1 : 0;
}

int cgroup_files_read(int dir, const char *file, char *buf, size_t size)
{
	buf[0] = '\0';
	int fd = openat(dir, file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	int rc = cgroup_files_pread(fd, buf, size);
	int saved = errno;
	close(fd);
	errno = saved;
	return rc;
}

uint64_t cgroup_files_field(const char *text, const char *key)
{
	size_t n = strlen(key);

	for (const char *line = text; line != NULL && *line != '\0';) {
		if (strncmp(line, key, n) == 0 && line[n] == ' ')
			return strtoull(line + n + 1, NULL, 10);
		line = strchr(line, '\n');
		line = line != NULL ? line + 1 : NULL;
	}
	return 0;
}

bool cgroup_files_has_word(const char *text, const char *word)
{
	size_t n = strlen(word);

	while (*text != '\0') {
		size_t len = strcspn(text, " \n");
		if (len == n && strncmp(text, word, n) == 0)
			return true;
		text += len + strspn(text + len, " \n");
	}
	return false;
}

/* Call `visit` for every cgroup below `dir`, children before their parent. `budget` bounds
 * the walk and `depth` the recursion: a hostile root can nest and multiply cgroups. */
static void walk(int dir, unsigned depth, unsigned *budget,
                 void (*visit)(int parent, const char *name, int self, void *arg), void *arg)
{
	struct dirent *d;
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = copy >= 0 ? fdopendir(copy) : NULL;

	if (list == NULL) {
		if (copy >= 0)
			close(copy);
		return;
	}
	while (*budget > 0 && (d = readdir(list)) != NULL) {
		if (d->d_type != DT_DIR || d->d_name[0] == '.')
			continue;
		int self = cgroup_files_open(dir, d->d_name, false);
		if (self < 0)
			continue;
		--*budget;
		if (depth > 0)
			walk(self, depth - 1, budget, visit, arg);
		visit(dir, d->d_name, self, arg);
		close(self);
	}
	closedir(list);
}

struct signalling {
	int signal;
	unsigned count;
};

/* Processes outside this pid namespace read as 0. */
static void signal_members(int dir, struct signalling *s)
{
	char line[24];
	int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;

	if (f == NULL) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while (fgets(line, sizeof(line), f) != NULL) {
		pid_t pid = (pid_t)strtol(line, NULL, 10);
		s->count++;
		if (s->signal != 0 && pid > 0 && pid != getpid())
			kill(pid, s->signal);
	}
	fclose(f);
}

static void signal_visit(int parent, const char *name, int self, void *arg)
{
	(void)parent, (void)name;
	signal_members(self, arg);
}

unsigned cgroup_files_signal(int dir, int signal)
{
	struct signalling s = {.signal = signal};
	unsigned budget = CGROUP_WALK_MAX;

	walk(dir, CGROUP_DEPTH_MAX, &budget, signal_visit, &s);
	signal_members(dir, &s);
	return s.count;
}

void cgroup_files_kill(int dir)
{
	if (cgroup_files_write(dir, "cgroup.kill", "1") == 0 || errno != ENOENT)
		return;
	cgroup_files_write(dir, "cgroup.freeze", "1");
	cgroup_files_signal(dir, SIGKILL);
	cgroup_files_write(dir, "cgroup.freeze", "0");
}

static void prune_visit(int parent, const char *name, int self, void *arg)
{
	(void)self, (void)arg;
	unlinkat(parent, name, AT_REMOVEDIR);
}

void cgroup_files_prune(int dir)
{
	unsigned budget = CGROUP_WALK_MAX;
	walk(dir, CGROUP_DEPTH_MAX, &budget, prune_visit, NULL);
}
