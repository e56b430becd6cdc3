/* Listening sockets: their names, and what may stand in the way of one. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host-bridge/sockets.h"
#include "tests/suite_fixture.h"

static struct settings settings;
static int fds[SOCKETS_MAX];
static char name[128];

static int open_at(const char *address, struct err *e)
{
	int inherited;
	memset(&settings, 0, sizeof(settings));
	snprintf(settings.listen[0], sizeof(settings.listen[0]), "%s", address);
	settings.listen_count = 1;
	return sockets_open(&settings, fds, &inherited, e);
}

START_TEST(the_name_has_the_port_that_the_kernel_chose)
{
	static const char *const cases[][2] = {{"127.0.0.1:0", "127.0.0.1:"},
	                                       {"[::1]:0", "[::1]:"}};
	struct err e;
	if (open_at(cases[_i][0], &e) < 0)
		return; /* a machine without IPv6 */
	sockets_name(fds[0], name, sizeof(name));
	size_t n = strlen(cases[_i][1]);
	ck_assert_mem_eq(name, cases[_i][1], n);
	ck_assert_int_gt(atoi(name + n), 0);
	close(fds[0]);
}
END_TEST

START_TEST(a_dead_socket_is_replaced_and_a_living_one_is_not)
{
	char dir[] = "/tmp/check_sockets.XXXXXX", address[64];
	struct err e;
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(address, sizeof(address), "unix:%s/s", dir);
	ck_assert_int_eq(open_at(address, &e), 1);
	int first = fds[0];
	sockets_name(fds[0], name, sizeof(name));
	ck_assert_str_eq(name, address);
	ck_assert_int_lt(open_at(address, &e), 0);
	ck_assert_int_eq(e.code, ERR_INVALID_STATE);
	close(first);
	ck_assert_int_eq(open_at(address, &e), 1);
	close(fds[0]);
	unlink(address + 5);
	rmdir(dir);
}
END_TEST

int main(void)
{
	TCase *t = new_case("sockets", NULL, NULL);
	tcase_add_loop_test(t, the_name_has_the_port_that_the_kernel_chose, 0, 2);
	tcase_add_test(t, a_dead_socket_is_replaced_and_a_living_one_is_not);
	return run_suite("sockets", t) != 0;
}
