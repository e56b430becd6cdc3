#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest-agent/cgroup_files.h"
#include "guest-agent/cgroup_private.h"

#define CPU_PERIOD_US 100000 /* longer ones stall what has just been spawned */
#define CPU_QUOTA_MIN_US 1000
#define LEAF_NAME_TRIES 16

static const struct {
	const char *name;
	unsigned feature;
} leaf_files[LEAF_FILES] = {
    [LEAF_EVENTS] = {"cgroup.events", CGROUP_V2},
    [LEAF_CPU] = {"cpu.stat", CGROUP_V2},
    [LEAF_OOM] = {"memory.events", CGROUP_MEMORY},
    [LEAF_PEAK] = {"memory.peak", CGROUP_MEMORY},
    [LEAF_PIDS] = {"pids.events", CGROUP_PIDS},
    [LEAF_MEMORY_MAX] = {"memory.max", CGROUP_MEMORY},
    [LEAF_SWAP_MAX] = {"memory.swap.max", CGROUP_MEMORY},
    [LEAF_PIDS_MAX] = {"pids.max", CGROUP_PIDS},
    [LEAF_CPU_MAX] = {"cpu.max", CGROUP_CPU},
};

static void open_file(struct cgroup_leaf *l, enum cgroup_leaf_file i)
{
	l->files[i] = (l->tree->features & leaf_files[i].feature) == 0
	                  ? -1
	                  : openat(l->dir, leaf_files[i].name,
	                           (i < LEAF_READ_FILES ? O_RDONLY : O_WRONLY) | O_CLOEXEC);
}

void cgroup_leaf_open_files(struct cgroup_leaf *l)
{
	for (int i = 0; i < LEAF_FILES; i++)
		if (l->files[i] == LEAF_UNOPENED)
			open_file(l, (enum cgroup_leaf_file)i);
}

/* Its text, "" when the kernel has no such file. */
static const char *read_file(struct cgroup_leaf *l, enum cgroup_leaf_file i, char *buf,
                             size_t size)
{
	buf[0] = '\0';
	if (l->dir < 0)
		return buf;
	if (l->files[i] == LEAF_UNOPENED)
		open_file(l, i);
	if (l->files[i] >= 0)
		cgroup_files_pread(l->files[i], buf, size);
	return buf;
}

/* -1 with errno. */
static int write_file(struct cgroup_leaf *l, enum cgroup_leaf_file i, const char *text)
{
	if (l->files[i] < 0)
		return cgroup_files_write(l->dir, leaf_files[i].name, text);
	return pwrite(l->files[i], text, strlen(text), 0) < 0 ? -1 : 0;
}

struct cgroup_leaf *cgroup_leaf_make(struct cgroup_tree *t, struct err *e)
{
	struct cgroup_leaf *l = calloc(1, sizeof(*l));
	if (l == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	l->tree = t;
	l->dir = -1;
	l->retry.data = l;
	for (int i = 0; i < LEAF_FILES; i++)
		l->files[i] = LEAF_UNOPENED;
	l->applied = (struct cgroup_limits){.memory_bytes = UINT64_MAX,
	                                    .swap_bytes = UINT64_MAX,
	                                    .pids = UINT64_MAX,
	                                    .cpu_milli = UINT64_MAX,
	                                    .io_read_bps = UINT64_MAX,
	                                    .io_write_bps = UINT64_MAX};
	if ((t->features & CGROUP_V2) == 0)
		return l;
	/* A name that exists was made by root in an exec: take the next. */
	for (int i = 0; i < LEAF_NAME_TRIES && l->dir < 0; i++) {
		snprintf(l->name, sizeof(l->name), "%llu", (unsigned long long)++t->serial);
		l->dir = cgroup_files_open(t->exec, l->name, true);
		if (l->dir < 0 && errno != EEXIST)
			break;
	}
	if (l->dir < 0) {
		err_errno(e, ERR_INTERNAL, errno, "cannot make a cgroup");
		free(l);
		return NULL;
	}
	t->leaves++;
	return l;
}

static int failed(struct err *e, const char *field)
{
	if (errno == EINVAL || errno == ERANGE)
		return err_field(e, ERR_INVALID_FIELD, field, "the kernel refuses this value");
	return err_errno(e, ERR_INTERNAL, errno, "cannot set %s", field);
}

static int apply_number(struct cgroup_leaf *l, enum cgroup_leaf_file file, uint64_t want,
                        uint64_t *has, const char *field, struct err *e)
{
	char text[24];

	if (want == *has)
		return 0;
	snprintf(text, sizeof(text), "%llu", (unsigned long long)want);
	if (write_file(l, file, text) != 0)
		return failed(e, field);
	*has = want;
	return 0;
}

static int apply_cpu(struct cgroup_leaf *l, uint64_t milli, struct err *e)
{
	char text[48] = "max";

	if (milli == l->applied.cpu_milli)
		return 0;
	if (milli < CPU_QUOTA_MIN_US * 1000 / CPU_PERIOD_US ||
	    (milli > UINT32_MAX && milli != UINT64_MAX))
		return err_field(e, ERR_INVALID_FIELD, "limits.cpus",
		                 "at least a hundredth of a CPU");
	if (milli != UINT64_MAX)
		snprintf(text, sizeof(text), "%llu %d",
		         (unsigned long long)(milli * (CPU_PERIOD_US / 1000)), CPU_PERIOD_US);
	if (write_file(l, LEAF_CPU_MAX, text) != 0)
		return failed(e, "limits.cpus");
	l->applied.cpu_milli = milli;
	return 0;
}

static int apply_io(struct cgroup_leaf *l, uint64_t want, uint64_t *has, const char *key,
                    const char *field, struct err *e)
{
	char text[64], most[24] = "max";

	if (want == *has)
		return 0;
	if (want != UINT64_MAX)
		snprintf(most, sizeof(most), "%llu", (unsigned long long)want);
	for (int i = 0; i < 2 && l->tree->disks[i][0] != '\0'; i++) {
		snprintf(text, sizeof(text), "%s %s=%s", l->tree->disks[i], key, most);
		if (cgroup_files_write(l->dir, "io.max", text) != 0)
			return errno == ENODEV ? err_field(e, ERR_LIMIT_UNSUPPORTED, field,
			                                   "no disk that can be throttled")
			                       : failed(e, field);
	}
	*has = want;
	return 0;
}

int cgroup_leaf_apply(struct cgroup_leaf *l, const struct cgroup_limits *want, struct err *e)
{
	struct cgroup_limits *has = &l->applied;

	if (want->oom_group != has->oom_group) {
		if (cgroup_files_write(l->dir, "memory.oom.group",
		                       want->oom_group ? "1" : "0") != 0)
			return failed(e, "limits.oom_group");
		has->oom_group = want->oom_group;
	}
	if (apply_number(l, LEAF_MEMORY_MAX, want->memory_bytes, &has->memory_bytes,
	                 "limits.memory_mib", e) != 0 ||
	    apply_number(l, LEAF_SWAP_MAX, want->swap_bytes, &has->swap_bytes,
	                 "limits.swap_mib", e) != 0 ||
	    apply_number(l, LEAF_PIDS_MAX, want->pids, &has->pids, "limits.pids", e) != 0 ||
	    apply_cpu(l, want->cpu_milli, e) != 0 ||
	    apply_io(l, want->io_read_bps, &has->io_read_bps, "rbps", "limits.io_read_bps",
	             e) != 0)
		return -1;
	return apply_io(l, want->io_write_bps, &has->io_write_bps, "wbps",
	                "limits.io_write_bps", e);
}

int cgroup_leaf_fd(const struct cgroup_leaf *l)
{
	return l->dir;
}

void cgroup_leaf_counters(struct cgroup_leaf *l, struct cgroup_counters *out)
{
	char text[1024];

	read_file(l, LEAF_OOM, text, sizeof(text));
	out->oom_kills = cgroup_files_field(text, "oom_kill");
	out->ooms = cgroup_files_field(text, "oom");
	out->pids_hits = cgroup_files_field(read_file(l, LEAF_PIDS, text, sizeof(text)), "max");
	read_file(l, LEAF_CPU, text, sizeof(text));
	out->cpu_user_us = cgroup_files_field(text, "user_usec");
	out->cpu_system_us = cgroup_files_field(text, "system_usec");
	read_file(l, LEAF_PEAK, text, sizeof(text));
	out->memory_peak = text[0] != '\0' ? strtoull(text, NULL, 10) : UINT64_MAX;
}

uint64_t cgroup_leaf_cpu_us(struct cgroup_leaf *l)
{
	char text[1024];
	return cgroup_files_field(read_file(l, LEAF_CPU, text, sizeof(text)), "usage_usec");
}

bool cgroup_leaf_populated(struct cgroup_leaf *l)
{
	char text[256];
	return cgroup_files_field(read_file(l, LEAF_EVENTS, text, sizeof(text)), "populated") !=
	       0;
}

unsigned cgroup_leaf_count(struct cgroup_leaf *l)
{
	return l->dir >= 0 ? cgroup_files_signal(l->dir, 0) : 0;
}

void cgroup_leaf_signal(struct cgroup_leaf *l, int signal)
{
	if (l->dir >= 0)
		cgroup_files_signal(l->dir, signal);
}

void cgroup_leaf_back_off(struct cgroup_leaf *l)
{
	double next = l->retry.repeat * 2;
	l->retry.repeat = next < LEAF_PAUSE_MAX_S ? next : LEAF_PAUSE_MAX_S;
	ev_timer_again(l->tree->loop, &l->retry);
	if (l->cpu_ms > 0 && cgroup_leaf_cpu_us(l) / 1000 >= l->cpu_ms)
		cgroup_files_kill(l->dir);
}

void cgroup_leaf_bind_cpu(struct cgroup_leaf *l, uint64_t cpu_ms)
{
	l->cpu_ms = cpu_ms;
}

/* Whoever waits for the end of it need not wait long any more. */
void cgroup_leaf_kill(struct cgroup_leaf *l)
{
	if (l->dir < 0)
		return;
	cgroup_files_kill(l->dir);
	if (ev_is_active(&l->retry)) {
		l->retry.repeat = LEAF_PAUSE_FIRST_S;
		ev_timer_again(l->tree->loop, &l->retry);
	}
}

static void on_look(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct cgroup_leaf *l = w->data;
	(void)revents;

	if (cgroup_leaf_populated(l)) {
		cgroup_leaf_back_off(l);
		return;
	}
	void (*on_empty)(void *arg) = l->on_empty;
	ev_timer_stop(loop, w);
	l->on_empty = NULL;
	on_empty(l->arg);
}

void cgroup_leaf_when_empty(struct cgroup_leaf *l, void (*on_empty)(void *arg), void *arg)
{
	l->on_empty = on_empty;
	l->arg = arg;
	ev_timer_stop(l->tree->loop, &l->retry);
	if (on_empty == NULL)
		return;
	ev_timer_init(&l->retry, on_look, 0., LEAF_PAUSE_FIRST_S);
	ev_timer_start(l->tree->loop, &l->retry);
}

bool cgroup_leaf_remove(struct cgroup_leaf *l)
{
	int exec = l->tree->exec;

	if (unlinkat(exec, l->name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return true;
	if (cgroup_leaf_populated(l))
		return false;
	cgroup_files_prune(l->dir);
	return unlinkat(exec, l->name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

void cgroup_leaf_free(struct cgroup_leaf *l)
{
	ev_timer_stop(l->tree->loop, &l->retry);
	for (int i = 0; i < LEAF_FILES; i++)
		if (l->files[i] >= 0)
			close(l->files[i]);
	if (l->dir >= 0)
		close(l->dir);
	free(l);
}

void cgroup_leaf_retire(struct cgroup_leaf *l, bool kill)
{
	cgroup_leaf_when_empty(l, NULL, NULL);
	if (l->dir < 0) {
		cgroup_leaf_free(l);
		return;
	}
	l->kill = kill;
	if (kill)
		cgroup_leaf_kill(l);
	cgroup_tree_take_back(l->tree, l);
}
