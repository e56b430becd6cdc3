#include "host-bridge/device/confine.h"

#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/limits.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "confine.c needs this architecture's audit number"
#endif

/* A descriptor a connection, and what the VMM hands over, the loop, the log. */
#define FILES_MAX (VSOCK_CONNS_MAX + 64u)

/* A sanitizer's shadow memory counts as data. */
#ifdef __SANITIZE_ADDRESS__
#define DATA_MAX RLIM_INFINITY
#else
#define DATA_MAX ((rlim_t)VSOCK_DEVICE_DATA_MIB * MIB)
#endif

#ifndef __SANITIZE_ADDRESS__

/* What libev, the C library's allocator and logging, and the device itself call; clocks, where
 * they cannot be read without the kernel, as on some virtual hosts. libev makes its epoll anew
 * when a descriptor that was closed here lives on in the VMM: kicks do. */
static const unsigned allowed[] = {
    SYS_read,       SYS_write,        SYS_readv,        SYS_writev,         SYS_recvmsg,
    SYS_recvfrom,   SYS_sendto,       SYS_epoll_pwait,  SYS_epoll_create1,  SYS_epoll_ctl,
    SYS_accept4,    SYS_socket,       SYS_connect,      SYS_shutdown,       SYS_close,
    SYS_fstat,      SYS_newfstatat,   SYS_fcntl,        SYS_mmap,           SYS_munmap,
    SYS_mremap,     SYS_madvise,      SYS_brk,          SYS_clock_gettime,  SYS_getrandom,
    SYS_futex,      SYS_unlinkat,     SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_restart_syscall,
    SYS_exit_group, SYS_gettimeofday,
#if defined(__x86_64__)
    SYS_epoll_wait, SYS_unlink,
#endif
};

static int allow_only_listed(void)
{
	enum { N = sizeof(allowed) / sizeof(allowed[0]) };
	struct sock_filter filter[N + 6];
	unsigned n = 0;

	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
	                                           offsetof(struct seccomp_data, arch));
	filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
	                                           offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < N; i++)
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
		                                           allowed[i], (__u8)(N - i), 0);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);

	struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

#else /* a sanitizer's runtime calls more than can be listed */

static int allow_only_listed(void)
{
	return 0;
}

#endif

/* Lower a limit to `value`, for good. */
static int bound(int resource, rlim_t value)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit) < 0)
		return -1;
	if (limit.rlim_max > value)
		limit.rlim_max = value;
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(resource, &limit);
}

int confine_self(uid_t uid, gid_t gid, struct err *e)
{
	struct rlimit files;

	/* With fewer, an accept could fail for ever, and the loop would spin on it. */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max < FILES_MAX)
		return err_set(e, ERR_INTERNAL, "needs a limit of %u open files", FILES_MAX);
	if (bound(RLIMIT_NOFILE, FILES_MAX) < 0 || bound(RLIMIT_CORE, 0) < 0 ||
	    bound(RLIMIT_NPROC, 0) < 0 || bound(RLIMIT_DATA, DATA_MAX) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "setrlimit");
	if (geteuid() == 0) {
		if (chroot(".") < 0 || chdir("/") < 0)
			return err_errno(e, ERR_INTERNAL, errno, "chroot");
		if (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 ||
		    setresuid(uid, uid, uid) < 0)
			return err_errno(e, ERR_INTERNAL, errno, "cannot become %u:%u", uid,
			                 gid);
	}
	if (prctl(PR_SET_DUMPABLE, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "prctl");
	if (allow_only_listed() < 0)
		return err_errno(e, ERR_INTERNAL, errno, "seccomp");
	return 0;
}
