/*
 * What the two halves of the cgroup module share: cgroup_tree.c sets the tree up, makes
 * leaves and removes them in idle time; cgroup_leaf.c is what one leaf can be asked.
 * Nobody else includes this.
 */
#ifndef SANDGATE_CGROUP_PRIVATE_H
#define SANDGATE_CGROUP_PRIVATE_H

#include <sys/queue.h>

#include "guest-agent/cgroup.h"

/* Files of a leaf that stay open: opened in idle time for the spare; else what is read on
 * first use, and what is written not at all. */
enum cgroup_leaf_file {
	LEAF_EVENTS,
	LEAF_CPU,
	LEAF_OOM,
	LEAF_PEAK,
	LEAF_PIDS,
	LEAF_READ_FILES,
	LEAF_MEMORY_MAX = LEAF_READ_FILES,
	LEAF_SWAP_MAX,
	LEAF_PIDS_MAX,
	LEAF_CPU_MAX,
	LEAF_FILES
};

#define LEAF_UNOPENED (-2)

/* Pauses between two looks at a leaf that is not empty yet (seconds): they double. */
#define LEAF_PAUSE_FIRST_S 0.001
#define LEAF_PAUSE_MAX_S 1.0

struct cgroup_leaf {
	struct cgroup_tree *tree;
	TAILQ_ENTRY(cgroup_leaf) link; /* retired ones */
	char name[24];
	int dir; /* -1 without cgroup v2 */
	int files[LEAF_FILES];
	struct cgroup_limits applied; /* what its control files hold now */
	ev_timer retry;               /* until empty, or until removed */
	uint64_t cpu_ms;              /* CPU time of what is left in it; 0: unbounded */
	bool kill;                    /* each retry kills again */
	void (*on_empty)(void *arg);
	void *arg;
};

TAILQ_HEAD(cgroup_leaves, cgroup_leaf);

struct cgroup_tree {
	struct ev_loop *loop;
	int base, top, exec; /* directories; -1 without cgroup v2 */
	char name[32];       /* of top in base */
	unsigned features;
	uint64_t memory, pids; /* of exec/, and a leaf's default */
	bool has_swap;
	char disks[2][24]; /* "major:minor" of what the root is on, and what is below; or "" */

	uint64_t serial;
	unsigned leaves; /* directories that exist */
	struct cgroup_leaf *spare;
	struct cgroup_limits guess;   /* the spare's: what the last exec had */
	struct cgroup_leaves retired; /* to be removed when idle */
	struct cgroup_leaves stuck;   /* retired, not empty yet: their own timers retry */
	unsigned retired_count;
	struct idle *idle;
	struct idle_task when_idle; /* makes the spare, removes the retired */
};

/* Find the cgroup, take a top of our own, enable controllers. Sets features, 0 on failure. */
void cgroup_setup(struct cgroup_tree *t);
/* Undo it as far as the kernel lets. */
void cgroup_setup_undo(struct cgroup_tree *t);

/* A fresh directory without limits; NULL with `e`. */
struct cgroup_leaf *cgroup_leaf_make(struct cgroup_tree *t, struct err *e);
/* Write those of `want` that differ from what is applied. -1 with `e`. */
int cgroup_leaf_apply(struct cgroup_leaf *l, const struct cgroup_limits *want, struct err *e);
void cgroup_leaf_open_files(struct cgroup_leaf *l);
/* Remove the directory and what is below it. False: not empty yet. */
bool cgroup_leaf_remove(struct cgroup_leaf *l);
/* It is not empty yet: let its timer fire again, after twice as long as before, and kill what
 * has used up its CPU time. */
void cgroup_leaf_back_off(struct cgroup_leaf *l);
/* Close and free; the directory is somebody else's concern. */
void cgroup_leaf_free(struct cgroup_leaf *l);
/* For cgroup_leaf_retire: the tree takes it over. */
void cgroup_tree_take_back(struct cgroup_tree *t, struct cgroup_leaf *l);

#endif
