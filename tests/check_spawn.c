#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fuse.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/cgroup.h"
#include "guest-agent/spawn.h"
#include "proto/limits.h"

static struct ev_loop *loop;
static struct spawner *spawner;
static struct identity self;
static char *empty_env[] = {NULL};
static char dir[64]; /* a fresh directory of this test */

/* One spawn and what came of it. */
struct run {
	struct spawn_plan plan;
	struct spawn_result result;
	int dones;
	int out; /* read end of the child's stdout and stderr */
	char text[4096];
	siginfo_t end;
};

static void on_done(const struct spawn_result *r, void *arg)
{
	struct run *run = arg;
	run->result = *r;
	run->dones++;
	ev_break(loop, EVBREAK_ONE);
}

static void setup(void)
{
	loop = ev_loop_new(EVFLAG_AUTO);
	spawner = spawner_create(loop, NULL);
	ck_assert_ptr_nonnull(spawner);
	self = (struct identity){.uid = geteuid(), .gid = getegid()};
	self.group_count = getgroups(IDENTITY_GROUPS_MAX, self.groups);
	strcpy(dir, "/tmp/check_spawn.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
	spawner_destroy(spawner);
	ev_loop_destroy(loop);
	struct dirent *d;
	DIR *files = opendir(dir);
	while ((d = readdir(files)) != NULL)
		unlinkat(dirfd(files), d->d_name, 0);
	closedir(files);
	ck_assert_int_eq(rmdir(dir), 0);
}

/* The agent's state is learnt when the spawner is made. */
static void recreate_spawner(void)
{
	spawner_destroy(spawner);
	spawner = spawner_create(loop, NULL);
	ck_assert_ptr_nonnull(spawner);
}

static void run_init(struct run *run, char *const *argv)
{
	memset(run, 0, sizeof(*run));
	run->plan = (struct spawn_plan){.argv = argv,
	                                .envp = empty_env,
	                                .path = "/usr/bin:/bin",
	                                .cwd = "/",
	                                .who = &self,
	                                .extra_fd = -1,
	                                .cgroup_fd = -1,
	                                .open_files = UINT64_MAX,
	                                .file_size = UINT64_MAX};
}

static void run_start(struct run *run)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC), fds[2];

	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	run->out = fds[0];
	run->plan.fds[0] = null;
	run->plan.fds[1] = run->plan.fds[2] = fds[1];
	ck_assert_ptr_nonnull(spawn_start(spawner, &run->plan, on_done, run));
	ck_assert_int_eq(run->dones, 0);
	while (run->dones == 0)
		ev_run(loop, 0);
	close(null);
	close(fds[1]);
}

/* Run to the end: collect the output and, if it ran, how it ended. */
static void run_all(struct run *run)
{
	size_t n = 0;
	ssize_t got;

	run_start(run);
	while ((got = read(run->out, run->text + n, sizeof(run->text) - 1 - n)) > 0)
		n += (size_t)got;
	run->text[n] = '\0';
	close(run->out);
	if (run->result.stage != NULL) {
		ck_assert_int_eq(run->result.pid, 0);
		ck_assert_int_eq(run->result.pidfd, -1);
		/* Nothing is left to reap. */
		ck_assert_int_eq(waitid(P_ALL, 0, &run->end, WEXITED | WNOHANG), -1);
		return;
	}
	ck_assert_int_gt(run->result.pid, 0);
	ck_assert_int_eq(waitid(P_PIDFD, (id_t)run->result.pidfd, &run->end, WEXITED), 0);
	ck_assert_int_eq(run->end.si_pid, run->result.pid);
	close(run->result.pidfd);
}

static void run_shell(struct run *run, const char *script)
{
	char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
	run_init(run, argv);
	run_all(run);
	ck_assert_ptr_null(run->result.stage);
}

static void assert_failed(const struct run *run, const char *stage, int errnum)
{
	ck_assert_ptr_nonnull(run->result.stage);
	ck_assert_str_eq(run->result.stage, stage);
	ck_assert_int_eq(run->result.errnum, errnum);
	ck_assert_str_eq(run->text, "");
}

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

static const char *status_field(const char *text, const char *key)
{
	static char value[256];
	const char *line = strstr(text, key);
	ck_assert_msg(line != NULL, "no %s", key);
	line += strlen(key);
	line += strspn(line, " \t");
	snprintf(value, sizeof(value), "%.*s", (int)strcspn(line, "\n"), line);
	return value;
}

static void run_status(struct run *run)
{
	static char *argv[] = {"/bin/cat", "/proc/self/status", NULL};
	run_init(run, argv);
}

static void on_signal(int sig)
{
	(void)sig;
}

static void block_and_ignore(void)
{
	sigset_t all;
	struct sigaction sa = {.sa_handler = on_signal};

	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
	signal(SIGHUP, SIG_IGN);
	signal(SIGRTMIN + 3, SIG_IGN);
	sigaction(SIGUSR1, &sa, NULL);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
}

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

START_TEST(oom_score_adj_is_0)
{
	struct run run;
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	ck_assert_int_eq(write(fd, "321", 3), 3);
	close(fd);
	recreate_spawner();
	run_shell(&run, "exec cat /proc/self/oom_score_adj");
	ck_assert_str_eq(run.text, "0\n");
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

static const struct identity nobody = {
    .uid = 65534, .gid = 65534, .groups = {65534, 2001, 2002}, .group_count = 3};

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

/* ---- programs ---- */

static const char *make_file(const char *name, const char *text, mode_t mode)
{
	static char path[128];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	ck_assert_int_eq(fchmod(fd, mode), 0);
	close(fd);
	return path;
}

static void run_program(struct run *run, const char *program, const char *path)
{
	char *argv[] = {(char *)program, NULL};
	run_init(run, argv);
	run->plan.path = path;
	run->plan.cwd = dir;
	run_all(run);
}

START_TEST(an_absent_program_is_not_found)
{
	static const char *const absent[] = {"no-such-program", "/no/such/program", "./nope",
	                                     ""};
	struct run run;

	run_program(&run, absent[_i], "/nonexistent:/bin");
	assert_failed(&run, "execve", ENOENT);
}
END_TEST

START_TEST(a_program_is_found_along_path)
{
	struct run run;
	make_file("tool", "#!/bin/sh\necho tool\n", 0755);
	run_program(&run, "tool", "/nonexistent:/etc/passwd:/bin:");
	ck_assert_ptr_null(run.result.stage);
	ck_assert_str_eq(run.text, "tool\n"); /* the empty element is the working directory */
}
END_TEST

START_TEST(a_program_that_may_not_run_is_refused)
{
	struct run run;

	run_program(&run, make_file("plain", "#!/bin/sh\n", 0644), NULL);
	assert_failed(&run, "execve", EACCES);
	run_program(&run, "plain", dir);
	assert_failed(&run, "execve", EACCES);
	run_program(&run, dir, NULL);
	assert_failed(&run, "execve", EACCES);
}
END_TEST

START_TEST(a_refusal_is_remembered_while_the_search_goes_on)
{
	struct run run;
	char path[256];

	make_file("true", "not for running", 0644);
	snprintf(path, sizeof(path), "%s:/bin", dir);
	run_program(&run, "true", path);
	ck_assert_ptr_null(run.result.stage);
	snprintf(path, sizeof(path), "%s:/nonexistent", dir);
	run_program(&run, "true", path);
	assert_failed(&run, "execve", EACCES);
}
END_TEST

START_TEST(no_shell_stands_in_for_an_unknown_format)
{
	struct run run;
	run_program(&run, make_file("script", "echo no interpreter line\n", 0755), NULL);
	assert_failed(&run, "execve", ENOEXEC);
}
END_TEST

START_TEST(a_component_that_is_a_file_is_not_a_directory)
{
	struct run run;
	run_program(&run, "/etc/passwd/program", NULL);
	assert_failed(&run, "execve", ENOTDIR);
}
END_TEST

START_TEST(arguments_that_are_too_long_are_refused)
{
	struct run run;
	char *text = malloc(ARG_STRING_MAX + 1);
	char *argv[] = {"/bin/true", text, NULL};

	memset(text, 'x', ARG_STRING_MAX);
	text[ARG_STRING_MAX] = '\0';
	run_init(&run, argv);
	run_all(&run);
	assert_failed(&run, "execve", E2BIG);
	text[ARG_STRING_MAX - 1] = '\0';
	run_init(&run, argv);
	run_all(&run);
	ck_assert_ptr_null(run.result.stage);
	free(text);
}
END_TEST

static void on_close_writer(struct ev_loop *l, ev_timer *w, int revents)
{
	(void)l, (void)revents;
	close(*(int *)w->data);
}

START_TEST(a_program_that_is_being_written_is_waited_for)
{
	struct run run;
	const char *path = make_file("busy", "#!/bin/sh\necho ready\n", 0755);
	int writer = open(path, O_WRONLY | O_CLOEXEC);
	ev_timer timer;

	ev_timer_init(&timer, on_close_writer, 0.02, 0.);
	timer.data = &writer;
	ev_timer_start(loop, &timer);
	run_program(&run, path, NULL);
	ck_assert_ptr_null(run.result.stage);
	ck_assert_str_eq(run.text, "ready\n");

	writer = open(path, O_WRONLY | O_CLOEXEC);
	run_program(&run, path, NULL);
	assert_failed(&run, "execve", ETXTBSY);
	close(writer);
}
END_TEST

/* ---- working directory ---- */

static void run_in(struct run *run, const char *cwd, const struct identity *who)
{
	char *argv[] = {"/bin/pwd", NULL};
	run_init(run, argv);
	run->plan.cwd = cwd;
	run->plan.who = who;
	run_all(run);
}

START_TEST(the_working_directory_is_entered)
{
	struct run run;
	run_in(&run, dir, &self);
	ck_assert_ptr_null(run.result.stage);
	ck_assert_mem_eq(run.text, dir, strlen(dir));
}
END_TEST

START_TEST(a_bad_working_directory_is_told_and_nothing_runs)
{
	struct run run;
	run_in(&run, "/nope", &self);
	assert_failed(&run, "chdir", ENOENT);
	run_in(&run, "/etc/passwd", &self);
	assert_failed(&run, "chdir", ENOTDIR);
	run_in(&run, "", &self);
	assert_failed(&run, "chdir", ENOENT);
}
END_TEST

START_TEST(the_working_directory_is_entered_as_the_user)
{
	struct run run;

	if (geteuid() != 0)
		return;
	run_in(&run, dir, &nobody); /* mkdtemp made it 0700 */
	assert_failed(&run, "chdir", EACCES);
}
END_TEST

/* ---- faults ---- */

#if defined(__x86_64__)
#define AUDIT_ARCH_SELF AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define AUDIT_ARCH_SELF AUDIT_ARCH_AARCH64
#endif

/* From now on `nr` fails with `errnum` in every thread and child, as long as its argument
 * number `arg` is `value` (no condition when `arg` is negative). */
static void fail_syscall(int nr, int errnum, int arg, unsigned value)
{
	unsigned offset = arg < 0 ? offsetof(struct seccomp_data, nr)
	                          : offsetof(struct seccomp_data, args) + 8 * (unsigned)arg;
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_SELF, 0, 5),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)nr, 0, 3),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arg < 0 ? (unsigned)nr : value, 0, 1),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)errnum),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

	ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	ck_assert_int_eq(
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program),
	    0);
}

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

/* ---- with a leaf, and children that hang ---- */

static struct cgroup_tree *tree;
static struct cgroup_leaf *leaf;
static const struct cgroup_limits no_limits = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                               UINT64_MAX, UINT64_MAX, true};

static void setup_leaf(void)
{
	setup();
	tree = cgroup_tree_create(loop, NULL);
	leaf = cgroup_leaf_create(tree, &no_limits, NULL);
	ck_assert_ptr_nonnull(leaf);
}

static void teardown_leaf(void)
{
	cgroup_leaf_retire(leaf, true);
	cgroup_tree_destroy(tree);
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
	Suite *s = suite_create("spawn");
	TCase *t = tcase_create("spawn");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, 20);
	tcase_add_test(t, output_and_exit_code_of_a_shell);
	tcase_add_test(t, death_by_a_signal_is_the_callers_to_see);
	tcase_add_test(t, no_signal_is_blocked_ignored_or_caught);
	tcase_add_test(t, only_three_descriptors_are_inherited);
	tcase_add_test(t, an_extra_descriptor_keeps_its_number);
	tcase_add_test(t, umask_is_022);
	tcase_add_test(t, the_child_leads_a_session);
	tcase_add_test(t, oom_score_adj_is_0);
	tcase_add_test(t, limits_are_the_documented_ones);
	tcase_add_test(t, asked_limits_are_soft_and_hard);
	tcase_add_test(t, environment_and_arguments_arrive_as_given);
	tcase_add_test(t, another_user_has_its_ids_groups_and_no_capability);
	tcase_add_test(t, narrowed_capabilities_bound_root);
	tcase_add_test(t, nothing_is_narrowed_unasked);
	tcase_add_loop_test(t, an_absent_program_is_not_found, 0, 4);
	tcase_add_test(t, a_program_is_found_along_path);
	tcase_add_test(t, a_program_that_may_not_run_is_refused);
	tcase_add_test(t, a_refusal_is_remembered_while_the_search_goes_on);
	tcase_add_test(t, no_shell_stands_in_for_an_unknown_format);
	tcase_add_test(t, a_component_that_is_a_file_is_not_a_directory);
	tcase_add_test(t, arguments_that_are_too_long_are_refused);
	tcase_add_test(t, a_program_that_is_being_written_is_waited_for);
	tcase_add_test(t, the_working_directory_is_entered);
	tcase_add_test(t, a_bad_working_directory_is_told_and_nothing_runs);
	tcase_add_test(t, the_working_directory_is_entered_as_the_user);
	tcase_add_loop_test(t, a_failure_of_each_step_names_its_stage, 0,
	                    sizeof(faults) / sizeof(faults[0]));
	tcase_add_test(t, without_clone3_the_older_call_does);
	tcase_add_test(t, a_burst_is_reported_each_exactly_once);
	suite_add_tcase(s, t);
	t = tcase_create("leaf");
	tcase_add_checked_fixture(t, setup_leaf, teardown_leaf);
	tcase_set_timeout(t, 20);
	tcase_add_test(t, a_child_is_born_in_its_leaf_and_sees_it_as_the_root);
	tcase_add_test(t, without_clone3_the_child_joins_its_leaf);
	tcase_add_test(t, a_failing_cgroup_namespace_names_its_stage);
	tcase_add_test(t, a_descriptor_that_is_no_cgroup_fails_the_clone);
	tcase_add_loop_test(t, a_child_hung_before_execve_is_freed_by_killing_its_leaf, 0, 2);
	tcase_add_test(t, hung_spawns_do_not_hold_the_others);
	tcase_add_test(t, a_spawn_on_its_way_is_owned);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? 0 : 1;
}
