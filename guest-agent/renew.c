#include "guest-agent/renew.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "guest-agent/plain_file.h"
#include "proto/clock.h"
#include "proto/log.h"

#ifndef RNDRESEEDCRNG
#define RNDRESEEDCRNG _IO('R', 0x07) /* Linux 4.14 */
#endif

/* Files of ours that lie over others. */
#define RUN_DIR "/run/sandgate"

#define HOSTNAME_FILE "/etc/hostname"
#define MACHINE_ID_FILE "/etc/machine-id"
#define BOOT_ID_FILE "/proc/sys/kernel/random/boot_id"
#define RESOLV_CONF "/etc/resolv.conf"

/* ---- files ---- */

/* In place, and cut to its length afterwards: whoever reads meanwhile finds no empty file. */
static int overwrite(int fd, const char *text)
{
	size_t len = strlen(text);
	struct stat st;

	if (fd < 0)
		return -1;
	errno = ELOOP;
	bool done = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	            pwrite(fd, text, len, 0) == (ssize_t)len &&
	            (st.st_size <= (off_t)len || ftruncate(fd, (off_t)len) == 0);
	int saved = errno;
	close(fd);
	errno = saved;
	return done ? 0 : -1;
}

static int create(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);

	if (fd >= 0)
		fchmod(fd, 0644); /* whatever the umask */
	return overwrite(fd, text);
}

/* A plain file that has no other name. */
static int open_single(const char *path)
{
	struct stat st;
	int fd = plain_file_open(AT_FDCWD, path, O_WRONLY | O_NOFOLLOW);

	if (fd < 0 || (fstat(fd, &st) == 0 && st.st_nlink == 1))
		return fd;
	close(fd);
	errno = ELOOP;
	return -1;
}

/* Let `path` read as `text` by a file of ours that is mounted over it; init, or an earlier
 * clone, has perhaps done so already. */
static int cover(const char *path, const char *text)
{
	char ours[128];
	struct stat theirs, own;

	snprintf(ours, sizeof(ours), RUN_DIR "/%s", strrchr(path, '/') + 1);
	if (lstat(path, &theirs) < 0)
		return -1;
	if (lstat(ours, &own) == 0 && theirs.st_dev == own.st_dev &&
	    theirs.st_ino == own.st_ino)
		return overwrite(open_single(ours), text);
	if (!S_ISREG(theirs.st_mode)) {
		errno = ELOOP;
		return -1;
	}
	mkdir(RUN_DIR, 0755);
	return create(ours, text) == 0 ? mount(ours, path, NULL, MS_BIND, NULL) : -1;
}

/* What is a plain file is written to. Else a new file takes the name, so that no symbolic
 * link is followed; where there can be none (a read-only root), it is covered. */
static int replace(const char *path, const char *text)
{
	char fresh[128];

	if (overwrite(open_single(path), text) == 0)
		return 0;
	snprintf(fresh, sizeof(fresh), "%s.sandgate", path);
	unlink(fresh);
	if (create(fresh, text) == 0 && rename(fresh, path) == 0)
		return 0;
	unlink(fresh);
	return cover(path, text);
}

void renew_get_ready(void)
{
	char text[64] = "";
	int fd = open(BOOT_ID_FILE, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	if (fd >= 0)
		close(fd);
	if (n <= 0 || cover(BOOT_ID_FILE, text) < 0)
		log_warn("renew", NULL, "boot id: %s", strerror(errno));
}

/* ---- the steps ---- */

static bool entropy_is_due(const struct renewal *r)
{
	return r->entropy_len > 0;
}

static int add_entropy(const struct renewal *r)
{
	struct {
		struct rand_pool_info info;
		uint8_t data[RESUME_ENTROPY_MAX];
	} pool = {.info = {.entropy_count = (int)r->entropy_len * 8,
	                   .buf_size = (int)r->entropy_len}};
	int fd = open("/dev/urandom", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return -1;
	memcpy(pool.data, r->entropy, r->entropy_len);
	int rc = ioctl(fd, RNDADDENTROPY, &pool);
	/* A kernel that does not know the second one reseeds by itself, later. */
	if (rc == 0 && ioctl(fd, RNDRESEEDCRNG) < 0 && errno != EINVAL && errno != ENOTTY)
		rc = -1;
	close(fd);
	return rc;
}

static bool clock_is_due(const struct renewal *r)
{
	int64_t off = (int64_t)(r->wall_clock_ms - clock_wall_ms());
	return r->wall_clock_ms != 0 && (off > CLOCK_STEP_MS || off < -CLOCK_STEP_MS);
}

static int set_clock(const struct renewal *r)
{
	struct timespec ts = {.tv_sec = (time_t)(r->wall_clock_ms / 1000),
	                      .tv_nsec = (long)(r->wall_clock_ms % 1000) * 1000000};
	return clock_settime(CLOCK_REALTIME, &ts);
}

static bool hostname_is_due(const struct renewal *r)
{
	return r->hostname[0] != '\0';
}

static int set_hostname(const struct renewal *r)
{
	char line[HOSTNAME_MAX + 2];

	if (sethostname(r->hostname, strlen(r->hostname)) < 0)
		return -1;
	if (access(HOSTNAME_FILE, F_OK) < 0)
		return 0;
	snprintf(line, sizeof(line), "%s\n", r->hostname);
	return replace(HOSTNAME_FILE, line);
}

static bool machine_id_is_due(const struct renewal *r)
{
	return r->clone && access(MACHINE_ID_FILE, F_OK) == 0;
}

static char *put_hex(char *at, const uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		at += sprintf(at, "%02x", bytes[i]);
	return at;
}

static int set_machine_id(const struct renewal *r)
{
	char line[2 * RENEW_ID_SIZE + 2];

	strcpy(put_hex(line, r->machine_id, RENEW_ID_SIZE), "\n");
	return replace(MACHINE_ID_FILE, line);
}

static bool is_clone(const struct renewal *r)
{
	return r->clone;
}

static int set_boot_id(const struct renewal *r)
{
	static const size_t groups[] = {4, 2, 2, 2, 6};
	const uint8_t *from = r->boot_id;
	char line[2 * RENEW_ID_SIZE + 6], *at = line;

	for (size_t i = 0; i < 5; from += groups[i++]) {
		at = put_hex(at, from, groups[i]);
		*at++ = i < 4 ? '-' : '\n';
	}
	*at = '\0';
	return cover(BOOT_ID_FILE, line);
}

static bool network_is_due(const struct renewal *r)
{
	return r->network.given;
}

static int set_network(const struct renewal *r)
{
	return network_set_up(&r->network);
}

static bool name_servers_are_due(const struct renewal *r)
{
	return r->network.server_count > 0;
}

static int set_name_servers(const struct renewal *r)
{
	char text[NETWORK_ADDRESSES_MAX * (INET6_ADDRSTRLEN + 16)] = "";
	size_t len = 0;

	for (size_t i = 0; i < r->network.server_count; i++) {
		const struct network_ip *ip = &r->network.servers[i];
		char name[INET6_ADDRSTRLEN];
		inet_ntop(ip->len == 4 ? AF_INET : AF_INET6, ip->bytes, name, sizeof(name));
		len +=
		    (size_t)snprintf(text + len, sizeof(text) - len, "nameserver %s\n", name);
	}
	return replace(RESOLV_CONF, text);
}

static const struct {
	const char *name;
	bool (*is_due)(const struct renewal *r);
	int (*run)(const struct renewal *r);
	bool is_safe; /* harms no machine, whoever manages it */
} steps[RENEW_STEPS] = {
    [RENEW_ENTROPY] = {"entropy", entropy_is_due, add_entropy, true},
    [RENEW_CLOCK] = {"clock", clock_is_due, set_clock, false},
    [RENEW_HOSTNAME] = {"hostname", hostname_is_due, set_hostname, false},
    [RENEW_MACHINE_ID] = {"machine_id", machine_id_is_due, set_machine_id, false},
    [RENEW_BOOT_ID] = {"boot_id", is_clone, set_boot_id, false},
    [RENEW_NETWORK] = {"network", network_is_due, set_network, false},
    [RENEW_NAME_SERVERS] = {"name_servers", name_servers_are_due, set_name_servers, false},
};

int renew(const struct renewal *r)
{
	int failed = 0;

	for (int i = 0; i < RENEW_STEPS; i++) {
		if (!steps[i].is_due(r))
			continue;
		errno = EPERM;
		if ((r->may_manage || steps[i].is_safe) && steps[i].run(r) == 0)
			continue;
		log_warn("renew", NULL, "%s: %s", steps[i].name, strerror(errno));
		failed |= 1 << i;
		if (i == RENEW_ENTROPY && r->clone)
			break;
	}
	return failed;
}

const char *renew_step_name(enum renew_step step)
{
	return steps[step].name;
}
