/* Leaves: made, counted, killed, removed; and root inside an exec. */
#include "tests/cgroup_fixture.h"

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
	struct cgroup_leaf *l = shell_in_leaf(
	    &sh, "sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; echo");
	ck_assert_int_eq(shell_wait(&sh), 0);
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
	struct cgroup_leaf *l = shell_in_leaf(&sh, family);
	ck_assert(cgroup_leaf_populated(l));
	ck_assert_uint_eq(cgroup_leaf_count(l), 4);
	cgroup_leaf_when_empty(l, on_flag, &empty);
	cgroup_leaf_kill(l);
	ck_assert_int_eq(shell_wait(&sh), SIGKILL);
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
	struct cgroup_leaf *l = shell_in_leaf(&sh, "setsid sleep 600 & sleep 600 & echo; wait");
	cgroup_leaf_signal(l, SIGTERM);
	cgroup_leaf_when_empty(l, on_flag, &empty);
	ck_assert_int_eq(shell_wait(&sh), SIGTERM);
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
	struct cgroup_leaf *l = shell_in_leaf(&sh, "sleep 1 & echo");
	ck_assert_int_eq(shell_wait(&sh), 0);
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
	struct cgroup_leaf *l = shell_in_leaf(&sh, family);
	cgroup_leaf_retire(l, true);
	ck_assert_int_eq(shell_wait(&sh), SIGKILL);
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
	struct cgroup_leaf *l = shell_in_leaf(&sh, "echo; while :; do :; done");
	cgroup_leaf_bind_cpu(l, 100);
	if (_i == 0)
		cgroup_leaf_when_empty(l, on_flag, &empty);
	else
		cgroup_leaf_retire(l, false);
	while (!has_ended(&sh))
		ev_run(loop, EVRUN_ONCE);
	ck_assert_int_eq(shell_wait(&sh), SIGKILL);
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
	struct cgroup_leaf *l = shell_in_leaf(&sh, "echo; sleep 0.3; exit 7");
	cgroup_leaf_bind_cpu(l, 60000);
	cgroup_leaf_when_empty(l, on_flag, &empty);
	wait_flag(&empty);
	ck_assert_int_eq(shell_wait(&sh), 7);
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
	ck_assert_int_eq(shell_wait(&sh), SIGKILL);
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
	ck_assert_int_eq(shell_wait(&sh), SIGKILL);
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
	struct cgroup_leaf *l = shell_in_leaf(
	    &sh,
	    "cd /sys/fs/cgroup; echo $$ > cgroup.procs; echo $$ > sandgate/agent/cgroup.procs;"
	    "for d in sandgate/exec/*/; do grep -qx $$ ${d}cgroup.procs || continue;"
	    " for f in pids memory; do echo max > $d$f.max && exit 1; done; exit 0; done; exit "
	    "2");
	ck_assert_int_eq(shell_wait(&sh), 0);
	shell_start(&sh, l, "cd /sys/fs/cgroup; echo $$ > cgroup.procs; echo; sleep 600");
	ck_assert(cgroup_leaf_populated(l));
	cgroup_leaf_retire(l, true);
	ck_assert_int_eq(shell_wait(&sh), SIGKILL);
}
END_TEST

START_TEST(a_mount_over_the_control_files_hides_nothing_from_us)
{
	struct shell sh;

	if (!is_delegated())
		return;
	struct cgroup_leaf *l = shell_in_leaf(
	    &sh,
	    "for f in kill events procs; do for d in /sys/fs/cgroup/sandgate/exec/*/; do"
	    " mount -o bind /dev/null ${d}cgroup.$f || exit 1; done; done; echo; sleep 600");
	ck_assert(cgroup_leaf_populated(l));
	ck_assert_uint_ge(cgroup_leaf_count(l), 1);
	cgroup_leaf_retire(l, true);
	ck_assert_int_eq(shell_wait(&sh), SIGKILL);
	wait_baseline();
}
END_TEST

int main(void)
{
	TCase *t = new_case("cgroup", setup, teardown);
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
	return run_suite("cgroup", t) != 0;
}
