/* Limits of a leaf: refused by name, in force before the first process, counted. */
#include "tests/cgroup_fixture.h"

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
	ck_assert_int_eq(shell_wait(&sh), SIGKILL);
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
	ck_assert_int_eq(shell_wait(&sh), l.oom_group ? SIGKILL : 42);
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
	shell_wait(&sh); /* which may think that a failure, or not */
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
	TCase *t = new_case("cgroup_limits", setup, teardown);
	tcase_add_loop_test(t, a_limit_without_its_controller_is_refused_by_name, 0,
	                    sizeof(refusals) / sizeof(refusals[0]));
	tcase_add_test(t, a_cpu_limit_below_the_kernels_least_is_a_bad_field);
	tcase_add_test(t, limits_are_in_force_before_the_first_process);
	tcase_add_test(t, a_memory_hog_is_killed_and_counted);
	tcase_add_loop_test(t, an_oom_kill_takes_the_group_or_one, 0, 2);
	tcase_add_test(t, forks_over_the_limit_are_counted);
	tcase_add_test(t, a_program_cannot_start_without_memory_and_says_so);
	return run_suite("cgroup_limits", t) != 0;
}
