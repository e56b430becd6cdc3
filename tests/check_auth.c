/* Bearer tokens: who is let in, and what a change of the file does. */
#include <check.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/api/auth.h"
#include "tests/suite_fixture.h"

static struct ev_loop *loop;
static char dir[] = "/tmp/check_auth.XXXXXX";
static char path[64];

static void line(FILE *f, const char *id, const char *workspace, const char *role,
                 const char *token)
{
	unsigned char hash[32];
	char hex[65];
	crypto_generichash(hash, 32, (const unsigned char *)token, strlen(token), NULL, 0);
	sodium_bin2hex(hex, sizeof(hex), hash, sizeof(hash));
	fprintf(f, "%s %s %s %s\n", id, workspace, role, hex);
}

/* As an operator does: a whole new file, renamed into place. */
static void replace(const char *id, const char *workspace, const char *role, const char *token)
{
	char fresh[80];
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	FILE *f = fopen(fresh, "w");
	ck_assert_ptr_nonnull(f);
	fputs("# tokens\n\n", f);
	line(f, id, workspace, role, token);
	fclose(f);
	ck_assert_int_eq(rename(fresh, path), 0);
}

static void setup(void)
{
	ck_assert_int_ge(sodium_init(), 0);
	strcpy(dir, "/tmp/check_auth.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/tokens", dir);
	loop = ev_loop_new(0);
}

static void teardown(void)
{
	ev_loop_destroy(loop);
	unlink(path);
	rmdir(dir);
}

static void refused(const struct auth *a, const char *header, enum err_code code)
{
	struct auth_identity who;
	struct err e = {0};
	ck_assert_int_lt(auth_check(a, header, &who, &e), 0);
	ck_assert_int_eq(e.code, code);
}

START_TEST(the_environments_token_is_an_admin)
{
	struct auth_identity who;
	struct err e;
	struct auth *a = auth_create(loop, "", "secret", &e);
	ck_assert_int_eq(auth_check(a, "Bearer secret", &who, &e), 0);
	ck_assert(who.admin);
	ck_assert_str_eq(who.workspace, "default");
	ck_assert_int_eq(auth_check(a, "bearer  secret", &who, &e), 0);
	refused(a, NULL, ERR_MISSING_TOKEN);
	refused(a, "", ERR_INVALID_TOKEN);
	refused(a, "Bearer", ERR_INVALID_TOKEN);
	refused(a, "Bearer ", ERR_INVALID_TOKEN);
	refused(a, "Bearer secret2", ERR_INVALID_TOKEN);
	refused(a, "Basic secret", ERR_INVALID_TOKEN);
	auth_destroy(a);
}
END_TEST

START_TEST(without_any_token_nothing_starts)
{
	struct err e;
	ck_assert_ptr_null(auth_create(loop, "", "", &e));
	ck_assert_ptr_null(auth_create(loop, "/nonexistent/tokens", "", &e));
}
END_TEST

START_TEST(a_line_names_workspace_and_role)
{
	struct auth_identity who;
	struct err e;
	replace("ci", "blue", "member", "t1");
	struct auth *a = auth_create(loop, path, "", &e);
	ck_assert_ptr_nonnull(a);
	ck_assert_int_eq(auth_check(a, "Bearer t1", &who, &e), 0);
	ck_assert(!who.admin);
	ck_assert_str_eq(who.workspace, "blue");
	ck_assert_str_eq(who.token_id, "ci");
	auth_destroy(a);
}
END_TEST

START_TEST(a_file_with_a_bad_line_is_refused)
{
	static const char *const bad[] = {"ci blue member zz\n", "ci blue\n",
	                                  "ci blue owner "
	                                  "00000000000000000000000000000000"
	                                  "00000000000000000000000000000000\n"};
	struct err e;
	FILE *f = fopen(path, "w");
	fputs(bad[_i], f);
	fclose(f);
	ck_assert_ptr_null(auth_create(loop, path, "", &e));
}
END_TEST

static void until(const struct auth *a, const char *header, bool accepted)
{
	struct auth_identity who;
	struct err e;
	while ((auth_check(a, header, &who, &e) == 0) != accepted)
		ev_run(loop, EVRUN_ONCE);
}

START_TEST(a_changed_file_is_read_again)
{
	struct err e;
	replace("ci", "blue", "member", "t1");
	struct auth *a = auth_create(loop, path, "", &e);
	replace("ci", "blue", "member", "t2");
	until(a, "Bearer t2", true);
	refused(a, "Bearer t1", ERR_INVALID_TOKEN);
	auth_destroy(a);
}
END_TEST

static void on_seen(struct ev_loop *l, ev_stat *w, int revents)
{
	(void)w;
	(void)revents;
	ev_break(l, EVBREAK_ONE); /* once this turn's callbacks are done, auth's among them */
}

START_TEST(a_file_that_is_broken_or_gone_leaves_the_former_in_force)
{
	struct err e;
	struct auth_identity who;
	ev_stat seen;
	replace("ci", "blue", "member", "t1");
	FILE *f = fopen(path, "a");
	fputs("limits blue execs=3\n", f);
	fclose(f);
	struct auth *a = auth_create(loop, path, "", &e);
	ck_assert_ptr_nonnull(a);
	ev_stat_init(&seen, on_seen, path, 0.);
	ev_stat_start(loop, &seen);
	if (_i == 0) {
		f = fopen(path, "a");
		fputs("limits green execs=many\n", f);
		fclose(f);
	} else {
		unlink(path);
	}
	ev_run(loop, 0);
	ev_stat_stop(loop, &seen);
	ck_assert_int_eq(auth_check(a, "Bearer t1", &who, &e), 0);
	ck_assert(auth_limits(a, "blue")->max[LIMIT_EXECS] == 3);
	ck_assert(auth_limits(a, "green")->max[LIMIT_EXECS] == LIMIT_NONE);
	auth_destroy(a);
}
END_TEST

START_TEST(a_file_behind_a_link_is_read_again)
{
	struct err e;
	char link[96];
	snprintf(link, sizeof(link), "%s/link", dir);
	ck_assert_int_eq(symlink("tokens", link), 0);
	replace("ci", "blue", "member", "t1");
	struct auth *a = auth_create(loop, link, "", &e);
	replace("ci", "blue", "member", "t2");
	until(a, "Bearer t2", true);
	auth_destroy(a);
	unlink(link);
}
END_TEST

int main(void)
{
	TCase *t = new_case("auth", setup, teardown);
	tcase_add_test(t, the_environments_token_is_an_admin);
	tcase_add_test(t, without_any_token_nothing_starts);
	tcase_add_test(t, a_line_names_workspace_and_role);
	tcase_add_loop_test(t, a_file_with_a_bad_line_is_refused, 0, 3);
	tcase_add_test(t, a_changed_file_is_read_again);
	tcase_add_loop_test(t, a_file_that_is_broken_or_gone_leaves_the_former_in_force, 0, 2);
	tcase_add_test(t, a_file_behind_a_link_is_read_again);
	return run_suite("auth", t) != 0;
}
