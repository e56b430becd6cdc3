#include "host-bridge/vm/vm_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* Append to a list of `room` pointers that ends with NULL. */
static void append(struct vm_command *c, char **list, unsigned *count, unsigned room,
                   const char *fmt, va_list ap)
{
	if (*count + 1 >= room || vasprintf(&list[*count], fmt, ap) < 0)
		c->broken = true;
	else
		list[++*count] = NULL;
}

void vm_command_arg(struct vm_command *c, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	append(c, c->argv, &c->argc, VM_ARGS_MAX, fmt, ap);
	va_end(ap);
}

void vm_command_env(struct vm_command *c, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	append(c, c->env, &c->envc, VM_FEW_MAX, fmt, ap);
	va_end(ap);
}

void vm_command_jail(struct vm_command *c, const char *path)
{
	if (c->jailc >= VM_FEW_MAX || (c->jail[c->jailc] = strdup(path)) == NULL)
		c->broken = true;
	else
		c->jailc++;
}

void vm_command_jail_writable(struct vm_command *c, const char *path)
{
	c->writable = strdup(path);
	c->broken |= c->writable == NULL;
}

void vm_command_listen(struct vm_command *c, const char *path)
{
	c->listen = strdup(path);
	c->broken |= c->listen == NULL;
}

void vm_command_free(struct vm_command *c)
{
	for (unsigned i = 0; i < c->argc; i++)
		free(c->argv[i]);
	for (unsigned i = 0; i < c->envc; i++)
		free(c->env[i]);
	for (unsigned i = 0; i < c->jailc; i++)
		free(c->jail[i]);
	free(c->writable);
	free(c->listen);
	*c = (struct vm_command){0};
}

/* ---- in the child: between clone and exec, steps that name themselves when they fail ---- */

static void die(const char *step)
{
	dprintf(STDERR_FILENO, "%s: %s\n", step, strerror(errno));
	_exit(127);
}

/* The bridge's own may be all that its limit allows: they go before another is opened. */
static void setup_descriptors(int out, int listening)
{
	unsigned keep = listening >= 0;
	if (dup2(out, 1) < 0 || dup2(out, 2) < 0)
		_exit(127);
	if (listening >= 0 && dup2(listening, 3) < 0)
		_exit(127);
	if (close_range(3 + keep, UINT32_MAX, 0) < 0 || (keep && fcntl(3, F_SETFD, 0) < 0))
		die("descriptors");
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0 || dup2(null, 0) < 0)
		die("/dev/null");
}

/* A VMM must not die of the bridge that read its output. */
static void setup_signals(void)
{
	sigset_t none;
	sigemptyset(&none);
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR || sigprocmask(SIG_SETMASK, &none, NULL) < 0)
		die("signals");
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die(path);
	close(fd);
}

/* Without privileges a user namespace stands in: root inside is the caller outside. */
static void setup_user_namespace(unsigned namespaces, uid_t uid, gid_t gid)
{
	char map[64];
	if (!(namespaces & CLONE_NEWUSER))
		return;
	snprintf(map, sizeof(map), "0 %u 1", (unsigned)uid);
	write_file("/proc/self/uid_map", map);
	write_file("/proc/self/setgroups", "deny");
	snprintf(map, sizeof(map), "0 %u 1", (unsigned)gid);
	write_file("/proc/self/gid_map", map);
}

static void setup_mounts(unsigned namespaces)
{
	if (!(namespaces & CLONE_NEWNS))
		return;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		die("mount namespace");
	if ((namespaces & CLONE_NEWPID) &&
	    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		die("mount /proc");
}

/* Every directory on the way to `path`, which is below the working directory. */
static void make_parents(char *path)
{
	for (char *p = strchr(path, '/'); p != NULL; p = strchr(p + 1, '/')) {
		*p = '\0';
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			die(path);
		*p = '/';
	}
}

static void show_in_jail(const char *host_path, unsigned long extra_flags)
{
	char at[PATH_MAX];
	struct stat st;
	snprintf(at, sizeof(at), "%s", host_path + strspn(host_path, "/"));
	make_parents(at);
	if (stat(host_path, &st) < 0)
		die(host_path);
	if (S_ISDIR(st.st_mode) ? mkdir(at, 0755) : mknod(at, S_IFREG | 0644, 0))
		die(at);
	if (mount(host_path, at, NULL, MS_BIND, NULL) < 0 ||
	    mount(NULL, at, NULL, MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | extra_flags,
	          NULL) < 0)
		die(at);
}

/* Nodes of its own: who may open the host's is the host's affair. */
static void setup_devices(const struct vm_command *c)
{
	static const char *const names[] = {"/dev/kvm", "/dev/urandom"};
	struct stat st;
	if (!c->kvm)
		return;
	if (mkdir("dev", 0755) < 0 ||
	    mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=4k") < 0)
		die("dev");
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (stat(names[i], &st) < 0 ||
		    mknod(names[i] + 1, S_IFCHR | 0600, st.st_rdev) < 0 ||
		    chown(names[i] + 1, c->uid, c->uid) < 0)
			die(names[i]);
}

/* What a dynamically linked program needs of this host. */
static const char *const libraries[] = {"/usr/lib", "/lib", "/lib64"};

/* The mounts are this process's own, and vanish with it. */
static void setup_jail(const struct vm_command *c)
{
	if (c->jailc == 0)
		return;
	/* First, since what is shown may lie in /tmp as well. */
	if (mkdir("tmp", 0755) < 0 ||
	    mount("tmpfs", "tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") < 0)
		die("tmp");
	for (unsigned i = 0; i < c->jailc; i++)
		show_in_jail(c->jail[i], MS_RDONLY);
	for (size_t i = 0; i < sizeof(libraries) / sizeof(*libraries); i++)
		if (access(libraries[i], F_OK) == 0)
			show_in_jail(libraries[i], MS_RDONLY);
	if (c->writable != NULL)
		show_in_jail(c->writable, 0);
	setup_devices(c);
	if (chroot(".") < 0 || chdir("/") < 0)
		die("chroot");
}

static void setup_machine(const struct vm_command *c)
{
	if (c->fixed_addresses && personality(ADDR_NO_RANDOMIZE) < 0)
		die("personality");
	if (c->cpu > 0) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET(c->cpu - 1, &set);
		if (sched_setaffinity(0, sizeof(set), &set) < 0)
			die("sched_setaffinity");
	}
}

static void setup_user(const struct vm_command *c)
{
	if (c->uid == 0 || geteuid() != 0)
		return;
	if (setgroups(0, NULL) < 0 || setresgid(c->uid, c->uid, c->uid) < 0 ||
	    setresuid(c->uid, c->uid, c->uid) < 0)
		die("setuid");
}

static void run_child(const struct vm_command *c, const char *dir, int out, int listening,
                      uid_t uid, gid_t gid)
{
	static char path[] =
	    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	static char home[] = "HOME=/", lang[] = "LANG=C.UTF-8";
	char *env[3 + VM_FEW_MAX] = {path, home, lang};
	for (unsigned i = 0; i < c->envc; i++)
		env[3 + i] = c->env[i];
	setup_descriptors(out, listening);
	setup_signals();
	if (setsid() < 0)
		die("setsid");
	setup_user_namespace(c->namespaces, uid, gid);
	setup_mounts(c->namespaces);
	if (chdir(dir) < 0)
		die("chdir");
	setup_jail(c);
	setup_machine(c);
	setup_user(c);
	execvpe(c->argv[0], c->argv, env);
	die(c->argv[0]);
}

/* ---- in the bridge ---- */

/* Field 22 of proc(5)'s stat. The name in field 2 may hold anything, so count from its end. 0
 * and errno when it cannot be read. */
static unsigned long long start_time(pid_t pid)
{
	char path[64], text[1024];
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	errno = ESRCH;
	if (n <= 0)
		return 0;
	text[n] = '\0';
	const char *p = strrchr(text, ')');
	for (int field = 2; p != NULL && field < 22; field++)
		p = strchr(p + 1, ' ');
	return p != NULL ? strtoull(p + 1, NULL, 10) : 0;
}

/* -1 when there is nothing to listen on, -2 with `e`. */
static int open_listener(const struct vm_command *c, struct err *e)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	if (c->listen == NULL)
		return -1;
	snprintf(at.sun_path, sizeof(at.sun_path), "%s", c->listen);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 &&
	    listen(fd, SOMAXCONN) == 0)
		return fd;
	err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno, "a VM's monitor");
	if (fd >= 0)
		close(fd);
	return -2;
}

/* Born in the cgroup, it has no moment outside. Its pid, in the child 0; -1 and errno. */
static long clone_into(unsigned namespaces, const char *cgroup, int *pidfd)
{
	struct clone_args args = {
	    .flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND | namespaces,
	    .pidfd = (uintptr_t)pidfd,
	    .exit_signal = SIGCHLD,
	};
	int group = cgroup != NULL ? open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (cgroup != NULL && group < 0)
		return -1;
	if (cgroup != NULL) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)group;
	}
	long pid = syscall(SYS_clone3, &args, sizeof(args));
	int saved = errno;
	if (group >= 0)
		close(group);
	errno = saved;
	return pid;
}

/* No later bridge could tell it from another of its number. */
static void take_back(struct vm_pid *p)
{
	siginfo_t info;
	vm_pid_kill(p);
	waitid(P_PIDFD, (id_t)p->fd, &info, WEXITED);
	close(p->fd);
	p->fd = -1;
}

int vm_spawn(const struct vm_command *c, const char *dir, const char *cgroup, int out,
             struct vm_pid *p, struct err *e)
{
	if (c->broken || c->argc == 0)
		return err_set(e, ERR_INTERNAL, "a VM's command line could not be made");
	int listening = open_listener(c, e);
	if (listening == -2)
		return -1;
	uid_t uid = getuid();
	gid_t gid = getgid();
	int pidfd = -1;
	long pid = clone_into(c->namespaces, cgroup, &pidfd);
	if (pid == 0)
		run_child(c, dir, out, listening, uid, gid);
	int saved = errno;
	if (listening >= 0)
		close(listening);
	if (pid < 0)
		return err_errno(e, err_of_errno(saved, ERR_LAUNCHER_FAILED), saved,
		                 "a VM's process cannot start");
	p->pid = (pid_t)pid;
	p->fd = pidfd;
	p->start = start_time(p->pid);
	if (p->start != 0)
		return 0;
	err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno, "a VM's process");
	take_back(p);
	return -1;
}

/* A zombie has ended, though nobody has waited for it yet. */
static bool has_ended(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	return poll(&p, 1, 0) > 0;
}

int vm_pid_open(struct vm_pid *p)
{
	p->fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
	if (p->fd < 0)
		return -1;
	unsigned long long start = start_time(p->pid);
	if (p->start != 0 && start == p->start && !has_ended(p->fd))
		return 0;
	int saved = start == 0 ? errno : ESRCH;
	close(p->fd);
	p->fd = -1;
	errno = saved;
	return -1;
}

void vm_pid_kill(const struct vm_pid *p)
{
	kill(-p->pid, SIGKILL);
	syscall(SYS_pidfd_send_signal, p->fd, SIGKILL, NULL, 0);
}
