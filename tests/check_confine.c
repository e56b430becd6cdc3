/* What a confined process may still ask the kernel for. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host-bridge/device/confine.h"
#include "tests/suite_fixture.h"

static char dir[] = "/tmp/check_confine.XXXXXX";

static void setup(void)
{
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
	remove_tree(dir);
}

/* How a child ends that is confined and then does `what`: its wait status. */
static int end_of(int (*what)(void))
{
	struct err e;
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		if (chdir(dir) < 0 || confine_self(65534, 65534, &e) < 0)
			_exit(99);
		_exit(what() == 0 ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return status;
}

/* As the C library does on hosts whose clock cannot be read without the kernel. */
static int read_clocks(void)
{
	struct timeval now;
	struct timespec precise;
	return syscall(SYS_gettimeofday, &now, NULL) < 0 ||
	               syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &precise) < 0
	           ? -1
	           : 0;
}

static int fork_again(void)
{
	return fork() < 0 ? -1 : 0;
}

START_TEST(clocks_can_be_read_through_the_kernel)
{
	ck_assert_int_eq(end_of(read_clocks), 0);
}
END_TEST

START_TEST(what_a_device_does_not_need_ends_it)
{
#ifdef __SANITIZE_ADDRESS__
	printf("skipped: a sanitizer's runtime calls more than can be listed\n");
#else
	int status = end_of(fork_again);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
#endif
}
END_TEST

int main(void)
{
	TCase *t = new_case("confine", setup, teardown);
	tcase_add_test(t, clocks_can_be_read_through_the_kernel);
	tcase_add_test(t, what_a_device_does_not_need_ends_it);
	return run_suite("confine", t) != 0;
}
