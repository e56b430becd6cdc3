#include "guest-agent/spawn_child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The child's frames are never unwound, which stack instrumentation would take amiss. */
#define CHILD static __attribute__((no_sanitize("address")))

/* _NSIG / 8: what the kernel calls a signal set. */
#define KERNEL_SIGSET_BYTES 8
#define SIGNAL_LAST 64

/* A file that somebody is still writing (ETXTBSY) is waited for this many times, 1 ms at
 * first and twice as long each time: a quarter of a second in all. */
#define BUSY_TRIES 8

/* The kernel's struct sigaction, which is not libc's. */
struct kernel_sigaction {
	void *handler;
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

CHILD long put_file(int dir, const char *path, const char *text, size_t n)
{
	long fd = syscall(SYS_openat, dir, path, O_WRONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	long rc = syscall(SYS_write, fd, text, n);
	int saved = errno;
	syscall(SYS_close, fd);
	errno = saved;
	return rc < 0 ? -1 : 0;
}

/* A cgroup namespace rooted at the leaf: with nsdelegate even root cannot move out of it.
 * Without the privilege or the feature the child stays in the agent's. */
CHILD long setup_cgroup(struct spawn_child *c)
{
	if (c->plan->cgroup_fd < 0)
		return 0;
	if (c->join_cgroup && put_file(c->plan->cgroup_fd, "cgroup.procs", "0", 1) != 0)
		return -1;
	if (syscall(SYS_unshare, CLONE_NEWCGROUP) != 0 && errno != EPERM && errno != EINVAL)
		return -1;
	return 0;
}

/* The clone reset handlers; what the agent ignores is still ignored. */
CHILD long setup_signals(struct spawn_child *c)
{
	struct kernel_sigaction dfl = {.handler = NULL};

	for (int sig = 1; sig <= SIGNAL_LAST; sig++)
		if ((c->ignored >> (sig - 1) & 1) != 0 && sig != SIGKILL && sig != SIGSTOP &&
		    syscall(SYS_rt_sigaction, sig, &dfl, NULL, KERNEL_SIGSET_BYTES) != 0)
			return -1;
	return 0;
}

/* The spawn thread's policy is its own. */
CHILD long setup_session(struct spawn_child *c)
{
	const struct sched_param normal = {0};

	(void)c;
	syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &normal);
	syscall(SYS_umask, 022);
	return syscall(SYS_setsid) < 0 ? -1 : 0;
}

/* The rest is closed here and not left to execve: a copy of a descriptor that writes the
 * program would make it busy for ever. Before Linux 5.9 close-on-exec has to do. */
CHILD long close_from(unsigned first, unsigned last)
{
	if (first > last)
		return 0;
	return syscall(SYS_close_range, first, last, 0) != 0 && errno != ENOSYS ? -1 : 0;
}

CHILD int larger(int a, int b)
{
	return a > b ? a : b;
}

/* Until here the descriptors are the agent's own, and nothing may close or replace one. */
CHILD long setup_table(struct spawn_child *c)
{
	int last = larger(c->proc, c->plan->extra_fd);

	for (int i = 0; i < 3; i++)
		last = larger(last, c->fds[i]);
	if (syscall(SYS_close_range, last + 1, ~0U, CLOSE_RANGE_UNSHARE) == 0)
		return 0;
	return errno == ENOSYS ? syscall(SYS_unshare, CLONE_FILES) : -1;
}

/* Before the identity changes: that makes /proc/self the property of root. */
CHILD long setup_oom_score(struct spawn_child *c)
{
	return c->proc >= 0 ? put_file(c->proc, "self/oom_score_adj", "0", 1) : 0;
}

CHILD long setup_descriptors(struct spawn_child *c)
{
	int extra = c->plan->extra_fd;

	for (int i = 0; i < 3; i++)
		if (syscall(SYS_dup3, c->fds[i], i, 0) < 0)
			return -1;
	if (extra < 0)
		return close_from(3, ~0U);
	if (close_from(3, (unsigned)extra - 1) != 0 ||
	    close_from((unsigned)extra + 1, ~0U) != 0)
		return -1;
	return syscall(SYS_fcntl, extra, F_SETFD, 0);
}

CHILD long setup_rlimits(struct spawn_child *c)
{
	for (int i = 0; i < c->rlimit_count; i++) {
		struct spawn_rlimit *l = &c->rlimits[i];
		if (syscall(SYS_prlimit64, 0, l->resource, &l->value, NULL) != 0)
			return -1;
	}
	return 0;
}

/* The bounding set, while the child still may; EINVAL is past the kernel's last one. */
CHILD long setup_bounding(struct spawn_child *c)
{
	if (!c->plan->narrow_caps)
		return 0;
	for (int cap = 0; cap < 64; cap++) {
		if ((c->plan->caps >> cap & 1) != 0)
			continue;
		if (syscall(SYS_prctl, PR_CAPBSET_DROP, cap, 0, 0, 0) != 0)
			return errno == EINVAL ? 0 : -1;
	}
	return 0;
}

/* The kernel's own calls: libc's would make every thread of the agent follow. */
CHILD long setup_user(struct spawn_child *c)
{
	const struct identity *who = c->plan->who;

	if (!c->switch_user)
		return 0;
	if (syscall(SYS_setgroups, who->group_count, who->groups) != 0 ||
	    syscall(SYS_setresgid, who->gid, who->gid, who->gid) != 0)
		return -1;
	return syscall(SYS_setresuid, who->uid, who->uid, who->uid);
}

/* Dropping the inheritable set empties the ambient one too. */
CHILD long setup_capabilities(struct spawn_child *c)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (c->plan->narrow_caps || c->drop_inheritable) {
		uint64_t kept = c->plan->narrow_caps ? c->plan->caps : UINT64_MAX;
		if (syscall(SYS_capget, &head, data) != 0)
			return -1;
		for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
			uint32_t mask = (uint32_t)(kept >> (32 * i));
			data[i].permitted &= mask;
			data[i].effective &= mask;
			data[i].inheritable = 0;
		}
		if (syscall(SYS_capset, &head, data) != 0)
			return -1;
	}
	return c->plan->no_new_privs ? syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) : 0;
}

CHILD long setup_cwd(struct spawn_child *c)
{
	return syscall(SYS_chdir, c->plan->cwd);
}

CHILD void exec_program(struct spawn_child *c, const char *program)
{
	struct timespec pause = {.tv_nsec = 1000000};

	for (int i = 0; i <= BUSY_TRIES; i++) {
		syscall(SYS_execve, program, c->plan->argv, c->plan->envp);
		if (errno != ETXTBSY || i == BUSY_TRIES)
			return;
		syscall(SYS_nanosleep, &pause, NULL);
		pause.tv_nsec *= 2;
	}
}

/* Absent here: look further along PATH. */
CHILD bool is_absent(int errnum)
{
	return errnum == ENOENT || errnum == ENOTDIR || errnum == ENODEV || errnum == ESTALE ||
	       errnum == ETIMEDOUT;
}

/* As execvp does: the first that runs; EACCES is remembered while the search goes on. There
 * is no fallback to a shell. The access check only spares the costlier execve of a name
 * that is not there. */
CHILD long setup_execve(struct spawn_child *c)
{
	uint64_t none = 0;
	bool refused = false, search = c->programs[0] != NULL && c->programs[1] != NULL;

	if (syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, KERNEL_SIGSET_BYTES) != 0)
		return -1;
	errno = ENOENT;
	for (char *const *p = c->programs; *p != NULL; p++) {
		if (search && syscall(SYS_faccessat, AT_FDCWD, *p, F_OK) != 0 &&
		    is_absent(errno))
			continue;
		exec_program(c, *p);
		if (errno == EACCES)
			refused = true;
		else if (!is_absent(errno))
			return -1;
	}
	errno = refused ? EACCES : errno;
	return -1;
}

static const struct {
	enum spawn_stage stage;
	long (*run)(struct spawn_child *c);
} steps[] = {
    {STAGE_CGROUP, setup_cgroup},
    {STAGE_SIGNALS, setup_signals},
    {STAGE_SETSID, setup_session},
    {STAGE_TABLE, setup_table}, /* from here on the descriptors are its own */
    {STAGE_OOM_SCORE, setup_oom_score},
    {STAGE_DESCRIPTORS, setup_descriptors},
    {STAGE_RLIMIT, setup_rlimits},
    {STAGE_CAPABILITIES, setup_bounding},
    {STAGE_USER, setup_user},
    {STAGE_CAPABILITIES, setup_capabilities},
    {STAGE_CHDIR, setup_cwd},
    {STAGE_EXECVE, setup_execve},
};

__attribute__((no_sanitize("address"))) void spawn_child_run(void *arg)
{
	struct spawn_child *c = arg;

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		c->stage = steps[i].stage;
		if (steps[i].run(c) != 0) {
			c->errnum = errno;
			break;
		}
	}
	for (;;)
		syscall(SYS_exit_group, 127);
}
