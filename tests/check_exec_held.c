/* Processes that hold what the agent wants of them, for as long as they like: the lock of a
 * pipe, a leader's end. Nobody but their own exec waits. The test's program is the process,
 * too: see main. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>

#include "tests/agent_fixture.h"

#define DEAD_S 60

/* ---- what runs in the exec ---- */

/* splice(2) from a socket on which nothing comes holds the lock of the pipe that it fills. */
static void hold_output(void)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0)
		splice(ends[0], NULL, STDOUT_FILENO, NULL, 100, 0);
}

/* …and into a socket that is full that of the pipe that it empties. */
static void hold_input(void)
{
	char data[4096] = "";
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
		return;
	while (send(ends[0], data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	while (send(ends[0], data, 1, MSG_DONTWAIT) > 0)
		;
	splice(STDIN_FILENO, NULL, ends[0], NULL, 100, 0);
}

static bool sleeps(pid_t pid)
{
	char path[32], state = 0;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	FILE *f = fopen(path, "re");
	if (f == NULL || fscanf(f, "%*d %*s %c", &state) != 1)
		exit(99);
	fclose(f);
	return state == 'S';
}

/* Print, and end while a child holds stdout. */
static int leave_holder(void)
{
	int held = 1;
	pid_t child;

	printf("printed\n");
	fflush(stdout);
	while (held > 0)
		ioctl(STDOUT_FILENO, FIONREAD, &held);
	if ((child = fork()) == 0) {
		alarm(DEAD_S);
		hold_output();
		_exit(0);
	}
	while (!sleeps(child))
		;
	fprintf(stderr, "%d", (int)child);
	return 3;
}

/* A child traces its parent, which ends: only the tracer is told. */
static int leave_tracer(void)
{
	int ready[2];
	char byte;

	if (pipe(ready) != 0)
		return 99;
	if (fork() == 0) {
		if (ptrace(PTRACE_SEIZE, getppid(), NULL, NULL) == 0 &&
		    write(ready[1], "", 1) == 1)
			sleep(DEAD_S);
		_exit(0);
	}
	close(ready[1]);
	return read(ready[0], &byte, 1) == 1 ? 3 : 99;
}

static int hold(const char *what)
{
	alarm(DEAD_S);
	if (strcmp(what, "leave") == 0)
		return leave_holder();
	if (strcmp(what, "trace") == 0)
		return leave_tracer();
	if (strcmp(what, "input") == 0)
		hold_input();
	if (write(STDOUT_FILENO, "printed\n", 8) == 8)
		hold_output();
	return 0;
}

/* ---- the tests ---- */

static Sandgate__Exec holder(const char *what)
{
	static ProtobufCBinaryData argv[2];
	Sandgate__Exec m = exec_message("x", "");
	argv[0] = BYTES("/proc/self/exe");
	argv[1] = (ProtobufCBinaryData){strlen(what), (uint8_t *)what};
	m.n_argv = 2;
	m.argv = argv;
	return m;
}

static void others_are_served(void)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	host_ask_only(SANDGATE__OPEN__OP_PING, &ping, SANDGATE__GUEST_FRAME__BODY_PONG);
	Sandgate__Exec m = exec_message("other", "echo out; sleep 0.1; echo err >&2");
	struct transcript t = host_run(&m);
	ck_assert_str_eq(t.out[0], "out\n");
	ck_assert_str_eq(t.out[1], "err\n");
	transcript_free(&t);
}

START_TEST(a_held_output_pipe_holds_nobody_up_but_its_own)
{
	Sandgate__Exec m = holder("output");
	m.timeout_ms = 500;
	struct host *h = host_start(&m);
	others_are_served();
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	ck_assert_str_eq(t.out[0], "printed\n");
	transcript_free(&t);
}
END_TEST

START_TEST(a_leftover_that_holds_the_pipe_does_not_hold_the_result)
{
	Sandgate__Exec m = holder("leave");
	struct transcript t = host_run(&m);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_int_eq(t.result->exit_code, 3);
	ck_assert_str_eq(t.out[0], "printed\n");
	others_are_served();
	kill((pid_t)atoi(t.out[1]), SIGKILL);
	transcript_free(&t);
}
END_TEST

START_TEST(a_held_input_pipe_holds_nobody_up_but_its_own)
{
	Sandgate__Exec m = holder("input");
	m.stdin_open = true;
	m.timeout_ms = 1000;
	struct host *h = host_start(&m);
	for (int i = 0; i < 3; i++) {
		host_send_stdin(h, "input", NULL);
		turn_for(0.1);
	}
	others_are_served();
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	transcript_free(&t);
}
END_TEST

START_TEST(a_leader_whose_tracer_keeps_it_is_awaited_at_rest)
{
	Sandgate__Exec m = holder("trace");
	m.timeout_ms = 500;
	struct host *h = host_start(&m);
	unsigned before = ev_iteration(fixture_loop());
	struct transcript t = host_finish(h, 0);
	ck_assert_uint_lt(ev_iteration(fixture_loop()) - before, 500);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	ck_assert(!t.result->cleanup_pending);
	transcript_free(&t);
}
END_TEST

int main(int argc, char **argv)
{
	if (argc > 1)
		return hold(argv[1]);
	TCase *t = new_case("exec_held", fixture_setup, NULL);
	tcase_add_test(t, a_held_output_pipe_holds_nobody_up_but_its_own);
	tcase_add_test(t, a_leftover_that_holds_the_pipe_does_not_hold_the_result);
	tcase_add_test(t, a_held_input_pipe_holds_nobody_up_but_its_own);
	tcase_add_test(t, a_leader_whose_tracer_keeps_it_is_awaited_at_rest);
	return run_suite("exec_held", t) != 0;
}
