/* PID 1: whose children are reaped, and what only init does. */
#include <check.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/init.h"
#include "guest-agent/init_private.h"
#include "tests/suite_fixture.h"

static struct ev_loop *loop;
static pid_t ours;

static bool is_ours(pid_t pid, void *arg)
{
	(void)arg;
	return pid == ours;
}

static void setup(void)
{
	ours = 0;
	loop = ev_loop_new(EVFLAG_AUTO);
	ck_assert_int_eq(init_reap_start(loop, is_ours, NULL, NULL), 0);
}

static void teardown(void)
{
	ev_loop_destroy(loop);
}

/* A child that exits with `code` when the test says so, by closing the returned end. */
static pid_t start_child(int code, int *release)
{
	int fds[2];
	char c;

	ck_assert_int_eq(pipe(fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		close(fds[1]);
		_exit(read(fds[0], &c, 1) == 0 ? code : 99);
	}
	close(fds[0]);
	*release = fds[1];
	return pid;
}

static bool exists(pid_t pid)
{
	return kill(pid, 0) == 0;
}

static void wait_zombie(pid_t pid)
{
	siginfo_t si;
	ck_assert_int_eq(waitid(P_PID, (id_t)pid, &si, WEXITED | WNOWAIT), 0);
}

static void turn_until_reaped(pid_t pid)
{
	while (exists(pid))
		ev_run(loop, EVRUN_ONCE);
}

START_TEST(a_child_that_is_nobodys_is_reaped)
{
	int release;
	pid_t pid = start_child(7, &release);

	close(release);
	turn_until_reaped(pid);
	ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), -1);
}
END_TEST

START_TEST(a_child_that_is_ours_keeps_its_status)
{
	int release, status;

	ours = start_child(7, &release);
	close(release);
	wait_zombie(ours);
	ev_run(loop, EVRUN_ONCE);
	ev_run(loop, EVRUN_ONCE);
	ck_assert_int_eq(waitpid(ours, &status, 0), ours);
	ck_assert_int_eq(WEXITSTATUS(status), 7);
}
END_TEST

START_TEST(an_orphan_behind_ours_is_reaped_when_ours_is)
{
	int release, orphan_release, status;

	ours = start_child(7, &release);
	pid_t orphan = start_child(0, &orphan_release);
	close(release);
	close(orphan_release);
	wait_zombie(ours);
	wait_zombie(orphan);
	ev_run(loop, EVRUN_ONCE);
	ck_assert_int_eq(waitpid(ours, &status, 0), ours);
	ck_assert_int_eq(WEXITSTATUS(status), 7);
	turn_until_reaped(orphan);
}
END_TEST

START_TEST(a_grandchild_without_parent_comes_to_us)
{
	int fds[2];
	pid_t grandchild;

	ck_assert_int_eq(pipe(fds), 0);
	pid_t child = fork();
	if (child == 0) {
		pid_t pid = fork();
		if (pid == 0)
			pause();
		_exit(write(fds[1], &pid, sizeof(pid)) == sizeof(pid) ? 0 : 1);
	}
	ck_assert_int_eq(read(fds[0], &grandchild, sizeof(grandchild)), sizeof(grandchild));
	turn_until_reaped(child);
	ck_assert(exists(grandchild));
	kill(grandchild, SIGKILL);
	turn_until_reaped(grandchild);
	close(fds[0]);
	close(fds[1]);
}
END_TEST

START_TEST(many_orphans_at_once_are_all_reaped)
{
	enum { MANY = 300 };
	pid_t pids[MANY];
	int release;

	for (int i = 0; i < MANY; i++) {
		pids[i] = start_child(0, &release);
		close(release);
	}
	for (int i = 0; i < MANY; i++)
		turn_until_reaped(pids[i]);
}
END_TEST

START_TEST(powering_off_is_for_init_only)
{
	init_power_off(); /* returns, and the machine goes on */
	ck_assert_int_ne(getpid(), 1);
}
END_TEST

/* ---- what the kernel was told ---- */

/* In a namespace of this process, as all of a test that needs it. */
static void tell_kernel(const char *words)
{
	char path[] = "/tmp/check-init-XXXXXX";
	int fd = mkstemp(path);

	ck_assert_int_eq(write(fd, words, strlen(words)), (int)strlen(words));
	close(fd);
	ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
	ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	ck_assert_int_eq(mount(path, "/proc/cmdline", NULL, MS_BIND, NULL), 0);
	unlink(path);
}

START_TEST(the_last_word_of_a_name_counts)
{
	char value[16] = "as it was";

	tell_kernel("console=ttyS0 sandgate.root=/dev/a quiet xsandgate.disk=/dev/x"
	            " sandgate.root=/dev/b sandgate.token\n");
	ck_assert(!init_word("sandgate.disk=", value, sizeof(value)));
	ck_assert(!init_word("sandgate.token=", value, sizeof(value)));
	ck_assert_str_eq(value, "as it was");
	ck_assert(init_word("sandgate.root=", value, sizeof(value)));
	ck_assert_str_eq(value, "/dev/b");
	ck_assert(init_word("sandgate.root=", value, 4));
	ck_assert_str_eq(value, "/de");
}
END_TEST

START_TEST(a_root_that_can_be_written_to_stays_as_it_is)
{
	struct stat before, after;

	tell_kernel("quiet\n");
	ck_assert_int_eq(stat("/", &before), 0);
	ck_assert_int_eq(init_root(), 0);
	ck_assert_int_eq(stat("/", &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
	ck_assert_uint_eq(before.st_dev, after.st_dev);
	ck_assert_uint_eq(init_disks()[0], 0);
	ck_assert_uint_eq(init_disks()[1], 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("init", setup, teardown);
	tcase_add_test(t, a_child_that_is_nobodys_is_reaped);
	tcase_add_test(t, a_child_that_is_ours_keeps_its_status);
	tcase_add_test(t, an_orphan_behind_ours_is_reaped_when_ours_is);
	tcase_add_test(t, a_grandchild_without_parent_comes_to_us);
	tcase_add_test(t, many_orphans_at_once_are_all_reaped);
	tcase_add_test(t, powering_off_is_for_init_only);
	TCase *told = new_case("told", NULL, NULL);
	if (geteuid() == 0) {
		tcase_add_test(told, the_last_word_of_a_name_counts);
		tcase_add_test(told, a_root_that_can_be_written_to_stays_as_it_is);
	}
	return run_suite("init", t, told) != 0;
}
