/*
 * A library to preload into User-mode Linux 6.1: two of its calls to the host need help.
 *
 * ptrace, on hosts whose CPU has AMX. UML keeps the first part of a process's extended FPU
 * state (x87 to PKRU) and gives it back by PTRACE_SETREGSET. The host's kernel takes nothing
 * but the whole state, which with AMX is longer, and UML panics. Here the missing part is added
 * as zeros: the state's header, which UML keeps, says that nothing is in it, since no guest
 * process can ask the host for AMX.
 *
 * kill, where UML is the first process of a pid namespace. One that panics aborts itself, and
 * tries again for ever, since such a process does not die of its own signals: here it exits.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/elf.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define STATE_MAX 65536

typedef long ptrace_fn(int request, pid_t pid, void *addr, void *data);

static long set_whole_state(ptrace_fn *next, pid_t pid, const struct iovec *part)
{
	static unsigned char state[STATE_MAX];
	static size_t whole;
	struct iovec iov = {state, sizeof(state)};

	if (whole == 0) {
		if (next(PTRACE_GETREGSET, pid, (void *)NT_X86_XSTATE, &iov) < 0)
			return -1;
		whole = iov.iov_len;
		memset(state, 0, sizeof(state));
	}
	if (part->iov_len >= whole)
		return next(PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, (void *)part);
	memcpy(state, part->iov_base, part->iov_len);
	iov.iov_len = whole;
	return next(PTRACE_SETREGSET, pid, (void *)NT_X86_XSTATE, &iov);
}

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_fn *next;
	va_list ap;

	va_start(ap, request);
	pid_t pid = va_arg(ap, pid_t);
	void *addr = va_arg(ap, void *);
	void *data = va_arg(ap, void *);
	va_end(ap);

	if (next == NULL && (next = (ptrace_fn *)dlsym(RTLD_NEXT, "ptrace")) == NULL) {
		errno = ENOSYS;
		return -1;
	}
	if (request == PTRACE_SETREGSET && addr == (void *)NT_X86_XSTATE)
		return set_whole_state(next, pid, data);
	return next((int)request, pid, addr, data);
}

int kill(pid_t pid, int sig)
{
	if (sig == SIGABRT && pid == getpid())
		_exit(128 + SIGABRT);
	return (int)syscall(SYS_kill, pid, sig);
}
