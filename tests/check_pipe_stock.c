/* Work in idle time, and the pipes that it keeps ready. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "guest-agent/idle.h"
#include "guest-agent/pipe_stock.h"
#include "tests/suite_fixture.h"
static struct ev_loop *loop;
static struct idle *idle;

static void setup(void)
{
	loop = ev_loop_new(EVFLAG_AUTO);
	idle = idle_create(loop);
	ck_assert_ptr_nonnull(idle);
}

static void teardown(void)
{
	idle_destroy(idle);
	ev_loop_destroy(loop);
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* Until nothing is left to do: the loop then has no watcher. */
static void rest(void)
{
	ev_run(loop, 0);
}

static bool count_down(struct idle_task *t)
{
	unsigned *left = t->owner;
	if (*left == 0)
		return false;
	--*left;
	return true;
}

START_TEST(work_is_done_a_piece_a_turn_and_then_rests)
{
	unsigned left = 3;
	struct idle_task t = {.work = count_down, .owner = &left};
	idle_add(idle, &t);
	for (unsigned want = 2;; want--) {
		ev_run(loop, EVRUN_ONCE);
		ck_assert_uint_eq(left, want);
		if (want == 0)
			break;
	}
	rest();
	left = 1;
	idle_exec_ended(idle);
	rest();
	ck_assert_uint_eq(left, 0);
	idle_remove(idle, &t);
}
END_TEST

START_TEST(an_exec_that_begins_puts_the_work_off)
{
	unsigned left = 1;
	struct idle_task t = {.work = count_down, .owner = &left};
	idle_add(idle, &t);
	ev_tstamp before = ev_time();
	idle_exec_began(idle);
	rest();
	ck_assert_uint_eq(left, 0);
	ck_assert(ev_time() - before > 0.04);
	idle_remove(idle, &t);
}
END_TEST

START_TEST(a_descriptor_is_closed_when_idle_and_not_before)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	idle_close(idle, fd);
	ck_assert(is_open(fd));
	idle_exec_ended(idle);
	rest();
	ck_assert(!is_open(fd));
}
END_TEST

START_TEST(descriptors_do_not_pile_up_without_idle_time)
{
	int first = dup(0), highest = first;

	for (int i = 0; i < 100; i++) {
		int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		highest = fd > highest ? fd : highest;
		idle_close(idle, fd);
	}
	ck_assert_int_lt(highest - first, 32); /* numbers of closed ones are used again */
	close(first);
}
END_TEST

START_TEST(pipes_are_the_same_whether_in_stock_or_not)
{
	struct pipe_stock *s = pipe_stock_create(idle);
	int fds[2];

	for (int i = 0; i < 4; i++) {
		if (i == 1)
			rest(); /* the first was made at once, of the next two are in stock */
		ck_assert_int_eq(pipe_stock_take(s, fds), 0);
		ck_assert_int_eq(fcntl(fds[0], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
		ck_assert_int_eq(fcntl(fds[1], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
		ck_assert_int_eq(fcntl(fds[0], F_GETFL) & O_NONBLOCK, O_NONBLOCK);
		ck_assert_int_eq(fcntl(fds[1], F_GETFL) & O_NONBLOCK, 0);
		ck_assert_int_eq(write(fds[1], "x", 1), 1);
		char c;
		ck_assert_int_eq(read(fds[0], &c, 1), 1);
		ck_assert_int_eq(read(fds[0], &c, 1), -1);
		ck_assert_int_eq(errno, EAGAIN);
		close(fds[0]);
		close(fds[1]);
	}
	pipe_stock_destroy(s);
}
END_TEST

START_TEST(stock_that_is_not_used_is_closed)
{
	struct pipe_stock *s = pipe_stock_create(idle);
	int first = dup(0);

	close(first); /* the lowest that is free: the stock's */
	rest();
	ck_assert(is_open(first));
	pipe_stock_destroy(s);
	for (int fd = first; fd < first + 4; fd++)
		ck_assert(!is_open(fd));
}
END_TEST

int main(void)
{
	TCase *t = new_case("pipe_stock", setup, teardown);
	tcase_add_test(t, work_is_done_a_piece_a_turn_and_then_rests);
	tcase_add_test(t, an_exec_that_begins_puts_the_work_off);
	tcase_add_test(t, a_descriptor_is_closed_when_idle_and_not_before);
	tcase_add_test(t, descriptors_do_not_pile_up_without_idle_time);
	tcase_add_test(t, pipes_are_the_same_whether_in_stock_or_not);
	tcase_add_test(t, stock_that_is_not_used_is_closed);
	return run_suite("pipe_stock", t) != 0;
}
