#include "host-bridge/vm/vm_usage.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host-bridge/vm/task.h"
#include "host-bridge/vm/vm_private.h"

/* Of one VM: User-mode Linux has one for each process of its guest. */
#define PROCESSES_MAX 4096

/* Shared with the child, which fills `usage` in. */
struct shared {
	pid_t pids[VM_PROCESSES_MAX];
	unsigned count;
	struct vm_usage usage;
};

struct vm_usage_call {
	struct shared *shared;
	struct task *task;
	void (*on_done)(const struct vm_usage *u, void *arg);
	void *arg;
};

/* ---- in the child: proc(5) ---- */

static size_t read_file(pid_t pid, const char *name, char *out, size_t room)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	FILE *f = fopen(path, "re");
	size_t n = f != NULL ? fread(out, 1, room - 1, f) : 0;
	if (f != NULL)
		fclose(f);
	out[n] = '\0';
	return n;
}

static bool kib_after(const char *text, const char *key, unsigned long long *kib)
{
	const char *at = strstr(text, key);
	return at != NULL && sscanf(at + strlen(key), "%llu", kib) == 1;
}

static bool is_gone(pid_t pid)
{
	return kill(pid, 0) < 0 && errno == ESRCH;
}

/* A process that has just ended has no memory, and statm says so or is gone with it. */
static void add_memory(struct vm_usage_part *p, pid_t pid)
{
	char text[2048];
	unsigned long long rss, pss, pages = 0;
	read_file(pid, "smaps_rollup", text, sizeof(text));
	if (kib_after(text, "\nRss:", &rss) && kib_after(text, "\nPss:", &pss)) {
		p->resident_bytes += rss * 1024;
		p->proportional_bytes += pss * 1024;
		return;
	}
	read_file(pid, "statm", text, sizeof(text));
	if (sscanf(text, "%*u %llu", &pages) != 1 && !is_gone(pid))
		p->has_resident = p->has_proportional = false;
	if (pages > 0)
		p->has_proportional = false;
	p->resident_bytes += pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Fields 14 to 17 of stat: user and system time, and those of ended children. The name in field
 * 2 may hold anything. */
static bool add_time(struct vm_usage_part *p, pid_t pid)
{
	char text[1024];
	unsigned long long user, system;
	long long user_children, system_children;
	read_file(pid, "stat", text, sizeof(text));
	const char *rest = strrchr(text, ')');
	if (rest == NULL || sscanf(rest + 1,
	                           " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %lld"
	                           " %lld",
	                           &user, &system, &user_children, &system_children) != 4)
		return false;
	uint64_t tick = (uint64_t)sysconf(_SC_CLK_TCK);
	p->cpu_user_ms += (user + (uint64_t)user_children) * 1000 / tick;
	p->cpu_system_ms += (system + (uint64_t)system_children) * 1000 / tick;
	return true;
}

/* Processes of one part, those that were looked at first. */
struct processes {
	pid_t pids[PROCESSES_MAX];
	unsigned count;
};

static void add_process(struct processes *all, long pid)
{
	if (all->count < PROCESSES_MAX)
		all->pids[all->count++] = (pid_t)pid;
}

/* A process's children are listed by the threads that started them. */
static void add_children(struct processes *all, pid_t pid)
{
	char path[64], name[300], text[16384];
	struct dirent *thread;
	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	DIR *d = opendir(path);
	while (d != NULL && (thread = readdir(d)) != NULL) {
		if (!isdigit((unsigned char)thread->d_name[0]))
			continue;
		snprintf(name, sizeof(name), "task/%s/children", thread->d_name);
		read_file(pid, name, text, sizeof(text));
		char *end, *at = text;
		for (long child; (child = strtol(at, &end, 10)) > 0; at = end)
			add_process(all, child);
	}
	if (d != NULL)
		closedir(d);
}

static void add_tree(struct vm_usage_part *p, pid_t root)
{
	static struct processes all;
	all.count = 0;
	add_process(&all, root);
	for (unsigned i = 0; i < all.count; i++)
		if (add_time(p, all.pids[i])) {
			p->known = true;
			add_memory(p, all.pids[i]);
			add_children(&all, all.pids[i]);
		}
}

static bool is_device(pid_t pid)
{
	char words[4096];
	size_t n = read_file(pid, "cmdline", words, sizeof(words));
	size_t first = strlen(words) + 1;
	return first < n && strcmp(words + first, "vsock-device") == 0;
}

/* That of another PID namespace tells of other processes under the same numbers. */
static bool proc_is_ours(void)
{
	char self[32];
	ssize_t n = readlink("/proc/self", self, sizeof(self) - 1);
	self[n > 0 ? n : 0] = '\0';
	return strtol(self, NULL, 10) == getpid();
}

static int look(const void *input, struct err *e)
{
	static const struct vm_usage_part none = {.has_resident = true,
	                                          .has_proportional = true};
	struct shared *s = (struct shared *)(uintptr_t)input;
	s->usage.vmm = s->usage.device = none;
	if (!proc_is_ours())
		return err_set(e, ERR_INTERNAL, "/proc is not of this PID namespace");
	for (unsigned i = 0; i < s->count; i++)
		add_tree(is_device(s->pids[i]) ? &s->usage.device : &s->usage.vmm, s->pids[i]);
	return 0;
}

/* ---- in the bridge ---- */

static void on_looked(const struct err *e, void *arg)
{
	struct vm_usage_call *c = arg;
	struct vm_usage usage = {0};
	if (e == NULL)
		usage = c->shared->usage;
	void (*on_done)(const struct vm_usage *, void *) = c->on_done;
	void *on_done_arg = c->arg;
	c->task = NULL;
	vm_usage_cancel(c);
	on_done(&usage, on_done_arg);
}

struct vm_usage_call *vm_usage_ask(const struct vm *vm,
                                   void (*on_done)(const struct vm_usage *u, void *arg),
                                   void *arg, struct err *e)
{
	struct vm_usage_call *c = calloc(1, sizeof(*c));
	struct shared *s =
	    mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (c == NULL || s == MAP_FAILED) {
		err_set(e, ERR_CAPACITY, "out of memory");
		free(c);
		return NULL;
	}
	for (unsigned i = 0; i < vm->started; i++)
		if (ev_is_active(&vm->process[i].ended))
			s->pids[s->count++] = vm->process[i].pid.pid;
	*c = (struct vm_usage_call){.shared = s, .on_done = on_done, .arg = arg};
	c->task = task_start(vm->loop, look, s, on_looked, c, e);
	if (c->task != NULL)
		return c;
	vm_usage_cancel(c);
	return NULL;
}

/* A child that is still looking has its own mapping of what it fills in. */
void vm_usage_cancel(struct vm_usage_call *c)
{
	if (c == NULL)
		return;
	task_cancel(c->task);
	munmap(c->shared, sizeof(*c->shared));
	free(c);
}
