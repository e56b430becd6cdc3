/* Whom a command runs as: users, groups and capabilities, read from files that may lie. */
#include <check.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest-agent/identity.h"
#include "tests/suite_fixture.h"

static const char passwd_text[] = "root:x:0:0:root:/root:/bin/bash\n"
                                  "u1:x:1000:1000:User One:/home/u1:/bin/dash\n"
                                  "twin:x:1000:1000::/home/twin:/bin/sh\n"
                                  "bare:x:1001:50:::\n"
                                  "1002x:x:1002:1002::/:/bin/sh\n"
                                  "last:x:4294967294:7::/:/bin/sh\n";
static const char group_text[] = "root:x:0:\n"
                                 "g1:x:2001:u1,other\n"
                                 "g2:x:2002:other,u1\n"
                                 "g3:x:2003:u10\n"
                                 "own:x:1000:u1\n"
                                 "none:x:2004:\n";

static char passwd_file[] = "/tmp/check_identity_passwd.XXXXXX";
static char group_file[] = "/tmp/check_identity_group.XXXXXX";

static void put(char *path, const char *text, size_t n)
{
	strcpy(path + strlen(path) - 6, "XXXXXX");
	int fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, n), (ssize_t)n);
	close(fd);
}

static void setup(void)
{
	put(passwd_file, passwd_text, sizeof(passwd_text) - 1);
	put(group_file, group_text, sizeof(group_text) - 1);
	identity_set_files(passwd_file, group_file);
}

static void teardown(void)
{
	unlink(passwd_file);
	unlink(group_file);
}

static const struct row {
	const char *spec;
	int rc;
	uid_t uid;
	gid_t gid;
	const char *name, *home, *shell;
} rows[] = {
    {"root", 0, 0, 0, "root", "/root", "/bin/bash"},
    {"0", 0, 0, 0, "root", "/root", "/bin/bash"},
    {"u1", 0, 1000, 1000, "u1", "/home/u1", "/bin/dash"},
    {"1000", 0, 1000, 1000, "u1", "/home/u1", "/bin/dash"},
    {"bare", 0, 1001, 50, "bare", "/", "/bin/sh"},
    {"1002x", 0, 1002, 1002, "1002x", "/", "/bin/sh"},
    {"1234", 0, 1234, 1234, "1234", "/", "/bin/sh"},
    {"1234:5678", 0, 1234, 5678, "1234", "/", "/bin/sh"},
    {"1000:0", 0, 1000, 0, "u1", "/home/u1", "/bin/dash"},
    {"4294967294", 0, 4294967294u, 7, "last", "/", "/bin/sh"},
    {"0:0", 0, 0, 0, "root", "/root", "/bin/bash"},

    {"ghost", ENOENT, 0, 0, NULL, NULL, NULL},
    {"U1", ENOENT, 0, 0, NULL, NULL, NULL},
    {" u1", ENOENT, 0, 0, NULL, NULL, NULL},
    {"1000 ", ENOENT, 0, 0, NULL, NULL, NULL},
    {"1000x", ENOENT, 0, 0, NULL, NULL, NULL},
    {"0x0", ENOENT, 0, 0, NULL, NULL, NULL},

    {"", EINVAL, 0, 0, NULL, NULL, NULL},
    {":", EINVAL, 0, 0, NULL, NULL, NULL},
    {":0", EINVAL, 0, 0, NULL, NULL, NULL},
    {"1000:", EINVAL, 0, 0, NULL, NULL, NULL},
    {"1000:g1", EINVAL, 0, 0, NULL, NULL, NULL},
    {"1000:1:1", EINVAL, 0, 0, NULL, NULL, NULL},
    {"u1:1000", EINVAL, 0, 0, NULL, NULL, NULL},
    {"u1:g1", EINVAL, 0, 0, NULL, NULL, NULL},
    {"+1000", EINVAL, 0, 0, NULL, NULL, NULL},
    {"-1", EINVAL, 0, 0, NULL, NULL, NULL},
    {"007", EINVAL, 0, 0, NULL, NULL, NULL},
    {"00", EINVAL, 0, 0, NULL, NULL, NULL},
    {"1000:-1", EINVAL, 0, 0, NULL, NULL, NULL},
    {"1000: 1", EINVAL, 0, 0, NULL, NULL, NULL},
    {"4294967295", EINVAL, 0, 0, NULL, NULL, NULL},
    {"4294967296", EINVAL, 0, 0, NULL, NULL, NULL},
    {"1000:4294967295", EINVAL, 0, 0, NULL, NULL, NULL},
    {"18446744073709551616", EINVAL, 0, 0, NULL, NULL, NULL},
    {"a234567890123456789012345678901234567890123456789012345678901234", EINVAL, 0, 0, NULL,
     NULL, NULL},
};

START_TEST(each_spec_of_the_table)
{
	const struct row *r = &rows[_i];
	struct identity id;

	ck_assert_msg(identity_resolve(r->spec, &id) == r->rc, "'%s'", r->spec);
	if (r->rc != 0)
		return;
	ck_assert_uint_eq(id.uid, r->uid);
	ck_assert_uint_eq(id.gid, r->gid);
	ck_assert_str_eq(id.name, r->name);
	ck_assert_str_eq(id.home, r->home);
	ck_assert_str_eq(id.shell, r->shell);
	ck_assert_int_ge(id.group_count, 1);
	ck_assert_uint_eq(id.groups[0], r->gid);
}
END_TEST

START_TEST(a_user_has_the_groups_that_list_it_and_no_others)
{
	static const char *const specs[] = {"u1", "1000"};
	struct identity id;

	ck_assert_int_eq(identity_resolve(specs[_i], &id), 0);
	ck_assert_int_eq(id.group_count, 3);
	ck_assert_uint_eq(id.groups[0], 1000);
	ck_assert_uint_eq(id.groups[1], 2001);
	ck_assert_uint_eq(id.groups[2], 2002);
}
END_TEST

START_TEST(an_explicit_gid_is_the_only_group)
{
	struct identity id;

	ck_assert_int_eq(identity_resolve("1000:2004", &id), 0);
	ck_assert_int_eq(id.group_count, 1);
	ck_assert_uint_eq(id.groups[0], 2004);
}
END_TEST

START_TEST(root_exists_in_an_image_without_users)
{
	struct identity id;

	identity_set_files("/nonexistent/passwd", "/nonexistent/group");
	ck_assert_int_eq(identity_resolve("root", &id), 0);
	ck_assert_uint_eq(id.uid, 0);
	ck_assert_str_eq(id.home, "/");
	ck_assert_int_eq(identity_resolve("0", &id), 0);
	ck_assert_str_eq(id.name, "root");
	ck_assert_int_eq(identity_resolve("nobody", &id), ENOENT);
}
END_TEST

/* Whoever opens one to read waits until somebody writes. */
START_TEST(a_fifo_is_no_list_of_users)
{
	struct identity who;
	char path[64];

	snprintf(path, sizeof(path), "%s.fifo", passwd_file);
	ck_assert(mkfifo(path, 0600) == 0);
	identity_set_files(path, path);
	ck_assert_int_eq(identity_resolve("root", &who), 0);
	ck_assert_int_eq(identity_resolve("sandbox", &who), ENOENT);
	unlink(path);
}
END_TEST

/* It may lead to where nobody answers. */
START_TEST(a_link_is_no_list_of_users)
{
	struct identity who;
	char path[64];

	snprintf(path, sizeof(path), "%s.link", passwd_file);
	ck_assert_int_eq(symlink(passwd_file, path), 0);
	identity_set_files(path, path);
	ck_assert_int_eq(identity_resolve("root", &who), 0);
	ck_assert_int_eq(identity_resolve("u1", &who), ENOENT);
	unlink(path);
}
END_TEST

START_TEST(what_is_mounted_over_etc_later_lists_no_users)
{
	struct identity before, after;

	identity_set_files("passwd", "group");
	identity_get_ready();
	ck_assert_int_eq(identity_resolve("daemon", &before), 0);
	ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
	ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	ck_assert_int_eq(mount("cover", "/etc", "tmpfs", 0, NULL), 0);
	ck_assert_int_eq(identity_resolve("root", &after), 0); /* the last answer is kept */
	ck_assert_int_eq(identity_resolve("daemon", &after), 0);
	ck_assert_mem_eq(&before, &after, sizeof(before));
}
END_TEST

START_TEST(more_groups_than_fit_are_an_error_not_fewer_groups)
{
	struct identity id;
	FILE *f = fopen(group_file, "w");

	for (int i = 0; i < IDENTITY_GROUPS_MAX - 1; i++)
		fprintf(f, "x%d:x:%d:u1\n", i, 5000 + i);
	fflush(f);
	ck_assert_int_eq(identity_resolve("u1", &id), 0);
	ck_assert_int_eq(id.group_count, IDENTITY_GROUPS_MAX);
	fprintf(f, "straw:x:9999:u1\n");
	fclose(f);
	ck_assert_int_eq(identity_resolve("u1", &id), E2BIG);
}
END_TEST

START_TEST(a_home_that_does_not_fit_is_an_error)
{
	struct identity id;
	FILE *f = fopen(passwd_file, "w");

	fprintf(f, "u1:x:1000:1000::/%0300d:/bin/sh\n", 0);
	fclose(f);
	ck_assert_int_eq(identity_resolve("u1", &id), ENAMETOOLONG);
}
END_TEST

START_TEST(capability_names_make_a_mask)
{
	char *names[] = {"CAP_NET_RAW", "cap_chown"};
	uint64_t mask = 99;
	struct err e;

	ck_assert_int_eq(identity_caps(names, 2, &mask, &e), 0);
	ck_assert_uint_eq(mask, UINT64_C(1) << CAP_NET_RAW | UINT64_C(1) << CAP_CHOWN);
	ck_assert_int_eq(identity_caps(NULL, 0, &mask, &e), 0);
	ck_assert_uint_eq(mask, 0);
}
END_TEST

START_TEST(an_unknown_capability_is_refused)
{
	static char *const wrong[] = {
	    "",           "NET_RAW", "CAP_", "CAP_NOPE", "13", "cap_13", "CAP_CHOWN,CAP_KILL",
	    "CAP_CHOWN ", "=ep"};
	uint64_t mask = 99;
	struct err e = {.code = ERR_NONE};

	ck_assert_int_eq(identity_caps(&wrong[_i], 1, &mask, &e), -1);
	ck_assert_int_eq(e.code, ERR_INVALID_FIELD);
	ck_assert_str_eq(e.field, "capabilities");
	ck_assert_uint_eq(mask, 99);
}
END_TEST

int main(void)
{
	TCase *t = new_case("identity", setup, teardown);
	tcase_add_loop_test(t, each_spec_of_the_table, 0, sizeof(rows) / sizeof(rows[0]));
	tcase_add_loop_test(t, a_user_has_the_groups_that_list_it_and_no_others, 0, 2);
	tcase_add_test(t, an_explicit_gid_is_the_only_group);
	tcase_add_test(t, root_exists_in_an_image_without_users);
	tcase_add_test(t, a_fifo_is_no_list_of_users);
	tcase_add_test(t, a_link_is_no_list_of_users);
	tcase_add_test(t, what_is_mounted_over_etc_later_lists_no_users);
	tcase_add_test(t, more_groups_than_fit_are_an_error_not_fewer_groups);
	tcase_add_test(t, a_home_that_does_not_fit_is_an_error);
	tcase_add_test(t, capability_names_make_a_mask);
	tcase_add_loop_test(t, an_unknown_capability_is_refused, 0, 9);
	return run_suite("identity", t) != 0;
}
