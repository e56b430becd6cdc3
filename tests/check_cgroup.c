#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/cgroup.h"
#include "guest-agent/spawn.h"

/* What the cgroup v2 of the machine cannot do (memory, pids, cpu) is skipped and said: the
 * same program is run inside a guest. */

static struct ev_loop *loop;
static struct cgroup_tree *tree;
static const struct cgroup_limits none = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                          UINT64_MAX, UINT64_MAX, true};

static struct idle *idle;
static struct spawner *spawner;
static struct identity self;

static void setup(void)
{
	loop = ev_loop_new(EVFLAG_AUTO);
	idle = idle_create(loop);
	tree = cgroup_tree_create(loop, idle, NULL);
	ck_assert_ptr_nonnull(tree);
	spawner = spawner_create(loop, NULL);
	ck_assert_ptr_nonnull(spawner);
	self = (struct identity){.uid = geteuid(), .gid = getegid()};
	self.group_count = getgroups(IDENTITY_GROUPS_MAX, self.groups);
}

static void teardown(void)
{
	spawner_destroy(spawner);
	cgroup_tree_destroy(tree);
	idle_destroy(idle);
	ev_loop_destroy(loop);
}

static bool has(unsigned feature)
{
	if ((cgroup_tree_features(tree) & feature) == feature)
		return true;
	printf("skipped: cgroup features %#x of %#x\n", cgroup_tree_features(tree), feature);
	return false;
}

static struct cgroup_leaf *new_leaf(const struct cgroup_limits *limits)
{
	struct err e = {.code = ERR_NONE};
	struct cgroup_leaf *l = cgroup_leaf_create(tree, limits, &e);
	ck_assert_msg(l != NULL, "%s: %s", e.field, e.msg);
	return l;
}

/* ---- a shell in a leaf ---- */

struct shell {
	struct spawn_result result;
	int dones, out, status;
};

static void on_spawned(const struct spawn_result *r, void *arg)
{
	struct shell *sh = arg;
	sh->result = *r;
	sh->dones++;
}

/* Runs `script`; returns when it has printed a line, which tells that it is set up. */
static void shell_start(struct shell *sh, struct cgroup_leaf *l, const char *script)
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

static void shell_wait(struct shell *sh)
{
	siginfo_t si;
	ck_assert_int_eq(waitid(P_PIDFD, (id_t)sh->result.pidfd, &si, WEXITED), 0);
	sh->status = si.si_status;
	close(sh->result.pidfd);
	close(sh->out);
}

static void on_flag(void *arg)
{
	*(int *)arg += 1;
}

static void wait_flag(const int *flag)
{
	while (*flag == 0)
		ev_run(loop, EVRUN_ONCE);
}

/* Until what is retired is gone: only the spare is left. */
static void wait_baseline(void)
{
	while (cgroup_tree_leaves(tree) > 1)
		ev_run(loop, EVRUN_ONCE);
}

/* ---- leaves ---- */

START_TEST(a_spare_leaf_is_taken_and_replaced_when_idle)
{
	if (!has(CGROUP_V2))
		return;
	ck_assert_uint_eq(cgroup_tree_leaves(tree), 1);
	struct cgroup_leaf *l = new_leaf(&none);
	ck_assert_int_ge(cgroup_leaf_fd(l), 0);
	ck_assert_uint_eq(cgroup_tree_leaves(tree), 1);
	while (cgroup_tree_leaves(tree) < 2)
		ev_run(loop, EVRUN_ONCE);
	cgroup_leaf_retire(l, false);
	wait_baseline();
}
END_TEST

START_TEST(execs_in_a_closed_loop_pile_nothing_up)
{
	if (!has(CGROUP_V2))
		return;
	for (int i = 0; i < 200; i++)
		cgroup_leaf_retire(new_leaf(&none), false); /* the loop never turns */
	ck_assert_uint_lt(cgroup_tree_leaves(tree), 16);
	wait_baseline();
}
END_TEST

START_TEST(an_unused_leaf_counts_nothing)
{
	struct cgroup_counters c;
	struct cgroup_leaf *l = new_leaf(&none);

	cgroup_leaf_counters(l, &c);
	ck_assert_uint_eq(c.oom_kills, 0);
	ck_assert_uint_eq(c.ooms, 0);
	ck_assert_uint_eq(c.pids_hits, 0);
	ck_assert_uint_eq(c.cpu_user_us + c.cpu_system_us, 0);
	ck_assert(!cgroup_leaf_populated(l));
	ck_assert_uint_eq(cgroup_leaf_count(l), 0);
	cgroup_leaf_retire(l, true);
}
END_TEST

START_TEST(cpu_time_of_the_whole_leaf_is_counted)
{
	struct shell sh;
	struct cgroup_counters c;

	if (!has(CGROUP_V2))
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(&sh, l, "sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; echo");
	shell_wait(&sh);
	cgroup_leaf_counters(l, &c);
	ck_assert_uint_gt(c.cpu_user_us + c.cpu_system_us, 1000);
	ck_assert_uint_ge(cgroup_leaf_cpu_us(l), 1000);
	cgroup_leaf_retire(l, false);
	wait_baseline();
}
END_TEST

static const char family[] = "trap '' TERM; setsid sleep 600 & (sleep 600 &) ; sleep 600 & "
                             "echo; wait";

START_TEST(a_kill_reaches_daemons_and_deaf_ones)
{
	struct shell sh;
	int empty = 0;

	if (!has(CGROUP_V2))
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(&sh, l, family);
	ck_assert(cgroup_leaf_populated(l));
	ck_assert_uint_eq(cgroup_leaf_count(l), 4);
	cgroup_leaf_when_empty(l, on_flag, &empty);
	cgroup_leaf_kill(l);
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, SIGKILL);
	wait_flag(&empty);
	ck_assert(!cgroup_leaf_populated(l));
	cgroup_leaf_retire(l, true);
	wait_baseline();
	ck_assert_int_eq(empty, 1);
}
END_TEST

START_TEST(a_signal_reaches_every_process_of_the_leaf)
{
	struct shell sh;
	int empty = 0;

	if (!has(CGROUP_V2))
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(&sh, l, "setsid sleep 600 & sleep 600 & echo; wait");
	cgroup_leaf_signal(l, SIGTERM);
	cgroup_leaf_when_empty(l, on_flag, &empty);
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, SIGTERM);
	wait_flag(&empty);
	cgroup_leaf_retire(l, false);
}
END_TEST

START_TEST(an_empty_leaf_is_told_later_and_once)
{
	int empty = 0;
	struct cgroup_leaf *l = new_leaf(&none);

	cgroup_leaf_when_empty(l, on_flag, &empty);
	ck_assert_int_eq(empty, 0);
	wait_flag(&empty);
	cgroup_leaf_when_empty(l, on_flag, &empty);
	cgroup_leaf_when_empty(l, NULL, NULL);
	cgroup_leaf_retire(l, false);
	wait_baseline();
	ck_assert_int_eq(empty, 1);
}
END_TEST

START_TEST(a_retired_leaf_goes_when_its_last_process_does)
{
	struct shell sh;

	if (!has(CGROUP_V2))
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(&sh, l, "sleep 0.2 & echo");
	shell_wait(&sh);
	ck_assert(cgroup_leaf_populated(l));
	cgroup_leaf_retire(l, false);
	ck_assert_uint_ge(cgroup_tree_leaves(tree), 1);
	wait_baseline();
}
END_TEST

START_TEST(a_retired_leaf_is_killed_when_asked)
{
	struct shell sh;

	if (!has(CGROUP_V2))
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(&sh, l, family);
	cgroup_leaf_retire(l, true);
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, SIGKILL);
	wait_baseline();
}
END_TEST

static bool has_ended(const struct shell *sh)
{
	siginfo_t si = {0};
	ck_assert_int_eq(
	    waitid(P_PIDFD, (id_t)sh->result.pidfd, &si, WEXITED | WNOHANG | WNOWAIT), 0);
	return si.si_pid != 0;
}

START_TEST(what_is_left_is_killed_when_its_cpu_time_is_used_up)
{
	struct shell sh;
	int empty = 0;

	if (!has(CGROUP_V2))
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(&sh, l, "echo; while :; do :; done");
	cgroup_leaf_bind_cpu(l, 100);
	if (_i == 0)
		cgroup_leaf_when_empty(l, on_flag, &empty);
	else
		cgroup_leaf_retire(l, false);
	while (!has_ended(&sh))
		ev_run(loop, EVRUN_ONCE);
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, SIGKILL);
	if (_i == 0) {
		ck_assert_uint_ge(cgroup_leaf_cpu_us(l), 100000);
		wait_flag(&empty);
		cgroup_leaf_retire(l, false);
	}
	wait_baseline();
}
END_TEST

START_TEST(what_is_left_may_use_the_cpu_time_that_it_has)
{
	struct shell sh;
	int empty = 0;

	if (!has(CGROUP_V2))
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(&sh, l, "echo; sleep 0.3; exit 7");
	cgroup_leaf_bind_cpu(l, 60000);
	cgroup_leaf_when_empty(l, on_flag, &empty);
	wait_flag(&empty);
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, 7);
	cgroup_leaf_retire(l, false);
	wait_baseline();
}
END_TEST

/* The leaf is the root of the child's cgroup namespace, so its own path does not help it:
 * the test makes the cgroups that root in an exec makes by walking /sys/fs/cgroup. */
START_TEST(cgroups_made_inside_a_leaf_go_with_it)
{
	int dir;
	struct shell sh;

	if (!has(CGROUP_V2))
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	dir = cgroup_leaf_fd(l);
	ck_assert_int_eq(mkdirat(dir, "a", 0755), 0);
	ck_assert_int_eq(mkdirat(dir, "a/b", 0755), 0);
	ck_assert_int_eq(mkdirat(dir, "memory.events.d", 0755), 0);
	shell_start(&sh, l, "sleep 600 & echo; wait");
	char pid[16];
	snprintf(pid, sizeof(pid), "%d", sh.result.pid);
	int procs = openat(dir, "a/b/cgroup.procs", O_WRONLY | O_CLOEXEC);
	ck_assert_int_gt(write(procs, pid, strlen(pid)), 0);
	close(procs);
	ck_assert_uint_eq(cgroup_leaf_count(l), 2);
	cgroup_leaf_retire(l, true);
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, SIGKILL);
	wait_baseline();
}
END_TEST

START_TEST(agents_side_by_side_do_not_meet)
{
	if (!has(CGROUP_V2))
		return;
	struct cgroup_tree *other = cgroup_tree_create(loop, idle, NULL);
	ck_assert_uint_eq(cgroup_tree_leaves(other), 1);
	struct cgroup_leaf *mine = new_leaf(&none);
	struct shell sh;
	shell_start(&sh, mine, "echo; sleep 600");
	cgroup_tree_destroy(other);
	ck_assert(cgroup_leaf_populated(mine));
	cgroup_leaf_retire(mine, true);
	shell_wait(&sh);
}
END_TEST

/* ---- root inside an exec ---- */

static bool is_delegated(void)
{
	char line[1024];
	bool found = false;
	FILE *f = fopen("/proc/self/mountinfo", "re");

	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		found |=
		    strstr(line, " cgroup2 ") != NULL && strstr(line, "nsdelegate") != NULL;
	if (f != NULL)
		fclose(f);
	if (!found)
		printf("skipped: cgroup v2 is not mounted with nsdelegate\n");
	return found && has(CGROUP_V2);
}

/* The agent's tree is at /sys/fs/cgroup/sandgate where the agent is init, as in a guest. */
START_TEST(root_cannot_leave_its_leaf_or_raise_its_limits)
{
	struct shell sh;

	if (!is_delegated())
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(
	    &sh, l,
	    "cd /sys/fs/cgroup; echo $$ > cgroup.procs; echo $$ > sandgate/agent/cgroup.procs;"
	    "for d in sandgate/exec/*/; do grep -qx $$ ${d}cgroup.procs || continue;"
	    " for f in pids memory; do echo max > $d$f.max && exit 1; done; exit 0; done; exit "
	    "2");
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, 0);
	shell_start(&sh, l, "cd /sys/fs/cgroup; echo $$ > cgroup.procs; echo; sleep 600");
	ck_assert(cgroup_leaf_populated(l));
	cgroup_leaf_retire(l, true);
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, SIGKILL);
}
END_TEST

START_TEST(a_mount_over_the_control_files_hides_nothing_from_us)
{
	struct shell sh;

	if (!is_delegated())
		return;
	struct cgroup_leaf *l = new_leaf(&none);
	shell_start(
	    &sh, l,
	    "for f in kill events procs; do for d in /sys/fs/cgroup/sandgate/exec/*/; do"
	    " mount -o bind /dev/null ${d}cgroup.$f || exit 1; done; done; echo; sleep 600");
	ck_assert(cgroup_leaf_populated(l));
	ck_assert_uint_ge(cgroup_leaf_count(l), 1);
	cgroup_leaf_retire(l, true);
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, SIGKILL);
	wait_baseline();
}
END_TEST

/* ---- limits ---- */

static const struct refusal {
	unsigned without;
	struct cgroup_limits limits;
	const char *field;
} refusals[] = {
#define NO UINT64_MAX
    {CGROUP_MEMORY, {64 << 20, NO, NO, NO, NO, NO, true}, "limits.memory_mib"},
    {CGROUP_MEMORY, {NO, NO, NO, NO, NO, NO, false}, "limits.oom_group"},
    {CGROUP_PIDS, {NO, NO, 10, NO, NO, NO, true}, "limits.pids"},
    {CGROUP_CPU, {NO, NO, NO, 500, NO, NO, true}, "limits.cpus"},
    {CGROUP_IO, {NO, NO, NO, NO, 1000, NO, true}, "limits.io_read_bps"},
    {CGROUP_IO, {NO, NO, NO, NO, NO, 1000, true}, "limits.io_write_bps"},
#undef NO
};

START_TEST(a_limit_without_its_controller_is_refused_by_name)
{
	const struct refusal *r = &refusals[_i];
	struct err e = {.code = ERR_NONE};

	if ((cgroup_tree_features(tree) & r->without) != 0)
		return;
	ck_assert_ptr_null(cgroup_leaf_create(tree, &r->limits, &e));
	ck_assert_int_eq(e.code, ERR_LIMIT_UNSUPPORTED);
	ck_assert_str_eq(e.field, r->field);
	ck_assert_uint_eq(cgroup_tree_leaves(tree), has(CGROUP_V2) ? 1 : 0);
}
END_TEST

START_TEST(a_cpu_limit_below_the_kernels_least_is_a_bad_field)
{
	struct cgroup_limits l = none;
	struct err e = {.code = ERR_NONE};

	if (!has(CGROUP_CPU))
		return;
	l.cpu_milli = 9;
	ck_assert_ptr_null(cgroup_leaf_create(tree, &l, &e));
	ck_assert_int_eq(e.code, ERR_INVALID_FIELD);
	ck_assert_str_eq(e.field, "limits.cpus");
}
END_TEST

static void assert_file(struct cgroup_leaf *l, const char *file, const char *want)
{
	char text[128] = "";
	int fd = openat(cgroup_leaf_fd(l), file, O_RDONLY | O_CLOEXEC);

	ck_assert_msg(fd >= 0, "%s", file);
	ck_assert_int_gt(read(fd, text, sizeof(text) - 1), 0);
	text[strcspn(text, "\n")] = '\0';
	ck_assert_str_eq(text, want);
	close(fd);
}

START_TEST(limits_are_in_force_before_the_first_process)
{
	struct cgroup_limits l = none;
	char memory[32];

	if (!has(CGROUP_MEMORY | CGROUP_PIDS | CGROUP_CPU))
		return;
	struct cgroup_leaf *leaf = new_leaf(&none);
	snprintf(memory, sizeof(memory), "%llu", (unsigned long long)cgroup_tree_memory(tree));
	assert_file(leaf, "memory.max", memory);
	assert_file(leaf, "memory.oom.group", "1");
	assert_file(leaf, "cpu.max", "max 100000");
	cgroup_leaf_retire(leaf, false);
	l.memory_bytes = 32 << 20;
	l.pids = 7;
	l.cpu_milli = 250;
	l.oom_group = false;
	leaf = new_leaf(&l);
	assert_file(leaf, "memory.max", "33554432");
	assert_file(leaf, "memory.oom.group", "0");
	assert_file(leaf, "pids.max", "7");
	assert_file(leaf, "cpu.max", "25000 100000");
	cgroup_leaf_retire(leaf, false);
}
END_TEST

START_TEST(a_memory_hog_is_killed_and_counted)
{
	struct cgroup_limits l = none;
	struct cgroup_counters c;
	struct shell sh;

	if (!has(CGROUP_MEMORY))
		return;
	l.memory_bytes = 16 << 20;
	struct cgroup_leaf *leaf = new_leaf(&l);
	shell_start(&sh, leaf, "echo; exec tail /dev/zero");
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, SIGKILL);
	cgroup_leaf_counters(leaf, &c);
	ck_assert_uint_ge(c.oom_kills, 1);
	ck_assert_uint_ge(c.ooms, 1);
	ck_assert(c.memory_peak == UINT64_MAX || c.memory_peak <= 16 << 20);
	cgroup_leaf_retire(leaf, false);
}
END_TEST

START_TEST(an_oom_kill_takes_the_group_or_one)
{
	struct cgroup_limits l = none;
	struct cgroup_counters c;
	struct shell sh;

	if (!has(CGROUP_MEMORY))
		return;
	l.memory_bytes = 16 << 20;
	l.oom_group = _i == 1;
	struct cgroup_leaf *leaf = new_leaf(&l);
	shell_start(&sh, leaf, "echo; tail /dev/zero; exit 42");
	shell_wait(&sh);
	ck_assert_int_eq(sh.status, l.oom_group ? SIGKILL : 42);
	cgroup_leaf_counters(leaf, &c);
	ck_assert_uint_ge(c.oom_kills, 1);
	cgroup_leaf_retire(leaf, false);
}
END_TEST

START_TEST(forks_over_the_limit_are_counted)
{
	struct cgroup_limits l = none;
	struct cgroup_counters c;
	struct shell sh;

	if (!has(CGROUP_PIDS))
		return;
	l.pids = 4;
	struct cgroup_leaf *leaf = new_leaf(&l);
	shell_start(&sh, leaf, "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; echo");
	shell_wait(&sh);
	cgroup_leaf_counters(leaf, &c);
	ck_assert_uint_ge(c.pids_hits, 1);
	ck_assert_uint_le(cgroup_leaf_count(leaf), 4);
	cgroup_leaf_retire(leaf, true);
	wait_baseline();
}
END_TEST

START_TEST(a_program_cannot_start_without_memory_and_says_so)
{
	struct cgroup_limits l = none;

	if (!has(CGROUP_MEMORY))
		return;
	l.memory_bytes = 4096;
	struct cgroup_leaf *leaf = new_leaf(&l);
	struct shell sh = {.dones = 0};
	char *argv[] = {"/bin/sh", "-c", "exit 0", NULL}, *envp[] = {NULL};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct spawn_plan plan = {.argv = argv,
	                          .envp = envp,
	                          .cwd = "/",
	                          .who = &self,
	                          .fds = {null, null, null},
	                          .extra_fd = -1,
	                          .cgroup_fd = cgroup_leaf_fd(leaf),
	                          .open_files = UINT64_MAX,
	                          .file_size = UINT64_MAX};
	ck_assert_ptr_nonnull(spawn_start(spawner, &plan, on_spawned, &sh));
	while (sh.dones == 0)
		ev_run(loop, EVRUN_ONCE);
	ck_assert_ptr_nonnull(sh.result.stage);
	/* Where the arguments do not even fit, the kernel calls them too long. */
	ck_assert(sh.result.errnum == ENOMEM || sh.result.errnum == E2BIG);
	cgroup_leaf_retire(leaf, true);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cgroup");
	TCase *t = tcase_create("cgroup");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 20);
	tcase_add_test(t, a_spare_leaf_is_taken_and_replaced_when_idle);
	tcase_add_test(t, execs_in_a_closed_loop_pile_nothing_up);
	tcase_add_test(t, an_unused_leaf_counts_nothing);
	tcase_add_test(t, cpu_time_of_the_whole_leaf_is_counted);
	tcase_add_test(t, a_kill_reaches_daemons_and_deaf_ones);
	tcase_add_test(t, a_signal_reaches_every_process_of_the_leaf);
	tcase_add_test(t, an_empty_leaf_is_told_later_and_once);
	tcase_add_test(t, a_retired_leaf_goes_when_its_last_process_does);
	tcase_add_test(t, a_retired_leaf_is_killed_when_asked);
	tcase_add_loop_test(t, what_is_left_is_killed_when_its_cpu_time_is_used_up, 0, 2);
	tcase_add_test(t, what_is_left_may_use_the_cpu_time_that_it_has);
	tcase_add_test(t, cgroups_made_inside_a_leaf_go_with_it);
	tcase_add_test(t, agents_side_by_side_do_not_meet);
	tcase_add_test(t, root_cannot_leave_its_leaf_or_raise_its_limits);
	tcase_add_test(t, a_mount_over_the_control_files_hides_nothing_from_us);
	tcase_add_loop_test(t, a_limit_without_its_controller_is_refused_by_name, 0,
	                    sizeof(refusals) / sizeof(refusals[0]));
	tcase_add_test(t, a_cpu_limit_below_the_kernels_least_is_a_bad_field);
	tcase_add_test(t, limits_are_in_force_before_the_first_process);
	tcase_add_test(t, a_memory_hog_is_killed_and_counted);
	tcase_add_loop_test(t, an_oom_kill_takes_the_group_or_one, 0, 2);
	tcase_add_test(t, forks_over_the_limit_are_counted);
	tcase_add_test(t, a_program_cannot_start_without_memory_and_says_so);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? 0 : 1;
}
