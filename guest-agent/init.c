#include "guest-agent/init.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "guest-agent/cgroup_files.h"
#include "guest-agent/init_private.h"
#include "guest-agent/own_mount.h"
#include "guest-agent/renew.h"
#include "proto/log.h"

#define MODULES_LIST "/etc/sandgate/modules"
#define HOSTNAME_FILE "/etc/hostname"
#define HOSTNAME_DEFAULT "sandgate"
#define MACHINE_ID_FILE "/etc/machine-id"

/* At the end: how often, and how long between two looks, what is left may react. */
#define END_PAUSE_MS 10
#define END_TERM_TRIES 50
#define END_KILL_TRIES 50
#define MOUNTS_MAX 128

static const struct {
	const char *type, *target, *options;
	unsigned long flags;
	mode_t mode;
} mounts[] = {
    {"proc", "/proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555},
    {"sysfs", "/sys", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555},
    {"devtmpfs", "/dev", "mode=755", MS_NOSUID, 0755},
    {"devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666", MS_NOSUID | MS_NOEXEC, 0755},
    {"tmpfs", "/dev/shm", "mode=1777", MS_NOSUID | MS_NODEV, 01777},
    {"tmpfs", "/run", "mode=755", MS_NOSUID | MS_NODEV, 0755},
    {"tmpfs", "/tmp", "mode=1777", MS_NOSUID | MS_NODEV, 01777},
    {"cgroup2", "/sys/fs/cgroup", "nsdelegate", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0755},
};
#define MOUNTS (sizeof(mounts) / sizeof(mounts[0]))
#define ROOT_MOUNTS 3 /* what it takes to find a root */

static const struct {
	const char *to, *link;
} links[] = {
    {"/proc/self/fd", "/dev/fd"},
    {"/proc/self/fd/0", "/dev/stdin"},
    {"/proc/self/fd/1", "/dev/stdout"},
    {"/proc/self/fd/2", "/dev/stderr"},
};

void init_failed(const char *what, const char *which)
{
	log_error("init", NULL, "%s %s: %s", what, which, strerror(errno));
}

/* EBUSY: the kernel or an earlier stage has mounted the very file system there. */
static void setup_mounts(size_t from, size_t to)
{
	for (size_t i = from; i < to; i++) {
		mkdir(mounts[i].target, mounts[i].mode);
		if (mount(mounts[i].type, mounts[i].target, mounts[i].type, mounts[i].flags,
		          mounts[i].options) != 0 &&
		    errno != EBUSY)
			init_failed("mount", mounts[i].target);
	}
}

static void setup_links(void)
{
	for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
		if (symlink(links[i].to, links[i].link) != 0 && errno != EEXIST)
			init_failed("symlink", links[i].link);
}

/* An initramfs without /dev/console starts its init without descriptors: later ones must
 * not land on 0, 1 and 2. */
static void setup_descriptors(void)
{
	int fd;

	while ((fd = open("/dev/console", O_RDWR | O_NOCTTY)) >= 0 && fd <= STDERR_FILENO)
		;
	if (fd >= 0)
		close(fd);
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		dup2(fd, STDIN_FILENO);
		close(fd);
	}
	/* Root in an exec can stop the console: a line that it does not take is lost. */
	fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
}

void init_load_modules(const char *list)
{
	char line[512];
	FILE *f = fopen(list, "re");

	while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
		line[strcspn(line, "\n")] = '\0';
		if (line[0] == '\0' || line[0] == '#')
			continue;
		char *parameters = strchr(line, ' ');
		if (parameters != NULL)
			*parameters++ = '\0';
		int fd = open(line, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || (syscall(SYS_finit_module, fd,
		                       parameters != NULL ? parameters : "", 0) != 0 &&
		               errno != EEXIST))
			init_failed("module", line);
		if (fd >= 0)
			close(fd);
	}
	if (f != NULL)
		fclose(f);
}

/* What the kernel was told counts more than what the image has. */
static void set_hostname(void)
{
	char name[65] = "";
	struct utsname uts;
	if (uname(&uts) == 0 && strcmp(uts.nodename, "(none)") != 0)
		return;
	FILE *f = fopen(HOSTNAME_FILE, "re");
	if (f != NULL) {
		if (fgets(name, sizeof(name), f) != NULL)
			name[strcspn(name, " \t\n")] = '\0';
		fclose(f);
	}
	if (name[0] == '\0')
		strcpy(name, HOSTNAME_DEFAULT);
	if (sethostname(name, strlen(name)) != 0)
		init_failed("hostname", name);
}

/* An image that is to have a machine id has an empty file (machine-id(5)). */
static void set_machine_id(void)
{
	uint8_t id[16];
	char text[2 * sizeof(id) + 2] = "";
	struct stat st;

	if (stat(MACHINE_ID_FILE, &st) != 0 || st.st_size > 0)
		return;
	if (getrandom(id, sizeof(id), 0) != sizeof(id)) {
		init_failed("random", "machine id");
		return;
	}
	for (size_t i = 0; i < sizeof(id); i++)
		sprintf(text + 2 * i, "%02x", id[i]);
	strcat(text, "\n");
	int fd = open(MACHINE_ID_FILE, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		init_failed("machine id", MACHINE_ID_FILE);
	if (fd >= 0)
		close(fd);
}

static void bring_lo_up(void)
{
	struct ifreq ifr = {.ifr_name = "lo"};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &ifr) != 0) {
		init_failed("interface", "lo");
	} else {
		ifr.ifr_flags |= IFF_UP;
		if (ioctl(fd, SIOCSIFFLAGS, &ifr) != 0)
			init_failed("interface", "lo");
	}
	if (fd >= 0)
		close(fd);
}

void init_setup(void)
{
	setup_mounts(0, ROOT_MOUNTS);
	setup_descriptors();
	init_load_modules(MODULES_LIST);
	if (init_root() != 0)
		init_power_off(); /* nobody is to work on another root than he was promised */
	setup_mounts(ROOT_MOUNTS, MOUNTS);
	setup_links();
	set_hostname();
	set_machine_id();
	renew_get_ready();
	bring_lo_up();
}

bool init_word(const char *name, char *value, size_t room)
{
	char text[4096];
	bool found = false;

	cgroup_files_read(own_proc(), "cmdline", text, sizeof(text));
	for (char *word = strtok(text, " \n"); word != NULL; word = strtok(NULL, " \n"))
		if (strncmp(word, name, strlen(name)) == 0) {
			snprintf(value, room, "%s", word + strlen(name));
			found = true;
		}
	return found;
}

/* Whether the kernel was told to reset through the keyboard controller: a VMM that has no
 * power switch (Firecracker) ends the VM on that. */
static bool ends_by_reset(void)
{
	char how[8];
	return init_word("reboot=", how, sizeof(how)) && strcmp(how, "k") == 0;
}

/* Signal everything but ourselves and reap until nothing is left or the time is up. */
static void end_all(int signal, int tries)
{
	struct timespec pause = {.tv_nsec = END_PAUSE_MS * 1000000L};

	kill(-1, signal);
	for (int i = 0; i < tries; i++) {
		pid_t pid;
		while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
			;
		if (pid < 0)
			return;
		nanosleep(&pause, NULL);
	}
}

/* In /proc/mounts white space and backslashes stand as three octal digits (proc(5)). */
static void unescape(char *text)
{
	char *out = text;

	for (; *text != '\0'; text++) {
		char digits[4] = "";
		if (*text == '\\' && strspn(text + 1, "01234567") >= 3) {
			memcpy(digits, text + 1, 3);
			*out++ = (char)strtoul(digits, NULL, 8);
			text += 3;
		} else {
			*out++ = *text;
		}
	}
	*out = '\0';
}

/* In reverse order of mounting; what is busy becomes read-only, so that it is clean. */
static void unmount_all(void)
{
	char targets[MOUNTS_MAX][256], line[1024];
	int count = 0;
	int fd = openat(own_proc(), "self/mounts", O_RDONLY | O_CLOEXEC);
	FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;

	while (f != NULL && count < MOUNTS_MAX && fgets(line, sizeof(line), f) != NULL) {
		char *rest = line;
		strsep(&rest, " ");
		char *target = strsep(&rest, " ");
		if (target == NULL)
			continue;
		unescape(target);
		snprintf(targets[count++], sizeof(targets[0]), "%s", target);
	}
	if (f != NULL)
		fclose(f);
	while (count-- > 0)
		if (umount2(targets[count], 0) != 0)
			mount(NULL, targets[count], NULL, MS_REMOUNT | MS_RDONLY, NULL);
}

void init_power_off(void)
{
	if (getpid() != 1)
		return;
	int command = ends_by_reset() ? RB_AUTOBOOT : RB_POWER_OFF;
	end_all(SIGTERM, END_TERM_TRIES);
	end_all(SIGKILL, END_KILL_TRIES);
	sync();
	unmount_all();
	reboot(command);
	for (;;)
		pause();
}
