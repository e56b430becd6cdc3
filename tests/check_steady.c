/* A deadline does not pass while the process stands still, whatever it stands still in. */
#include <signal.h>
#include <sys/wait.h>

#include "host-bridge/steady.h"
#include "proto/limits.h"
#include "proto/log.h"
#include "tests/suite_fixture.h"

#define DEADLINE_S (STALL_S + 0.5) /* the process stands still for longer */
#define STILL_S (STALL_S + 1)

static int answer[2];
static bool read_in_time, late;

static void on_answer(struct ev_loop *loop, ev_io *w, int revents)
{
	(void)w;
	(void)revents;
	read_in_time = !late;
	ev_break(loop, EVBREAK_ALL);
}

static void on_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)w;
	(void)revents;
	late = true;
	ev_break(loop, EVBREAK_ALL);
}

static void answer_and_wait(void)
{
	ck_assert_int_eq(write(answer[1], "x", 1), 1);
	sleep(STILL_S);
}

static void on_hold(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)w;
	(void)revents;
	answer_and_wait();
}

/* Run a loop that waits for an answer, up to its deadline, and is held up by `hold` s after
 * the start in a callback of its own, or never. */
static void wait_for_answer(double hold)
{
	struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
	struct steady steady;
	ev_io io;
	ev_timer deadline, held;
	log_setup(LOG_ERROR, false);
	steady_watch(&steady, loop);
	ev_io_init(&io, on_answer, answer[0], EV_READ);
	ev_timer_init(&deadline, on_deadline, DEADLINE_S, 0.);
	ev_timer_init(&held, on_hold, hold, 0.);
	ev_io_start(loop, &io);
	ev_timer_start(loop, &deadline);
	if (hold > 0)
		ev_timer_start(loop, &held);
	ev_run(loop, 0);
	ev_io_stop(loop, &io);
	ev_timer_stop(loop, &deadline);
	ev_loop_destroy(loop);
}

static void setup(void)
{
	ck_assert_int_eq(pipe(answer), 0);
}

static void teardown(void)
{
	close(answer[0]);
	close(answer[1]);
}

START_TEST(an_answer_that_came_while_a_callback_was_held_up_is_in_time)
{
	wait_for_answer(0.01);
	ck_assert(read_in_time);
}
END_TEST

/* It sleeps: in its loop, for it does so nowhere else. */
static void await_sleep(pid_t pid)
{
	char path[64], state = 'R';
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	while (state != 'S') {
		FILE *f = fopen(path, "r");
		ck_assert_ptr_nonnull(f);
		ck_assert_int_eq(fscanf(f, "%*d %*s %c", &state), 1);
		fclose(f);
	}
}

START_TEST(an_answer_that_came_while_the_process_was_stopped_is_in_time)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		wait_for_answer(0);
		_exit(read_in_time ? 0 : 1);
	}
	await_sleep(pid);
	kill(pid, SIGSTOP);
	ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
	answer_and_wait();
	kill(pid, SIGCONT);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

START_TEST(a_deadline_passes_and_a_loop_ends_all_the_same)
{
	struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
	struct steady steady;
	ev_timer deadline;
	steady_watch(&steady, loop);
	ev_timer_init(&deadline, on_deadline, 0.01, 0.);
	ev_timer_start(loop, &deadline);
	ev_run(loop, 0);
	ck_assert(late);
	ev_run(loop, 0); /* nothing is left to wait for */
	ev_loop_destroy(loop);
}
END_TEST

int main(void)
{
	TCase *t = new_case("steady", setup, teardown);
	tcase_add_test(t, an_answer_that_came_while_a_callback_was_held_up_is_in_time);
	tcase_add_test(t, an_answer_that_came_while_the_process_was_stopped_is_in_time);
	tcase_add_test(t, a_deadline_passes_and_a_loop_ends_all_the_same);
	return run_suite("steady", t);
}
