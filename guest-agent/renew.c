#include "guest-agent/renew.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "guest-agent/clock.h"
#include "guest-agent/exec_request.h"
#include "guest-agent/plain_file.h"
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

/* ---- the message ---- */

static int parse_hostname(struct renewal *r, ProtobufCBinaryData name, struct err *e)
{
	static const char allowed[] =
	    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-";

	for (size_t i = 0; i < name.len; i++)
		if (i == HOSTNAME_MAX || name.data[i] == '\0' ||
		    strchr(allowed, name.data[i]) == NULL)
			return err_field(e, ERR_INVALID_FIELD, "hostname",
			                 "hostname is not up to %d of A-Z a-z 0-9 . -",
			                 HOSTNAME_MAX);
	if (name.len > 0)
		memcpy(r->hostname, name.data, name.len);
	return 0;
}

/* Only random bytes, and marked as such (RFC 9562, version 4). */
static void make_uuid(uint8_t id[RENEW_ID_SIZE])
{
	id[6] = (uint8_t)((id[6] & 0x0f) | 0x40);
	id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
}

/* The names take bytes that the generator never gets: it could be asked to tell them. */
static void take_names(struct renewal *r, ProtobufCBinaryData machine_id)
{
	_Static_assert(3 * RENEW_ID_SIZE == RESUME_ENTROPY_NAMES, "three names");
	memcpy(r->instance, r->entropy, RENEW_ID_SIZE);
	memcpy(r->machine_id, r->entropy + RENEW_ID_SIZE, RENEW_ID_SIZE);
	memcpy(r->boot_id, r->entropy + 2 * RENEW_ID_SIZE, RENEW_ID_SIZE);
	make_uuid(r->machine_id);
	make_uuid(r->boot_id);
	if (machine_id.len > 0)
		memcpy(r->machine_id, machine_id.data, RENEW_ID_SIZE);
	r->entropy_len -= RESUME_ENTROPY_NAMES;
	memmove(r->entropy, r->entropy + RESUME_ENTROPY_NAMES, r->entropy_len);
}

/* Dropping what only a clone can do would leave its caller believing that it was done. */
static int check_same(const Sandgate__Resume *m, struct err *e)
{
	const char *field = m->hostname.len > 0     ? "hostname"
	                    : m->machine_id.len > 0 ? "machine_id"
	                    : m->network != NULL    ? "network"
	                    : m->n_env > 0          ? "env"
	                                            : NULL;
	if (field != NULL)
		return err_field(e, ERR_INVALID_FIELD, field, "%s is for clones", field);
	return 0;
}

static int copy_env(struct renewal *r, const Sandgate__Resume *m, struct err *e)
{
	if (m->n_env == 0)
		return 0;
	if (exec_request_check_env(m->env, m->n_env, e) < 0)
		return -1;
	if ((r->env = calloc(m->n_env, sizeof(char *))) == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	for (; r->env_count < m->n_env; r->env_count++) {
		const Sandgate__EnvVar *v = m->env[r->env_count];
		char *s = malloc(v->name.len + v->value.len + 2);
		if (s == NULL)
			return err_set(e, ERR_INTERNAL, "out of memory");
		sprintf(s, "%.*s=%.*s", (int)v->name.len, (const char *)v->name.data,
		        (int)v->value.len, (const char *)v->value.data);
		r->env[r->env_count] = s;
	}
	return 0;
}

static int parse_clone(struct renewal *r, const Sandgate__Resume *m, struct err *e)
{
	if (m->entropy.len < RESUME_ENTROPY_MIN)
		return err_field(e, ERR_MISSING_FIELD, "entropy", "a clone needs %d bytes",
		                 RESUME_ENTROPY_MIN);
	if (m->machine_id.len != 0 && m->machine_id.len != RENEW_ID_SIZE)
		return err_field(e, ERR_INVALID_FIELD, "machine_id", "not %d bytes",
		                 RENEW_ID_SIZE);
	take_names(r, m->machine_id);
	if (parse_hostname(r, m->hostname, e) < 0 ||
	    network_parse(&r->network, m->network, e) < 0)
		return -1;
	return copy_env(r, m, e);
}

static int parse(struct renewal *r, const Sandgate__Resume *m, struct err *e)
{
	if (m->role > SANDGATE__RESUME_ROLE__RESUME_CLONE)
		return err_field(e, ERR_INVALID_FIELD, "role", "unknown role");
	if (m->entropy.len > RESUME_ENTROPY_MAX)
		return err_field(e, ERR_INVALID_FIELD, "entropy", "over %d bytes",
		                 RESUME_ENTROPY_MAX);
	r->clone = m->role == SANDGATE__RESUME_ROLE__RESUME_CLONE;
	r->wall_clock_ms = m->wall_clock_ms;
	r->entropy_len = m->entropy.len;
	if (m->entropy.len > 0)
		memcpy(r->entropy, m->entropy.data, m->entropy.len);
	return r->clone ? parse_clone(r, m, e) : check_same(m, e);
}

struct renewal *renewal_parse(const Sandgate__Resume *m, struct err *e)
{
	struct renewal *r = calloc(1, sizeof(*r));

	if (r == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	if (parse(r, m, e) == 0)
		return r;
	renewal_free(r);
	return NULL;
}

void renewal_free(struct renewal *r)
{
	if (r == NULL)
		return;
	for (size_t i = 0; i < r->env_count; i++)
		free(r->env[i]);
	free(r->env);
	explicit_bzero(r->entropy, sizeof(r->entropy)); /* the next snapshot holds no seed */
	free(r);
}

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
