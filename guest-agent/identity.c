#include "guest-agent/identity.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/capability.h>
#include <sys/stat.h>

#include "guest-agent/own_mount.h"
#include "guest-agent/plain_file.h"

static int etc = -1; /* where the two are */
static const char *passwd_path = "passwd";
static const char *group_path = "group";

void identity_get_ready(void)
{
	etc = own_mount("/etc");
}

void identity_set_files(const char *passwd, const char *group)
{
	passwd_path = passwd;
	group_path = group;
}

static bool all_digits(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (s[i] < '0' || s[i] > '9')
			return false;
	return n > 0;
}

/* Canonical decimal only: no sign, space or leading zero, and below (uid_t)-1, which the
 * kernel takes for "leave it as it is". */
static int parse_id(const char *s, size_t n, unsigned *out)
{
	uint64_t v = 0;

	if (!all_digits(s, n) || n > 10 || (s[0] == '0' && n > 1))
		return EINVAL;
	for (size_t i = 0; i < n; i++)
		v = v * 10 + (unsigned)(s[i] - '0');
	if (v >= UINT32_MAX)
		return EINVAL;
	*out = (unsigned)v;
	return 0;
}

static int copy(char *out, size_t room, const char *s, const char *if_empty)
{
	if (s == NULL || s[0] == '\0')
		s = if_empty;
	if (strlen(s) >= room)
		return ENAMETOOLONG;
	strcpy(out, s);
	return 0;
}

static int fill(struct identity *out, const char *name, const char *home, const char *shell)
{
	int rc = copy(out->name, sizeof(out->name), name, "");
	if (rc == 0)
		rc = copy(out->home, sizeof(out->home), home, "/");
	if (rc == 0)
		rc = copy(out->shell, sizeof(out->shell), shell, "/bin/sh");
	return rc;
}

/* The entry of `name`, or of `uid` when `name` is NULL. ENOENT: there is none. */
static int find_user(const char *name, uid_t uid, struct identity *out)
{
	FILE *f = plain_file_read(etc, passwd_path);
	struct passwd *pw;
	int rc = ENOENT;

	if (f == NULL)
		return errno;
	while (rc == ENOENT && (pw = fgetpwent(f)) != NULL) {
		if (name != NULL ? strcmp(pw->pw_name, name) != 0 : pw->pw_uid != uid)
			continue;
		out->uid = pw->pw_uid;
		out->gid = pw->pw_gid;
		rc = fill(out, pw->pw_name, pw->pw_dir, pw->pw_shell);
	}
	fclose(f);
	return rc;
}

static bool lists(char **members, const char *name)
{
	for (; *members != NULL; members++)
		if (strcmp(*members, name) == 0)
			return true;
	return false;
}

/* Supplementary groups: the primary one and each that names the user. E2BIG rather than
 * an identity that lacks groups. */
static int find_groups(struct identity *out)
{
	struct group *gr;
	int rc = 0;

	out->groups[0] = out->gid;
	out->group_count = 1;
	FILE *f = plain_file_read(etc, group_path);
	if (f == NULL)
		return errno == ENOENT ? 0 : errno;
	while (rc == 0 && (gr = fgetgrent(f)) != NULL) {
		if (gr->gr_gid == out->gid || !lists(gr->gr_mem, out->name))
			continue;
		if (out->group_count == IDENTITY_GROUPS_MAX)
			rc = E2BIG;
		else
			out->groups[out->group_count++] = gr->gr_gid;
	}
	fclose(f);
	return rc;
}

static int by_name(const char *name, struct identity *out)
{
	if (strchr(name, ':') != NULL || name[0] == '+' || name[0] == '-' ||
	    strlen(name) >= sizeof(out->name))
		return EINVAL;
	int rc = find_user(name, 0, out);
	/* An image without users has its root all the same. */
	if (rc == ENOENT && strcmp(name, "root") == 0) {
		out->uid = out->gid = 0;
		rc = fill(out, "root", "/", "/bin/sh");
	}
	return rc;
}

static int by_uid(unsigned uid, struct identity *out)
{
	char number[16];
	int rc = find_user(NULL, uid, out);

	if (rc != ENOENT)
		return rc;
	out->uid = uid;
	out->gid = uid;
	snprintf(number, sizeof(number), "%u", uid);
	return fill(out, uid == 0 ? "root" : number, "/", "/bin/sh");
}

static int resolve(const char *spec, struct identity *out)
{
	const char *colon = strchr(spec, ':');
	size_t n = colon != NULL ? (size_t)(colon - spec) : strlen(spec);
	unsigned uid, gid;

	memset(out, 0, sizeof(*out));
	if (n == 0)
		return EINVAL;
	if (!all_digits(spec, n)) {
		int rc = by_name(spec, out);
		return rc != 0 ? rc : find_groups(out);
	}
	if (parse_id(spec, n, &uid) != 0 ||
	    (colon != NULL && parse_id(colon + 1, strlen(colon + 1), &gid) != 0))
		return EINVAL;
	int rc = by_uid(uid, out);
	if (rc != 0 || colon == NULL)
		return rc != 0 ? rc : find_groups(out);
	/* A group that was asked for is the only one: nothing else leaks in. */
	out->gid = gid;
	out->groups[0] = gid;
	out->group_count = 1;
	return 0;
}

/* What the two files were when they were read; a file that is not there is all zeros. */
struct version {
	ino_t inode[2];
	off_t size[2];
	struct timespec changed[2];
};

static struct version version_now(void)
{
	const char *paths[2] = {passwd_path, group_path};
	struct version v;
	struct stat st;

	memset(&v, 0, sizeof(v));
	for (int i = 0; i < 2; i++) {
		if (fstatat(etc, paths[i], &st, AT_SYMLINK_NOFOLLOW) != 0)
			continue;
		v.inode[i] = st.st_ino;
		v.size[i] = st.st_size;
		v.changed[i] = st.st_ctim;
	}
	return v;
}

/* Nearly every command runs as the user before it: the last answer is kept. */
int identity_resolve(const char *spec, struct identity *out)
{
	static struct {
		char spec[64];
		struct version version;
		struct identity who;
	} last;
	struct version now = version_now();

	if (last.spec[0] != '\0' && strcmp(spec, last.spec) == 0 &&
	    memcmp(&now, &last.version, sizeof(now)) == 0) {
		*out = last.who;
		return 0;
	}
	int rc = resolve(spec, out);
	if (rc == 0 && strlen(spec) < sizeof(last.spec)) {
		strcpy(last.spec, spec);
		last.version = now;
		last.who = *out;
	}
	return rc;
}

static bool well_formed_cap(const char *name)
{
	if (strncasecmp(name, "cap_", 4) != 0)
		return false;
	for (const char *c = name; *c != '\0'; c++)
		if (!isalnum((unsigned char)*c) && *c != '_')
			return false;
	return true;
}

int identity_caps(char *const *names, size_t count, uint64_t *mask, struct err *e)
{
	uint64_t kept = 0;
	cap_value_t value;

	for (size_t i = 0; i < count; i++) {
		if (!well_formed_cap(names[i]) || cap_from_name(names[i], &value) != 0)
			return err_field(e, ERR_INVALID_FIELD, "capabilities",
			                 "unknown capability %.32s", names[i]);
		kept |= UINT64_C(1) << value;
	}
	*mask = kept;
	return 0;
}
