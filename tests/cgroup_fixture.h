/*
 * For check_cgroup.c and check_cgroup_limits.c: a cgroup tree of the test's own, and shells in
 * its leaves. What the cgroup v2 of the machine cannot do (memory, pids, cpu) is skipped and
 * said: the same programs are run inside a guest.
 */
#ifndef SANDGATE_CGROUP_FIXTURE_H
#define SANDGATE_CGROUP_FIXTURE_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/cgroup.h"
#include "guest-agent/spawn.h"
#include "tests/suite_fixture.h"

static struct ev_loop *loop;
static struct cgroup_tree *tree;
static const struct cgroup_limits none = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                          UINT64_MAX, UINT64_MAX, true};

static struct idle *idle;
static struct workers *workers;
static struct spawner *spawner;
static struct identity self;

static inline void setup(void)
{
	loop = ev_loop_new(EVFLAG_AUTO);
	idle = idle_create(loop);
	tree = cgroup_tree_create(loop, idle, NULL);
	ck_assert_ptr_nonnull(tree);
	workers = workers_create(loop, SPAWN_THREADS_MAX, SCHED_BATCH, NULL);
	ck_assert_ptr_nonnull(workers);
	spawner = spawner_create(workers, NULL);
	ck_assert_ptr_nonnull(spawner);
	self = (struct identity){.uid = geteuid(), .gid = getegid()};
	self.group_count = getgroups(IDENTITY_GROUPS_MAX, self.groups);
}

static inline void teardown(void)
{
	workers_destroy(workers);
	spawner_destroy(spawner);
	cgroup_tree_destroy(tree);
	idle_destroy(idle);
	ev_loop_destroy(loop);
}

static inline bool has(unsigned feature)
{
	if ((cgroup_tree_features(tree) & feature) == feature)
		return true;
	printf("skipped: cgroup features %#x of %#x\n", cgroup_tree_features(tree), feature);
	return false;
}

static inline struct cgroup_leaf *new_leaf(const struct cgroup_limits *limits)
{
	struct err e = {.code = ERR_NONE};
	struct cgroup_leaf *l = cgroup_leaf_create(tree, limits, &e);
	ck_assert_msg(l != NULL, "%s: %s", e.field, e.msg);
	return l;
}

/* ---- a shell in a leaf ---- */

struct shell {
	struct spawn_result result;
	int dones, out;
};

static inline void on_spawned(const struct spawn_result *r, void *arg)
{
	struct shell *sh = arg;
	sh->result = *r;
	sh->dones++;
}

/* Runs `script`; returns when it has printed a line, which tells that it is set up. */
static inline void shell_start(struct shell *sh, struct cgroup_leaf *l, const char *script)
{
	char *argv[] = {"/bin/sh", "-c", (char *)script, NULL}, *envp[] = {"PATH=/bin", NULL},
	     c;
	int fds[2], null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct spawn_plan plan = {.argv = argv,
	                          .envp = envp,
	                          .cwd = "/",
	                          .who = &self,
	                          .extra_fd = -1,
	                          .cgroup_fd = cgroup_leaf_fd(l),
	                          .open_files = UINT64_MAX,
	                          .file_size = UINT64_MAX};

	memset(sh, 0, sizeof(*sh));
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	plan.fds[0] = null;
	plan.fds[1] = plan.fds[2] = fds[1];
	ck_assert_ptr_nonnull(spawn_start(spawner, &plan, on_spawned, sh));
	while (sh->dones == 0)
		ev_run(loop, EVRUN_ONCE);
	close(null);
	close(fds[1]);
	ck_assert_msg(sh->result.stage == NULL, "%s: %s", sh->result.stage,
	              strerror(sh->result.errnum));
	while (read(fds[0], &c, 1) == 1 && c != '\n')
		;
	sh->out = fds[0];
}

/* A shell in a leaf of its own, without limits. */
static inline struct cgroup_leaf *shell_in_leaf(struct shell *sh, const char *script)
{
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(sh, l, script);
	return l;
}

/* Its exit code, or the signal that ended it. */
static inline int shell_wait(struct shell *sh)
{
	siginfo_t si;
	ck_assert_int_eq(waitid(P_PIDFD, (id_t)sh->result.pidfd, &si, WEXITED), 0);
	close(sh->result.pidfd);
	close(sh->out);
	return si.si_status;
}

static inline void on_flag(void *arg)
{
	*(int *)arg += 1;
}

static inline void wait_flag(const int *flag)
{
	while (*flag == 0)
		ev_run(loop, EVRUN_ONCE);
}

/* Until what is retired is gone: only the spare is left. */
static inline void wait_baseline(void)
{
	while (cgroup_tree_leaves(tree) > 1)
		ev_run(loop, EVRUN_ONCE);
}

#endif
