/* The token file: what a line may be, and how the file is changed. */
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host-bridge/api/tokens_edit.h"
#include "tests/suite_fixture.h"

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"

static char dir[64], path[96];

static void setup(void)
{
	ck_assert_int_ge(sodium_init(), 0);
	strcpy(dir, "/tmp/check_tokens.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/tokens", dir);
}

static void teardown(void)
{
	remove_tree(dir);
}

static void write_file(const char *text)
{
	FILE *f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

static const char *read_file(void)
{
	static char text[4096];
	FILE *f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	fclose(f);
	return text;
}

static int add(const char *id, struct err *e)
{
	struct token t = {.workspace = "blue", .created = "2025-01-01T00:00:00Z"};
	snprintf(t.id, sizeof(t.id), "%s", id);
	tokens_hash(id, t.hash);
	return tokens_edit(path, &(struct tokens_change){.add = &t}, e);
}

static int take_out(const char *id, struct err *e)
{
	return tokens_edit(path, &(struct tokens_change){.revoke = id}, e);
}

static int limit(const char *workspace, enum tokens_limit which, uint64_t max)
{
	struct err e;
	struct workspace_limits l;
	snprintf(l.workspace, sizeof(l.workspace), "%s", workspace);
	struct tokens_change c = {.limits = &l};
	l.max[which] = max;
	c.set[which] = true;
	return tokens_edit(path, &c, &e);
}

/* ---- lines ---- */

START_TEST(a_line_that_is_not_valid_is_refused)
{
	static const char *const bad[] = {
	    "ci blue member",
	    "ci blue owner " ZEROS,
	    "ci blue member 00" ZEROS,
	    "ci blue member " ZEROS " 2025-01-01T00:00:00Z more",
	    "limits",
	    "limits blue execs",
	    "limits blue execs=",
	    "limits blue execs=-1",
	    "limits blue execs=1x",
	    "limits blue execs=1 execs=2",
	    "limits blue execs=4294967296",
	    "limits blue sandbox=1",
	    "limits blue execs=1\nlimits blue vcpus=2",
	};
	struct err e;
	struct tokens t;
	ck_assert_int_lt(_i, (int)(sizeof(bad) / sizeof(bad[0])));
	write_file(bad[_i]);
	ck_assert_int_lt(tokens_load(path, &t, &e), 0);
	ck_assert_int_eq(e.code, ERR_INTERNAL);
}
END_TEST

START_TEST(limits_are_those_of_the_workspaces_line)
{
	struct err e;
	struct tokens t;
	write_file(
	    "# one\n\nlimits blue execs=3 vcpus=0\n  limits green sandboxes=4294967295\n");
	ck_assert_int_eq(tokens_load(path, &t, &e), 0);
	ck_assert(tokens_limits(&t, "blue")->max[LIMIT_EXECS] == 3);
	ck_assert(tokens_limits(&t, "blue")->max[LIMIT_VCPUS] == 0);
	ck_assert(tokens_limits(&t, "blue")->max[LIMIT_SANDBOXES] == LIMIT_NONE);
	ck_assert(tokens_limits(&t, "green")->max[LIMIT_SANDBOXES] == UINT32_MAX);
	ck_assert(tokens_limits(&t, "grey")->max[LIMIT_EXECS] == LIMIT_NONE);
	tokens_free(&t);
}
END_TEST

/* ---- changes ---- */

START_TEST(what_is_added_is_read_back)
{
	struct err e;
	struct tokens t;
	struct stat st;
	unsigned char hash[TOKENS_HASH_BYTES];
	ck_assert_int_eq(add("ci", &e), 0);
	ck_assert_int_eq(add("cd", &e), 0);
	ck_assert_int_eq(tokens_load(path, &t, &e), 0);
	ck_assert_uint_eq(t.count, 2);
	ck_assert_str_eq(t.tokens[0].id, "ci");
	ck_assert_str_eq(t.tokens[0].workspace, "blue");
	ck_assert_str_eq(t.tokens[0].created, "2025-01-01T00:00:00Z");
	tokens_hash("ci", hash);
	ck_assert_mem_eq(t.tokens[0].hash, hash, sizeof(hash));
	tokens_free(&t);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0600);
}
END_TEST

START_TEST(an_id_is_given_once)
{
	struct err e;
	ck_assert_int_eq(add("ci", &e), 0);
	ck_assert_int_lt(add("ci", &e), 0);
	ck_assert_int_eq(e.code, ERR_INVALID_STATE);
}
END_TEST

START_TEST(a_change_leaves_the_other_lines_as_they_are)
{
	struct err e;
	write_file("# ours\nci blue member " ZEROS "\n\nlimits blue execs=1\n"
	           "  cd  green  admin " ZEROS);
	ck_assert_int_eq(take_out("ci", &e), 0);
	ck_assert_str_eq(read_file(),
	                 "# ours\n\nlimits blue execs=1\n  cd  green  admin " ZEROS "\n");
	ck_assert_int_lt(take_out("ci", &e), 0);
	ck_assert_int_eq(e.code, ERR_FILE_NOT_FOUND);
	ck_assert_str_eq(e.msg, "there is no token ci");
}
END_TEST

START_TEST(a_limit_changes_alone)
{
	write_file("limits green vcpus=1\nlimits blue execs=1 vcpus=2\n");
	ck_assert_int_eq(limit("blue", LIMIT_EXECS, 5), 0);
	ck_assert_str_eq(read_file(), "limits green vcpus=1\nlimits blue vcpus=2 execs=5\n");
	ck_assert_int_eq(limit("blue", LIMIT_EXECS, LIMIT_NONE), 0);
	ck_assert_int_eq(limit("green", LIMIT_VCPUS, LIMIT_NONE), 0);
	ck_assert_str_eq(read_file(), "limits blue vcpus=2\n");
}
END_TEST

START_TEST(a_file_that_is_not_valid_is_not_touched)
{
	struct err e;
	write_file("rubbish\n");
	ck_assert_int_lt(add("ci", &e), 0);
	ck_assert(strncmp(e.msg, path, strlen(path)) == 0 && strstr(e.msg, ":1 ") != NULL);
	ck_assert(strstr(e.msg, "member|admin") != NULL); /* what it should be */
	ck_assert_str_eq(read_file(), "rubbish\n");
}
END_TEST

START_TEST(the_file_keeps_its_owner_but_grants_others_nothing)
{
	struct err e;
	struct stat st;
	write_file("");
	ck_assert_int_eq(chmod(path, 0644), 0);
	bool root = geteuid() == 0;
	ck_assert_int_eq(root ? chown(path, 65534, 65534) : 0, 0);
	ck_assert_int_eq(add("ci", &e), 0);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 07777, 0640);
	ck_assert_uint_eq(st.st_uid, root ? 65534 : geteuid());
}
END_TEST

START_TEST(what_a_link_names_is_changed_not_the_link)
{
	struct err e;
	struct stat st;
	char link[128];
	write_file("");
	snprintf(link, sizeof(link), "%s/link", dir);
	ck_assert_int_eq(symlink("tokens", link), 0);
	struct tokens_change c = {.add = &(struct token){.id = "ci", .workspace = "blue"}};
	ck_assert_int_eq(tokens_edit(link, &c, &e), 0);
	ck_assert_int_eq(lstat(link, &st), 0);
	ck_assert(S_ISLNK(st.st_mode));
	ck_assert(strstr(read_file(), "ci blue") != NULL);
}
END_TEST

START_TEST(changes_at_once_are_all_made)
{
	enum { WRITERS = 4, EACH = 10 };
	struct err e;
	struct tokens t;
	for (int w = 0; w < WRITERS; w++) {
		pid_t pid = fork();
		ck_assert_int_ge(pid, 0);
		for (int i = 0; pid == 0 && i < EACH; i++) {
			char id[32];
			snprintf(id, sizeof(id), "t%d-%d", w, i);
			if (add(id, &e) < 0)
				_exit(1);
		}
		if (pid == 0)
			_exit(0);
	}
	for (int w = 0, status; w < WRITERS; w++) {
		ck_assert_int_gt(wait(&status), 0);
		ck_assert_int_eq(status, 0);
	}
	ck_assert_int_eq(tokens_load(path, &t, &e), 0);
	ck_assert_uint_eq(t.count, WRITERS * EACH);
	tokens_free(&t);
}
END_TEST

int main(void)
{
	TCase *t = new_case("tokens", setup, teardown);
	tcase_add_loop_test(t, a_line_that_is_not_valid_is_refused, 0, 13);
	tcase_add_test(t, limits_are_those_of_the_workspaces_line);
	tcase_add_test(t, what_is_added_is_read_back);
	tcase_add_test(t, an_id_is_given_once);
	tcase_add_test(t, a_change_leaves_the_other_lines_as_they_are);
	tcase_add_test(t, a_limit_changes_alone);
	tcase_add_test(t, a_file_that_is_not_valid_is_not_touched);
	tcase_add_test(t, the_file_keeps_its_owner_but_grants_others_nothing);
	tcase_add_test(t, what_a_link_names_is_changed_not_the_link);
	tcase_add_test(t, changes_at_once_are_all_made);
	return run_suite("tokens", t) != 0;
}
