#include "guest-agent/cgroup_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "guest-agent/cgroup_files.h"

/* Retired leaves that may wait for idle time: past it each new exec removes one. */
#define RETIRED_MAX 8

/* What a leaf without any request gets; nothing that cannot be enforced here. */
static struct cgroup_limits default_limits(const struct cgroup_tree *t)
{
	struct cgroup_limits l = {.memory_bytes = UINT64_MAX,
	                          .swap_bytes = UINT64_MAX,
	                          .pids = UINT64_MAX,
	                          .cpu_milli = UINT64_MAX,
	                          .io_read_bps = UINT64_MAX,
	                          .io_write_bps = UINT64_MAX};
	if ((t->features & CGROUP_MEMORY) != 0) {
		l.memory_bytes = t->memory;
		l.swap_bytes = t->has_swap ? 0 : UINT64_MAX;
		l.oom_group = true;
	}
	if ((t->features & CGROUP_PIDS) != 0)
		l.pids = t->pids;
	return l;
}

static int unsupported(struct err *e, const char *field, const char *why)
{
	return err_field(e, ERR_LIMIT_UNSUPPORTED, field, "%s", why);
}

/* Defaults, overridden by what was asked for and can be enforced. */
static int merge_limits(const struct cgroup_tree *t, const struct cgroup_limits *asked,
                        struct cgroup_limits *out, struct err *e)
{
	static const char no_memory[] = "no cgroup v2 memory controller";
	bool memory = (t->features & CGROUP_MEMORY) != 0;

	*out = default_limits(t);
	if (asked->memory_bytes != UINT64_MAX) {
		if (!memory)
			return unsupported(e, "limits.memory_mib", no_memory);
		out->memory_bytes = asked->memory_bytes;
	}
	if (asked->swap_bytes != UINT64_MAX && t->has_swap) {
		if (!memory)
			return unsupported(e, "limits.swap_mib", no_memory);
		out->swap_bytes = asked->swap_bytes;
	}
	if (!asked->oom_group && !memory)
		return unsupported(e, "limits.oom_group", no_memory);
	out->oom_group = memory && asked->oom_group;
	if (asked->pids != UINT64_MAX) {
		if ((t->features & CGROUP_PIDS) == 0)
			return unsupported(e, "limits.pids", "no cgroup v2 pids controller");
		out->pids = asked->pids;
	}
	if (asked->cpu_milli != UINT64_MAX) {
		if ((t->features & CGROUP_CPU) == 0)
			return unsupported(e, "limits.cpus", "no cgroup v2 cpu controller");
		out->cpu_milli = asked->cpu_milli;
	}
	bool io = (t->features & CGROUP_IO) != 0 && t->disks[0][0] != '\0';
	if (!io && asked->io_read_bps != UINT64_MAX)
		return unsupported(e, "limits.io_read_bps", "no disk that can be throttled");
	if (!io && asked->io_write_bps != UINT64_MAX)
		return unsupported(e, "limits.io_write_bps", "no disk that can be throttled");
	out->io_read_bps = asked->io_read_bps;
	out->io_write_bps = asked->io_write_bps;
	return 0;
}

static void forget(struct cgroup_leaf *l)
{
	l->tree->leaves--;
	cgroup_leaf_free(l);
}

/* A kill can miss what forks at that moment, so each try repeats it. */
static void on_retry(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct cgroup_leaf *l = w->data;
	(void)loop, (void)revents;

	if (l->kill)
		cgroup_files_kill(l->dir);
	if (!cgroup_leaf_remove(l)) {
		cgroup_leaf_back_off(l);
		return;
	}
	TAILQ_REMOVE(&l->tree->stuck, l, link);
	forget(l);
}

static void remove_first_retired(struct cgroup_tree *t)
{
	struct cgroup_leaf *l = TAILQ_FIRST(&t->retired);

	TAILQ_REMOVE(&t->retired, l, link);
	t->retired_count--;
	if (cgroup_leaf_remove(l)) {
		forget(l);
		return;
	}
	TAILQ_INSERT_TAIL(&t->stuck, l, link);
	ev_timer_init(&l->retry, on_retry, 0., LEAF_PAUSE_FIRST_S);
	ev_timer_again(t->loop, &l->retry);
}

/* With the limits of the exec before: most often the next asks for the same, and then has
 * nothing to write. */
static void make_spare(struct cgroup_tree *t)
{
	t->spare = cgroup_leaf_make(t, NULL);
	if (t->spare == NULL)
		return;
	if (cgroup_leaf_apply(t->spare, &t->guess, NULL) == 0) {
		cgroup_leaf_open_files(t->spare);
		return;
	}
	cgroup_leaf_retire(t->spare, false);
	t->spare = NULL;
}

static bool work_when_idle(struct idle_task *task)
{
	struct cgroup_tree *t = task->owner;

	if (t->spare == NULL) {
		make_spare(t);
		return t->spare != NULL;
	}
	if (TAILQ_EMPTY(&t->retired))
		return false;
	remove_first_retired(t);
	return true;
}

struct cgroup_tree *cgroup_tree_create(struct ev_loop *loop, struct idle *idle, struct err *e)
{
	struct cgroup_tree *t = calloc(1, sizeof(*t));
	if (t == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	t->loop = loop;
	TAILQ_INIT(&t->retired);
	TAILQ_INIT(&t->stuck);
	t->idle = idle;
	t->when_idle = (struct idle_task){.work = work_when_idle, .owner = t};
	cgroup_setup(t);
	t->guess = default_limits(t);
	if ((t->features & CGROUP_V2) == 0)
		return t;
	make_spare(t);
	idle_add(idle, &t->when_idle);
	return t;
}

static void drop_all(struct cgroup_leaves *list)
{
	struct cgroup_leaf *l;

	while ((l = TAILQ_FIRST(list)) != NULL) {
		TAILQ_REMOVE(list, l, link);
		cgroup_leaf_free(l);
	}
}

void cgroup_tree_destroy(struct cgroup_tree *t)
{
	if (t == NULL)
		return;
	if ((t->features & CGROUP_V2) != 0)
		idle_remove(t->idle, &t->when_idle);
	if (t->spare != NULL)
		cgroup_leaf_free(t->spare);
	drop_all(&t->retired);
	drop_all(&t->stuck);
	cgroup_setup_undo(t);
	free(t);
}

unsigned cgroup_tree_features(const struct cgroup_tree *t)
{
	return t->features;
}

uint64_t cgroup_tree_memory(const struct cgroup_tree *t)
{
	return t->memory;
}

unsigned cgroup_tree_leaves(const struct cgroup_tree *t)
{
	return t->leaves;
}

struct cgroup_leaf *cgroup_leaf_create(struct cgroup_tree *t, const struct cgroup_limits *l,
                                       struct err *e)
{
	struct cgroup_limits want;

	if (merge_limits(t, l, &want, e) != 0)
		return NULL;
	struct cgroup_leaf *leaf = t->spare;
	t->spare = NULL;
	if (leaf == NULL)
		leaf = cgroup_leaf_make(t, e);
	if (leaf == NULL)
		return NULL;
	if (leaf->dir < 0)
		return leaf;
	if (t->retired_count > RETIRED_MAX)
		remove_first_retired(t);
	idle_exec_began(t->idle);
	if (cgroup_leaf_apply(leaf, &want, e) != 0) {
		cgroup_leaf_retire(leaf, false);
		return NULL;
	}
	t->guess = want;
	return leaf;
}

void cgroup_tree_take_back(struct cgroup_tree *t, struct cgroup_leaf *l)
{
	TAILQ_INSERT_TAIL(&t->retired, l, link);
	t->retired_count++;
	idle_exec_ended(t->idle);
}
