/* What a spawned program inherits of the agent, and what it gets instead. */
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "proto/limits.h"
#include "tests/spawn_fixture.h"

START_TEST(output_and_exit_code_of_a_shell)
{
	struct run run;
	run_shell(&run, "echo out; echo err >&2; exit 42");
	ck_assert_str_eq(run.text, "out\nerr\n");
	ck_assert_int_eq(run.end.si_code, CLD_EXITED);
	ck_assert_int_eq(run.end.si_status, 42);
	ck_assert_int_eq(run.dones, 1);
}
END_TEST

START_TEST(death_by_a_signal_is_the_callers_to_see)
{
	struct run run;
	run_shell(&run, "kill -9 $$");
	ck_assert_int_eq(run.end.si_code, CLD_KILLED);
	ck_assert_int_eq(run.end.si_status, SIGKILL);
}
END_TEST

/* ---- what a child inherits ---- */

START_TEST(no_signal_is_blocked_ignored_or_caught)
{
	struct run run;

	block_and_ignore();
	recreate_spawner();
	run_status(&run);
	run_all(&run);
	ck_assert_str_eq(status_field(run.text, "SigBlk:"), "0000000000000000");
	ck_assert_str_eq(status_field(run.text, "SigIgn:"), "0000000000000000");
	ck_assert_str_eq(status_field(run.text, "SigCgt:"), "0000000000000000");
}
END_TEST

START_TEST(only_three_descriptors_are_inherited)
{
	struct run run;
	char *argv[] = {"/bin/ls", "/proc/self/fd", NULL};
	int leak = open("/dev/null", O_RDONLY); /* not close-on-exec, on purpose */

	ck_assert_int_ge(leak, 3);
	run_init(&run, argv);
	run_all(&run);
	ck_assert_str_eq(run.text, "0\n1\n2\n3\n"); /* 3 is the directory being listed */
	close(leak);
}
END_TEST

START_TEST(an_extra_descriptor_keeps_its_number)
{
	struct run run;
	char *argv[] = {"/bin/ls", "/proc/self/fd", NULL};
	int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 77);

	run_init(&run, argv);
	run.plan.extra_fd = fd;
	run_all(&run);
	ck_assert_str_eq(run.text, "0\n1\n2\n3\n77\n");
	close(fd);
}
END_TEST

/* The child starts in the agent's own descriptor table. */
START_TEST(the_agents_own_descriptors_stay_open)
{
	struct run run;
	int fds[300];

	for (int i = 0; i < 300; i++)
		fds[i] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	run_shell(&run, "exec true");
	for (int i = 0; i <= 2; i++)
		ck_assert_int_ge(fcntl(i, F_GETFD), 0);
	for (int i = 0; i < 300; i++)
		ck_assert_int_eq(close(fds[i]), 0);
}
END_TEST

START_TEST(the_scheduling_policy_is_the_normal_one)
{
	char *argv[] = {"/bin/cat", "/proc/self/stat", NULL};
	struct run run;
	const char *at;
	int field = 2, policy = -1;

	run_init(&run, argv);
	run_all(&run);
	for (at = strrchr(run.text, ')'); at != NULL && field < 41; field++)
		at = strchr(at + 1, ' ');
	ck_assert_ptr_nonnull(at);
	ck_assert_int_eq(sscanf(at, "%d", &policy), 1);
	ck_assert_int_eq(policy, SCHED_OTHER);
}
END_TEST

START_TEST(umask_is_022)
{
	struct run run;
	umask(077);
	run_shell(&run, "umask");
	ck_assert_str_eq(run.text, "0022\n");
}
END_TEST

START_TEST(the_child_leads_a_session)
{
	struct run run;
	char *argv[] = {"/bin/cat", "/proc/self/stat", NULL};
	int pid, pgrp, sid, tty;

	run_init(&run, argv);
	run_all(&run);
	ck_assert_int_eq(
	    sscanf(strrchr(run.text, ')'), ") %*c %*d %d %d %d", &pgrp, &sid, &tty), 3);
	pid = run.result.pid;
	ck_assert_int_eq(pgrp, pid);
	ck_assert_int_eq(sid, pid);
	ck_assert_int_eq(tty, 0);
}
END_TEST

static void put_own_oom_score(const char *score)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	ck_assert_int_eq(write(fd, score, strlen(score)), (ssize_t)strlen(score));
	close(fd);
}

START_TEST(oom_score_adj_is_0)
{
	struct run run;

	put_own_oom_score("321");
	recreate_spawner();
	run_shell(&run, "exec cat /proc/self/oom_score_adj");
	ck_assert_str_eq(run.text, "0\n");
}
END_TEST

START_TEST(oom_score_adj_is_0_also_when_proc_is_covered)
{
	struct run run;
	char proc[80], script[128];

	ck_assert_int_eq(unshare(CLONE_NEWNS), 0); /* before there are threads to follow */
	ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	put_own_oom_score("321");
	recreate_spawner();
	snprintf(proc, sizeof(proc), "%s/proc", dir);
	snprintf(script, sizeof(script), "exec cat %s/self/oom_score_adj", proc);
	ck_assert_int_eq(mkdir(proc, 0755), 0);
	ck_assert_int_eq(mount("/proc", proc, NULL, MS_BIND, NULL), 0);
	ck_assert_int_eq(mount("cover", "/proc", "tmpfs", 0, NULL), 0);
	run_shell(&run, script);
	ck_assert_str_eq(run.text, "0\n");
	ck_assert_int_eq(umount2("/proc", MNT_DETACH), 0);
	ck_assert_int_eq(umount2(proc, MNT_DETACH), 0);
	ck_assert_int_eq(rmdir(proc), 0);
}
END_TEST

START_TEST(limits_are_the_documented_ones)
{
	struct run run;
	struct rlimit own, core = {12345, RLIM_INFINITY}, size = {1 << 20, RLIM_INFINITY};
	char want[64];

	getrlimit(RLIMIT_NOFILE, &own);
	setrlimit(RLIMIT_CORE, &core);
	setrlimit(RLIMIT_FSIZE, &size);
	recreate_spawner();
	run_shell(&run,
	          "ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Hc; ulimit -Sf; ulimit -Ss");
	snprintf(want, sizeof(want), "%d\n%llu\n0\nunlimited\nunlimited\n8192\n", NOFILE_SOFT,
	         (unsigned long long)(own.rlim_max < NOFILE_HARD ? own.rlim_max : NOFILE_HARD));
	ck_assert_str_eq(run.text, want);
}
END_TEST

START_TEST(asked_limits_are_soft_and_hard)
{
	struct run run;
	char *argv[] = {"/bin/sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -Sf; ulimit -Hf",
	                NULL};

	run_init(&run, argv);
	run.plan.open_files = 64;
	run.plan.file_size = 512 * 100;
	run_all(&run);
	ck_assert_str_eq(run.text, "64\n64\n100\n100\n");
}
END_TEST

START_TEST(environment_and_arguments_arrive_as_given)
{
	struct run run;
	char *argv[] = {"/bin/sh", "-c", "echo \"$A|$0|$1\"; exec env", "zero", "", NULL};
	char *envp[] = {"A=b c", "ONLY=1", NULL};

	run_init(&run, argv);
	run.plan.envp = envp;
	run_all(&run);
	ck_assert_ptr_nonnull(strstr(run.text, "b c|zero|\n"));
	ck_assert_ptr_nonnull(strstr(run.text, "ONLY=1\n"));
	ck_assert_ptr_null(strstr(run.text, "HOME="));
}
END_TEST

/* ---- identity ---- */

START_TEST(another_user_has_its_ids_groups_and_no_capability)
{
	struct run run;

	if (geteuid() != 0)
		return;
	run_status(&run);
	run.plan.who = &nobody;
	run_all(&run);
	ck_assert_ptr_null(run.result.stage);
	ck_assert_str_eq(status_field(run.text, "Uid:"), "65534\t65534\t65534\t65534");
	ck_assert_str_eq(status_field(run.text, "Gid:"), "65534\t65534\t65534\t65534");
	ck_assert_ptr_nonnull(strstr(run.text, "Groups:\t2001 2002 65534"));
	ck_assert_str_eq(status_field(run.text, "CapPrm:"), "0000000000000000");
	ck_assert_str_eq(status_field(run.text, "CapEff:"), "0000000000000000");
}
END_TEST

START_TEST(narrowed_capabilities_bound_root)
{
	struct run run;

	if (geteuid() != 0)
		return;
	run_status(&run);
	run.plan.narrow_caps = true;
	run.plan.caps = 0x2001;
	run.plan.no_new_privs = true;
	run_all(&run);
	ck_assert_str_eq(status_field(run.text, "CapBnd:"), "0000000000002001");
	ck_assert_str_eq(status_field(run.text, "CapPrm:"), "0000000000002001");
	ck_assert_str_eq(status_field(run.text, "CapEff:"), "0000000000002001");
	ck_assert_str_eq(status_field(run.text, "CapInh:"), "0000000000000000");
	ck_assert_str_eq(status_field(run.text, "NoNewPrivs:"), "1");
}
END_TEST

START_TEST(nothing_is_narrowed_unasked)
{
	struct run run;
	char own[8192] = "";
	FILE *f = fopen("/proc/self/status", "re");

	ck_assert_uint_gt(fread(own, 1, sizeof(own) - 1, f), 0);
	fclose(f);
	char bounding[64];
	snprintf(bounding, sizeof(bounding), "%s", status_field(own, "CapBnd:"));
	run_status(&run);
	run_all(&run);
	ck_assert_str_eq(status_field(run.text, "CapBnd:"), bounding);
	ck_assert_str_eq(status_field(run.text, "NoNewPrivs:"), "0");
}
END_TEST

static void on_done_count(const struct spawn_result *r, void *arg)
{
	int *left = arg;
	siginfo_t si;

	ck_assert_ptr_null(r->stage);
	ck_assert(!spawner_owns(spawner, r->pid));
	ck_assert_int_eq(waitid(P_PIDFD, (id_t)r->pidfd, &si, WEXITED), 0);
	close(r->pidfd);
	if (--*left == 0)
		ev_break(loop, EVBREAK_ONE);
}

START_TEST(a_burst_is_reported_each_exactly_once)
{
	struct run run;
	char *argv[] = {"/bin/true", NULL};
	int left = 300, null = open("/dev/null", O_RDWR | O_CLOEXEC);

	run_init(&run, argv);
	run.plan.fds[0] = run.plan.fds[1] = run.plan.fds[2] = null;
	for (int i = left; i > 0; i--)
		ck_assert_ptr_nonnull(spawn_start(spawner, &run.plan, on_done_count, &left));
	while (left > 0)
		ev_run(loop, 0);
	ck_assert_int_eq(left, 0);
	close(null);
}
END_TEST

int main(void)
{
	TCase *t = new_case("inherit", setup, teardown);
	tcase_add_test(t, output_and_exit_code_of_a_shell);
	tcase_add_test(t, death_by_a_signal_is_the_callers_to_see);
	tcase_add_test(t, no_signal_is_blocked_ignored_or_caught);
	tcase_add_test(t, only_three_descriptors_are_inherited);
	tcase_add_test(t, an_extra_descriptor_keeps_its_number);
	tcase_add_test(t, the_agents_own_descriptors_stay_open);
	tcase_add_test(t, the_scheduling_policy_is_the_normal_one);
	tcase_add_test(t, umask_is_022);
	tcase_add_test(t, the_child_leads_a_session);
	tcase_add_test(t, oom_score_adj_is_0);
	tcase_add_test(t, oom_score_adj_is_0_also_when_proc_is_covered);
	tcase_add_test(t, limits_are_the_documented_ones);
	tcase_add_test(t, asked_limits_are_soft_and_hard);
	tcase_add_test(t, environment_and_arguments_arrive_as_given);
	tcase_add_test(t, another_user_has_its_ids_groups_and_no_capability);
	tcase_add_test(t, narrowed_capabilities_bound_root);
	tcase_add_test(t, nothing_is_narrowed_unasked);
	tcase_add_test(t, a_burst_is_reported_each_exactly_once);
	return run_suite("spawn", t) != 0;
}
