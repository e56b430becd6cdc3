/* Work in a forked child: what it says, what it holds, and when it is given up. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest-agent/helper.h"
#include "tests/suite_fixture.h"

#define PATIENCE_S 10

static struct ev_loop *loop;
static struct helper helper;
static int status;
static int ends[2];

static void on_done(struct helper *h, int s)
{
	(void)h;
	status = s;
	ev_break(loop, EVBREAK_ALL);
}

static void setup(void)
{
	loop = ev_loop_new(EVFLAG_AUTO);
	helper_init(&helper, loop, on_done);
	status = -2;
	ck_assert(pipe(ends) == 0);
}

static int start(int (*work)(const void *arg), const void *arg, double seconds)
{
	return helper_start(&helper, work, arg, seconds);
}

static int seven(const void *arg)
{
	return *(const int *)arg;
}

static int hang(const void *arg)
{
	(void)arg;
	pause();
	return 0;
}

static int die(const void *arg)
{
	(void)arg;
	raise(SIGKILL);
	return 0;
}

START_TEST(its_word_is_told)
{
	int word = 7;
	ck_assert_int_eq(start(seven, &word, PATIENCE_S), 0);
	pid_t pid = helper.pid;
	ck_assert(helper_owns(&helper, pid));
	ev_run(loop, 0);
	ck_assert_int_eq(status, 7);
	ck_assert(!helper_owns(&helper, pid));
	ck_assert_msg(waitpid(pid, NULL, WNOHANG) < 0, "it was not reaped");
}
END_TEST

START_TEST(its_death_is_told)
{
	ck_assert_int_eq(start(die, NULL, PATIENCE_S), 0);
	ev_run(loop, 0);
	ck_assert_int_eq(status, -1);
}
END_TEST

START_TEST(it_is_killed_when_it_takes_too_long)
{
	int how;
	ck_assert_int_eq(start(hang, NULL, 0.1), 0);
	pid_t pid = helper.pid;
	ev_run(loop, 0);
	ck_assert_int_eq(status, -1);
	ck_assert(!helper_owns(&helper, pid));
	ck_assert_int_eq(waitpid(pid, &how, 0), pid); /* the reaper's part */
	ck_assert(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
}
END_TEST

START_TEST(it_holds_no_descriptor_open)
{
	char byte;
	ck_assert_int_eq(start(hang, NULL, PATIENCE_S), 0);
	close(ends[1]);
	alarm(PATIENCE_S);
	ck_assert_int_eq(read(ends[0], &byte, 1), 0); /* the end, though it lives */
	ck_assert(kill(helper.pid, 0) == 0);
	helper_stop(&helper);
	ck_assert_int_eq(status, -2);
}
END_TEST

int main(void)
{
	TCase *t = new_case("helper", setup, NULL);
	tcase_add_test(t, its_word_is_told);
	tcase_add_test(t, its_death_is_told);
	tcase_add_test(t, it_is_killed_when_it_takes_too_long);
	tcase_add_test(t, it_holds_no_descriptor_open);
	return run_suite("helper", t) != 0;
}
