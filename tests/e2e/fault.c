/* Preloaded into a bridge by fault.py: counts those of its calls that change the world, ends it
 * with SIGKILL at the one that was asked for, lets the registry's disk be full, lets
 * descriptors and memory be short, and lets the wall clock jump. What the test says, and what
 * it is told, lies in a file that both have mapped. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLS_MAX 4096 /* as in fault.py */

static struct control {
	int32_t pid;      /* of the bridge: its children are left alone */
	int32_t count;    /* calls since the test has set it to 0 */
	int32_t at;       /* die in place of this one; 0: live */
	int32_t full;     /* the registry's disk takes one write less; 0: as many as it likes */
	int32_t opened;   /* calls for a new descriptor since the test has set it to 0 */
	int32_t short_at; /* from this one on there is none; 0: there always is */
	int32_t short_count; /* … for so many calls */
	int32_t wall_s;      /* the wall clock is wrong by so many seconds */
	int32_t allocated;   /* likewise for memory */
	int32_t lacks_at;
	int32_t lacks_count;
	uint8_t calls[CALLS_MAX];
} * control;

/* In the order of fault.py's NAMES. */
enum call { MKDIR, RENAME, UNLINK, RMDIR, WRITE, SEND, CONNECT, CLONE, KILL, WAIT, TRUNCATE };

__attribute__((constructor)) static void set_up(void)
{
	bool bridge = strcmp(program_invocation_short_name, "host-bridge") == 0;
	const char *path = bridge ? getenv("SANDGATE_FAULT") : NULL; /* not mke2fs, say */
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *at = fd >= 0
	               ? mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
	               : MAP_FAILED;
	if (fd >= 0)
		close(fd);
	if (at == MAP_FAILED)
		return;
	control = at;
	control->pid = getpid();
}

static int is_bridge(void)
{
	return control != NULL && control->pid == getpid();
}

static void step(enum call what)
{
	if (!is_bridge())
		return;
	int n = control->count++;
	if (n < CALLS_MAX)
		control->calls[n] = (uint8_t)what;
	if (n + 1 == control->at)
		syscall(SYS_kill, getpid(), SIGKILL);
}

static int is_full(int fd)
{
	char link[64], path[512];
	if (!is_bridge() || control->full == 0)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	if (strstr(path, "/registry.db") == NULL)
		return 0;
	return control->full == 1 || control->full-- == 0;
}

/* One more call that asks for a descriptor: whether it gets none. */
static bool is_short(void)
{
	if (!is_bridge())
		return false;
	int n = ++control->opened, first = control->short_at;
	if (first == 0 || n < first || n >= first + control->short_count)
		return false;
	errno = EMFILE;
	return true;
}

/* Whether a call for memory gets none. libev ends its process then, and is spared. */
static bool is_lacking(const void *caller)
{
	Dl_info who;
	if (!is_bridge())
		return false;
	int n = ++control->allocated, first = control->lacks_at;
	if (first == 0 || n < first || n >= first + control->lacks_count)
		return false;
	if (dladdr(caller, &who) != 0 && strstr(who.dli_fname, "/libev.so") != NULL)
		return false;
	errno = ENOMEM;
	return true;
}

/* The function of that name that this one stands before. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define WRAP(type, name, what, declared, passed)         \
	type name declared                               \
	{                                                \
		static type(*next) declared;             \
		next = next != NULL ? next : NEXT(name); \
		step(what);                              \
		return next passed;                      \
	}

WRAP(int, mkdir, MKDIR, (const char *path, mode_t mode), (path, mode))
WRAP(int, rename, RENAME, (const char *from, const char *to), (from, to))
WRAP(int, unlink, UNLINK, (const char *path), (path))
WRAP(int, rmdir, RMDIR, (const char *path), (path))
WRAP(int, ftruncate, TRUNCATE, (int fd, off_t size), (fd, size))
WRAP(int, kill, KILL, (pid_t pid, int sig), (pid, sig))
WRAP(int, connect, CONNECT, (int fd, const struct sockaddr *to, socklen_t len), (fd, to, len))
WRAP(ssize_t, send, SEND, (int fd, const void *data, size_t n, int flags), (fd, data, n, flags))
WRAP(ssize_t, sendmsg, SEND, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
WRAP(int, waitid, WAIT, (idtype_t kind, id_t id, siginfo_t *info, int options),
     (kind, id, info, options))

int clock_gettime(clockid_t id, struct timespec *t)
{
	static int (*next)(clockid_t id, struct timespec * t);
	next = next != NULL ? next : NEXT(clock_gettime);
	int rc = next(id, t);
	if (rc == 0 && id == CLOCK_REALTIME && is_bridge())
		t->tv_sec += control->wall_s;
	return rc;
}

/* libev's way. */
int gettimeofday(struct timeval *t, void *zone)
{
	struct timespec now;
	(void)zone;
	int rc = clock_gettime(CLOCK_REALTIME, &now);
	*t = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
	return rc;
}

#define WRAP_OPENING(type, none, name, declared, passed) \
	type name declared                               \
	{                                                \
		static type(*next) declared;             \
		next = next != NULL ? next : NEXT(name); \
		return is_short() ? none : next passed;  \
	}

WRAP_OPENING(int, -1, socket, (int domain, int type, int protocol), (domain, type, protocol))
WRAP_OPENING(int, -1, accept4, (int fd, struct sockaddr *from, socklen_t *len, int flags),
             (fd, from, len, flags))
WRAP_OPENING(int, -1, pipe2, (int fds[2], int flags), (fds, flags))
WRAP_OPENING(DIR *, NULL, opendir, (const char *path), (path))
WRAP_OPENING(FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode))
WRAP_OPENING(int, -1, nftw, (const char *path, __nftw_func_t each, int fds, int flags),
             (path, each, fds, flags))

#define WRAP_ALLOCATING(name, declared, passed)                                      \
	void *name declared                                                          \
	{                                                                            \
		static void *(*next)declared;                                        \
		next = next != NULL ? next : NEXT(name);                             \
		return is_lacking(__builtin_return_address(0)) ? NULL : next passed; \
	}

WRAP_ALLOCATING(malloc, (size_t n), (n))
WRAP_ALLOCATING(calloc, (size_t count, size_t n), (count, n))
WRAP_ALLOCATING(realloc, (void *p, size_t n), (p, n))

/* Under both of its names: with large files the second is meant. */
#define WRAP_OPEN(name)                                                 \
	int name(const char *path, int flags, ...)                      \
	{                                                               \
		static int (*next)(const char *, int, ...);             \
		va_list ap;                                             \
		va_start(ap, flags);                                    \
		mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0; \
		va_end(ap);                                             \
		next = next != NULL ? next : NEXT(name);                \
		return is_short() ? -1 : next(path, flags, mode);       \
	}

WRAP_OPEN(open)
WRAP_OPEN(open64)

/* SQLite's, by the name that it knows it under. */
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at)
{
	static ssize_t (*next)(int, const void *, size_t, off_t);
	next = next != NULL ? next : NEXT(pwrite64);
	step(WRITE);
	if (is_full(fd)) {
		errno = ENOSPC;
		return -1;
	}
	return next(fd, data, n, at);
}

/* clone3 and what is for pidfds, which the C library does not wrap. */
long syscall(long number, ...)
{
	static long (*next)(long, ...);
	long a[6];
	va_list ap;
	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	next = next != NULL ? next : NEXT(syscall);
	if (number == SYS_clone3)
		step(CLONE);
	else if (number == SYS_pidfd_send_signal)
		step(KILL);
	if ((number == SYS_clone3 || number == SYS_pidfd_open) && is_short())
		return -1;
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
