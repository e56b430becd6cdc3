/* The agent's settings: where they come from, which of them wins, and what is refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest-agent/config.h"
#include "tests/suite_fixture.h"

static struct config c;
static struct err e;

static void setup(void)
{
	config_init(&c);
}

static void teardown(void)
{
	config_free(&c);
}

static void write_file(char *path, const char *text)
{
	int fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

START_TEST(a_file_sets_what_it_names)
{
	char path[] = "/tmp/sandgate-config-XXXXXX";
	write_file(path, "# comment\n\nport = 700\n  user=app \nenv = A=b=c\nallow-cid = 1\n");
	ck_assert_int_eq(config_read_file(&c, path, true, &e), 0);
	ck_assert_uint_eq(c.port, 700);
	ck_assert_str_eq(c.user, "app");
	ck_assert_str_eq(c.env[0], "A=b=c");
	ck_assert_uint_eq(c.cids[0], 1);
	unlink(path);
}
END_TEST

START_TEST(a_fault_names_file_line_and_setting)
{
	char path[] = "/tmp/sandgate-config-XXXXXX";
	write_file(path, "port = 1\nport = -1\n");
	ck_assert_int_eq(config_read_file(&c, path, true, &e), -1);
	ck_assert_str_eq(e.field, "port");
	ck_assert(strstr(e.msg, ":2: port") != NULL);
	unlink(path);
	ck_assert_int_eq(config_read_file(&c, "/nonexistent", false, &e), 0);
	ck_assert_int_eq(config_read_file(&c, "/nonexistent", true, &e), -1);
}
END_TEST

START_TEST(a_kernel_line_is_read_and_the_rest_of_it_skipped)
{
	log_setup(LOG_ERROR, false);
	ck_assert_int_eq(config_read_cmdline(&c,
	                                     "quiet root=/dev/vda sandgate.port=9 "
	                                     "sandgate.other=1 sandgate.env=X=1 port=3\n",
	                                     &e),
	                 0);
	ck_assert_uint_eq(c.port, 9);
	ck_assert_uint_eq(c.env_count, 1);
	ck_assert_int_eq(config_read_cmdline(&c, "sandgate.port=none", &e), -1);
}
END_TEST

START_TEST(values_are_judged)
{
	ck_assert_int_eq(config_set(&c, "port", "5x", &e), -1);
	ck_assert_int_eq(config_set(&c, "port", "", &e), -1);
	ck_assert_int_eq(config_set(&c, "log-level", "loud", &e), -1);
	ck_assert_int_eq(config_set(&c, "env", "=x", &e), -1);
	ck_assert_int_eq(config_set(&c, "no-new-privs", "true", &e), -1);
	ck_assert_int_eq(config_set(&c, "capabilities", "CAP_NO_SUCH", &e), -1);
	ck_assert_int_eq(config_set(&c, "nothing", "1", &e), -1);
	ck_assert_int_eq(config_set(&c, "capabilities", "CAP_CHOWN,CAP_KILL", &e), 0);
	ck_assert(c.narrow_caps);
	ck_assert_uint_eq(c.caps, 1u << 0 | 1u << 5);
}
END_TEST

START_TEST(flags_win_and_a_readable_token_is_refused)
{
	char conf[] = "/tmp/sandgate-config-XXXXXX", token[] = "/tmp/sandgate-token-XXXXXX";
	write_file(conf, "port = 700\n");
	write_file(token, "secret\n");
	char *argv[] = {"guest-agent", "--config",     conf,  "--port",
	                "8",           "--token-file", token, NULL};
	ck_assert_int_eq(config_load(&c, 7, argv, &e), 0);
	ck_assert_uint_eq(c.port, 8);
	ck_assert_uint_eq(c.token_len, 6);
	config_free(&c);
	ck_assert_int_eq(chmod(token, 0644), 0);
	ck_assert_int_eq(config_load(&c, 7, argv, &e), -1);
	ck_assert_str_eq(e.field, "token-file");
	unlink(conf);
	unlink(token);
}
END_TEST

int main(void)
{
	TCase *t = new_case("config", setup, teardown);
	tcase_add_test(t, a_file_sets_what_it_names);
	tcase_add_test(t, a_fault_names_file_line_and_setting);
	tcase_add_test(t, a_kernel_line_is_read_and_the_rest_of_it_skipped);
	tcase_add_test(t, values_are_judged);
	tcase_add_test(t, flags_win_and_a_readable_token_is_refused);
	return run_suite("config", t) != 0;
}
