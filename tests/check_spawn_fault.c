/* Spawns that fail or hang on their way: told by stage, and freed by killing their leaf. */
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>

#include "guest-agent/cgroup.h"
#include "proto/limits.h"
#include "tests/spawn_fixture.h"

/* ---- faults ---- */

static const struct fault {
	int nr, arg;
	unsigned value;
	const char *stage;
} faults[] = {
    {SYS_clone3, -1, 0, "clone"},
    {SYS_rt_sigaction, 0, SIGPIPE, "signals"},
    {SYS_setsid, -1, 0, "setsid"},
    {SYS_dup3, -1, 0, "descriptors"},
    {SYS_close_range, -1, 0, "descriptors"},
    {SYS_fcntl, 1, F_SETFD, "descriptors"},
    {SYS_write, 2, 1, "oom_score_adj"},
    {SYS_prlimit64, -1, 0, "rlimit"},
    {SYS_setgroups, -1, 0, "user"},
    {SYS_setresgid, -1, 0, "user"},
    {SYS_setresuid, -1, 0, "user"},
    {SYS_prctl, 0, PR_CAPBSET_DROP, "capabilities"},
    {SYS_prctl, 0, PR_SET_NO_NEW_PRIVS, "capabilities"},
    {SYS_capget, -1, 0, "capabilities"},
    {SYS_capset, -1, 0, "capabilities"},
    {SYS_chdir, -1, 0, "chdir"},
    {SYS_rt_sigprocmask, 0, SIG_SETMASK, "execve"},
    {SYS_execve, -1, 0, "execve"},
};

START_TEST(a_failure_of_each_step_names_its_stage)
{
	const struct fault *f = &faults[_i];
	struct run run;
	int adj = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (geteuid() != 0)
		return;
	ck_assert_int_eq(write(adj, "100", 3), 3);
	close(adj);
	signal(SIGPIPE, SIG_IGN);
	recreate_spawner();
	run_status(&run);
	run.plan.who = &nobody;
	run.plan.open_files = 99;
	run.plan.extra_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 50);
	run.plan.narrow_caps = true;
	run.plan.no_new_privs = true;
	fail_syscall(f->nr, EDOM, f->arg, f->value);
	run_all(&run);
	assert_failed(&run, f->stage, EDOM);
	ck_assert_int_eq(run.dones, 1);
}
END_TEST

START_TEST(without_clone3_the_older_call_does)
{
	struct run run;

	ck_assert(spawner_has_clone3(spawner));
	fail_syscall(SYS_clone3, ENOSYS, -1, 0);
	block_and_ignore();
	recreate_spawner();
	ck_assert(!spawner_has_clone3(spawner));
	run_status(&run);
	run_all(&run);
	ck_assert_ptr_null(run.result.stage);
	ck_assert_str_eq(status_field(run.text, "SigBlk:"), "0000000000000000");
	ck_assert_str_eq(status_field(run.text, "SigIgn:"), "0000000000000000");
	run_in(&run, "/nope", &self);
	assert_failed(&run, "chdir", ENOENT);
}
END_TEST

/* ---- with a leaf, and children that hang ---- */

static struct idle *idle;
static struct cgroup_tree *tree;
static struct cgroup_leaf *leaf;
static const struct cgroup_limits no_limits = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                               UINT64_MAX, UINT64_MAX, true};

static void setup_leaf(void)
{
	setup();
	idle = idle_create(loop);
	tree = cgroup_tree_create(loop, idle, NULL);
	leaf = cgroup_leaf_create(tree, &no_limits, NULL);
	ck_assert_ptr_nonnull(leaf);
}

static void teardown_leaf(void)
{
	cgroup_leaf_retire(leaf, true);
	cgroup_tree_destroy(tree);
	idle_destroy(idle);
	teardown();
}

static bool have_cgroups(void)
{
	if ((cgroup_tree_features(tree) & CGROUP_V2) != 0)
		return true;
	printf("skipped: no writable cgroup v2\n");
	return false;
}

/* A FUSE file system whose server answers its first request and then none. Its descriptor, or
 * -1 where FUSE cannot be mounted; closing it ends the file system. */
static int mount_dead_fuse(const char *where)
{
	char options[128], request[FUSE_MIN_READ_BUFFER];
	struct {
		struct fuse_out_header head;
		struct fuse_init_out init;
	} answer = {.init = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION}};
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
	if (fd < 0 || mount("fuse", where, "fuse", 0, options) != 0) {
		printf("skipped: FUSE cannot be mounted here\n");
		if (fd >= 0)
			close(fd);
		return -1;
	}
	ck_assert_int_gt(read(fd, request, sizeof(request)), 0);
	answer.head.len = sizeof(answer);
	answer.head.unique = ((struct fuse_in_header *)request)->unique;
	ck_assert_int_eq(write(fd, &answer, sizeof(answer)), sizeof(answer));
	return fd;
}

/* Until somebody asks the server: whoever does hangs from then on. The request stays unread,
 * since the kernel lets nobody be killed whose request a server has taken. */
static void wait_hung(int fuse)
{
	struct pollfd p = {.fd = fuse, .events = POLLIN};
	ck_assert_int_eq(poll(&p, 1, -1), 1);
}

static void unmount_dead_fuse(int fd, const char *where)
{
	close(fd);
	ck_assert_int_eq(umount2(where, MNT_DETACH), 0);
}

static void on_hung_done(const struct spawn_result *r, void *arg)
{
	struct run *run = arg;
	run->result = *r;
	run->dones++;
}

/* A spawn that hangs on the dead mount; its plan has no output to read. */
static struct spawn *start_hung(struct run *run, int null)
{
	run->plan.fds[0] = run->plan.fds[1] = run->plan.fds[2] = null;
	struct spawn *p = spawn_start(spawner, &run->plan, on_hung_done, run);
	ck_assert_ptr_nonnull(p);
	return p;
}

static void wait_done(struct run *run)
{
	while (run->dones == 0)
		ev_run(loop, EVRUN_ONCE);
}

START_TEST(a_child_is_born_in_its_leaf_and_sees_it_as_the_root)
{
	struct run run;
	char *argv[] = {"/bin/sh", "-c", "grep ^0: /proc/self/cgroup; sleep 600", NULL};

	if (!have_cgroups())
		return;
	run_init(&run, argv);
	run.plan.cgroup_fd = cgroup_leaf_fd(leaf);
	run_start(&run);
	ck_assert_ptr_null(run.result.stage);
	ck_assert_int_gt(read(run.out, run.text, sizeof(run.text) - 1), 0);
	ck_assert_str_eq(run.text, geteuid() == 0 ? "0::/\n" : run.text);
	ck_assert(cgroup_leaf_populated(leaf));
	cgroup_leaf_kill(leaf);
	ck_assert_int_eq(waitid(P_PIDFD, (id_t)run.result.pidfd, &run.end, WEXITED), 0);
	ck_assert_int_eq(run.end.si_status, SIGKILL);
}
END_TEST

START_TEST(without_clone3_the_child_joins_its_leaf)
{
	struct run run;
	char *argv[] = {"/bin/sleep", "600", NULL};

	if (!have_cgroups())
		return;
	fail_syscall(SYS_clone3, ENOSYS, -1, 0);
	recreate_spawner();
	run_init(&run, argv);
	run.plan.cgroup_fd = cgroup_leaf_fd(leaf);
	run_start(&run);
	ck_assert_ptr_null(run.result.stage);
	ck_assert_uint_eq(cgroup_leaf_count(leaf), 1);
}
END_TEST

START_TEST(a_failing_cgroup_namespace_names_its_stage)
{
	struct run run;

	if (!have_cgroups())
		return;
	run_status(&run);
	run.plan.cgroup_fd = cgroup_leaf_fd(leaf);
	fail_syscall(SYS_unshare, ENOSPC, -1, 0);
	run_all(&run);
	assert_failed(&run, "cgroup", ENOSPC);
}
END_TEST

START_TEST(a_descriptor_that_is_no_cgroup_fails_the_clone)
{
	struct run run;

	run_status(&run);
	run.plan.cgroup_fd = STDERR_FILENO;
	run_all(&run);
	assert_failed(&run, "clone", EBADF);
}
END_TEST

/* Hung in chdir, and hung in execve: the kill of the leaf frees it, and it never ran. */
START_TEST(a_child_hung_before_execve_is_freed_by_killing_its_leaf)
{
	static const char *const stages[] = {"chdir", "execve"};
	struct run run;
	char program[128], *argv[] = {program, NULL};
	int fuse = mount_dead_fuse(dir), null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (!have_cgroups() || fuse < 0)
		return;
	snprintf(program, sizeof(program), "%s/program", dir);
	run_init(&run, argv);
	run.plan.cwd = _i == 0 ? dir : "/";
	run.plan.cgroup_fd = cgroup_leaf_fd(leaf);
	struct spawn *p = start_hung(&run, null);
	wait_hung(fuse);
	spawn_cancel(p);
	cgroup_leaf_kill(leaf);
	wait_done(&run);
	ck_assert_str_eq(run.result.stage, stages[_i]);
	ck_assert_int_eq(run.result.errnum, EINTR);
	ck_assert_int_eq(run.result.pid, 0);
	close(null);
	unmount_dead_fuse(fuse, dir);
}
END_TEST

START_TEST(hung_spawns_do_not_hold_the_others)
{
	struct run hung[SPAWN_THREADS_MAX + 1], run;
	struct spawn *last = NULL;
	char *argv[] = {"/bin/true", NULL};
	int fuse = mount_dead_fuse(dir), null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (!have_cgroups() || fuse < 0)
		return;
	for (int i = 0; i < SPAWN_THREADS_MAX - 1; i++) {
		run_init(&hung[i], argv);
		hung[i].plan.cwd = dir;
		hung[i].plan.cgroup_fd = cgroup_leaf_fd(leaf);
		start_hung(&hung[i], null);
	}
	run_init(&run, argv);
	run_all(&run); /* the last thread serves it */
	ck_assert_ptr_null(run.result.stage);

	/* With every thread hung, what is queued can only be given up. */
	for (int i = SPAWN_THREADS_MAX - 1; i <= SPAWN_THREADS_MAX; i++) {
		run_init(&hung[i], argv);
		hung[i].plan.cwd = dir;
		hung[i].plan.cgroup_fd = cgroup_leaf_fd(leaf);
		last = start_hung(&hung[i], null);
	}
	while (cgroup_leaf_count(leaf) < SPAWN_THREADS_MAX)
		ev_run(loop, EVRUN_ONCE);
	spawn_cancel(last);
	ck_assert_int_eq(hung[SPAWN_THREADS_MAX].dones, 0);
	wait_done(&hung[SPAWN_THREADS_MAX]);
	ck_assert_str_eq(hung[SPAWN_THREADS_MAX].result.stage, "clone");
	ck_assert_int_eq(hung[SPAWN_THREADS_MAX].result.errnum, ECANCELED);

	cgroup_leaf_kill(leaf);
	for (int i = 0; i < SPAWN_THREADS_MAX; i++) {
		wait_done(&hung[i]);
		ck_assert_int_eq(hung[i].result.errnum, EINTR);
	}
	close(null);
	unmount_dead_fuse(fuse, dir);
}
END_TEST

START_TEST(a_spawn_on_its_way_is_owned)
{
	struct run run;
	char *argv[] = {"/bin/true", NULL};
	siginfo_t si = {.si_pid = 0};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	run_init(&run, argv);
	run.plan.cgroup_fd = cgroup_leaf_fd(leaf);
	start_hung(&run, null);
	/* It has run and died, and the loop has not been told yet. */
	while (waitid(P_ALL, 0, &si, WEXITED | WNOWAIT) != 0)
		ck_assert_int_eq(errno, ECHILD); /* not born yet */
	ck_assert(spawner_owns(spawner, si.si_pid));
	ck_assert(!spawner_owns(spawner, getpid()));
	wait_done(&run);
	ck_assert_int_eq(run.result.pid, si.si_pid);
	ck_assert(!spawner_owns(spawner, si.si_pid));
	close(null);
}
END_TEST

int main(void)
{
	TCase *t = new_case("fault", setup, teardown);
	tcase_add_loop_test(t, a_failure_of_each_step_names_its_stage, 0,
	                    sizeof(faults) / sizeof(faults[0]));
	tcase_add_test(t, without_clone3_the_older_call_does);
	TCase *in_leaf = new_case("leaf", setup_leaf, teardown_leaf);
	tcase_add_test(in_leaf, a_child_is_born_in_its_leaf_and_sees_it_as_the_root);
	tcase_add_test(in_leaf, without_clone3_the_child_joins_its_leaf);
	tcase_add_test(in_leaf, a_failing_cgroup_namespace_names_its_stage);
	tcase_add_test(in_leaf, a_descriptor_that_is_no_cgroup_fails_the_clone);
	tcase_add_loop_test(in_leaf, a_child_hung_before_execve_is_freed_by_killing_its_leaf, 0,
	                    2);
	tcase_add_test(in_leaf, hung_spawns_do_not_hold_the_others);
	tcase_add_test(in_leaf, a_spawn_on_its_way_is_owned);
	return run_suite("spawn_fault", t, in_leaf) != 0;
}
