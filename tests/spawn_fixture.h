/*
 * One spawner a test, and runs of it: a plan, its result, what it wrote and how it ended.
 * Check forks every test, so each may spoil its own process (signals, limits, filters).
 */
#ifndef SANDGATE_SPAWN_FIXTURE_H
#define SANDGATE_SPAWN_FIXTURE_H

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/spawn.h"
#include "tests/suite_fixture.h"

#define FIXTURE static __attribute__((unused))

static struct ev_loop *loop;
static struct workers *workers;
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

FIXTURE void on_done(const struct spawn_result *r, void *arg)
{
	struct run *run = arg;
	run->result = *r;
	run->dones++;
	ev_break(loop, EVBREAK_ONE);
}

FIXTURE void setup(void)
{
	loop = ev_loop_new(EVFLAG_AUTO);
	workers = workers_create(loop, SPAWN_THREADS_MAX, SCHED_BATCH, NULL);
	ck_assert_ptr_nonnull(workers);
	spawner = spawner_create(workers, NULL);
	ck_assert_ptr_nonnull(spawner);
	self = (struct identity){.uid = geteuid(), .gid = getegid()};
	self.group_count = getgroups(IDENTITY_GROUPS_MAX, self.groups);
	strcpy(dir, "/tmp/check_spawn.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
}

FIXTURE void teardown(void)
{
	workers_destroy(workers);
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
FIXTURE void recreate_spawner(void)
{
	workers_destroy(workers);
	spawner_destroy(spawner);
	workers = workers_create(loop, SPAWN_THREADS_MAX, SCHED_BATCH, NULL);
	ck_assert_ptr_nonnull(workers);
	spawner = spawner_create(workers, NULL);
	ck_assert_ptr_nonnull(spawner);
}

FIXTURE void run_init(struct run *run, char *const *argv)
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

FIXTURE void run_start(struct run *run)
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
FIXTURE void run_all(struct run *run)
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

FIXTURE void run_shell(struct run *run, const char *script)
{
	char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
	run_init(run, argv);
	run_all(run);
	ck_assert_ptr_null(run->result.stage);
}

FIXTURE void assert_failed(const struct run *run, const char *stage, int errnum)
{
	ck_assert_ptr_nonnull(run->result.stage);
	ck_assert_str_eq(run->result.stage, stage);
	ck_assert_int_eq(run->result.errnum, errnum);
	ck_assert_str_eq(run->text, "");
}

FIXTURE const char *status_field(const char *text, const char *key)
{
	static char value[256];
	const char *line = strstr(text, key);
	ck_assert_msg(line != NULL, "no %s", key);
	line += strlen(key);
	line += strspn(line, " \t");
	snprintf(value, sizeof(value), "%.*s", (int)strcspn(line, "\n"), line);
	return value;
}

FIXTURE void run_status(struct run *run)
{
	static char *argv[] = {"/bin/cat", "/proc/self/status", NULL};
	run_init(run, argv);
}

FIXTURE void on_signal(int sig)
{
	(void)sig;
}

FIXTURE void block_and_ignore(void)
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
	/* Behind libc, which keeps this one to itself; a parent may leave it ignored. */
	struct {
		void (*handler)(int);
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} ignore = {.handler = SIG_IGN};
	ck_assert_int_eq(syscall(SYS_rt_sigaction, 32, &ignore, NULL, 8), 0);
}

static const struct identity nobody = {
    .uid = 65534, .gid = 65534, .groups = {65534, 2001, 2002}, .group_count = 3};

FIXTURE void run_in(struct run *run, const char *cwd, const struct identity *who)
{
	char *argv[] = {"/bin/pwd", NULL};
	run_init(run, argv);
	run->plan.cwd = cwd;
	run->plan.who = who;
	run_all(run);
}

#if defined(__x86_64__)
#define AUDIT_ARCH_SELF AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define AUDIT_ARCH_SELF AUDIT_ARCH_AARCH64
#endif

/* From now on `nr` fails with `errnum` in every thread and child, as long as its argument
 * number `arg` is `value` (no condition when `arg` is negative). */
FIXTURE void fail_syscall(int nr, int errnum, int arg, unsigned value)
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

#endif
