/* Processes that outlive the leader of their exec: what is heard of them, for how long, and
 * what holds for them afterwards. */
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/agent_fixture.h"

START_TEST(background_child_does_not_hold_the_result)
{
	struct transcript t = host_run_cmd("sleep 60 & echo $! >&2; echo hi");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_str_eq(t.out[0], "hi\n");
	ck_assert_uint_lt(t.result->finished_at_ms - t.result->started_at_ms, AT_ONCE_MS);
	kill((pid_t)atoi(t.out[1]), SIGKILL);
	transcript_free(&t);
}
END_TEST

START_TEST(output_after_the_leaders_exit_is_kept_while_it_flows)
{
	/* A leader that was reaped cannot be signaled any more. */
	struct transcript t =
	    host_run_cmd("(while kill -0 $$ 2>/dev/null; do :; done; echo late) & echo hi");
	ck_assert_str_eq(t.out[0], "hi\nlate\n");
	transcript_free(&t);
}
END_TEST

static bool is_draining(void *id)
{
	return exec_state(find_exec(id)) == EXEC_DRAINING;
}

/* It stands still until the leftover has written, and for longer than silence may last. */
START_TEST(an_agent_that_did_not_run_does_not_take_that_for_silence)
{
	Sandgate__Exec m = exec_message("x", "(while kill -0 $$ 2>/dev/null; do :; done;"
	                                     "echo x; echo y >/proc/$PPID/fd/99;"
	                                     "exec head -c 300000 /dev/zero) & exit 3");
	struct pollfd written = {.events = POLLIN};
	int ends[2];
	ck_assert(pipe2(ends, O_CLOEXEC) == 0 && dup3(ends[1], 99, O_CLOEXEC) == 99);
	struct host *h = host_start(&m);
	turn_until(is_draining, "x");
	written.fd = ends[0];
	ck_assert_int_eq(poll(&written, 1, AT_ONCE_MS), 1);
	poll(NULL, 0, 2 * DRAIN_IDLE_MS);
	struct transcript t = host_finish(h, 0);
	ck_assert_uint_eq(t.len[0], 2 + 300000);
	ck_assert_int_eq(t.result->exit_code, 3);
	transcript_free(&t);
}
END_TEST

/* How long the result waits for what three leftovers print (ms). */
static uint64_t drain_chatty(const char *id)
{
	Sandgate__Exec m = exec_message(
	    id, "for i in 1 2 3; do while :; do echo x; done & done; echo $$ >&2; exit 3");
	struct transcript t = host_run(&m);
	uint64_t took = t.result->finished_at_ms - t.result->started_at_ms;
	kill(-(pid_t)atoi(t.out[1]), SIGKILL);
	ck_assert_int_eq(t.result->exit_code, 3);
	transcript_free(&t);
	return took;
}

/* On a busy machine even they fall silent for a moment, so that it takes some tries. */
START_TEST(chatty_leftovers_are_cut_at_the_drain_limit)
{
	uint64_t took = 0;
	for (int i = 0; i < 5 && took < DRAIN_MAX_MS - 100; i++) {
		char id[8];
		snprintf(id, sizeof(id), "x%d", i);
		took = drain_chatty(id);
		ck_assert_uint_lt(took, DRAIN_MAX_MS + 3000);
	}
	ck_assert_uint_ge(took, DRAIN_MAX_MS - 100);
}
END_TEST

static bool has_become_sleep(void *pid)
{
	char path[32], name[16] = "";
	snprintf(path, sizeof(path), "/proc/%d/comm", *(pid_t *)pid);
	FILE *f = fopen(path, "re");
	ck_assert_msg(f != NULL && fgets(name, sizeof(name), f) != NULL, "it has ended");
	fclose(f);
	return strcmp(name, "sleep\n") == 0;
}

START_TEST(leftover_is_not_killed_by_sigpipe)
{
	struct transcript t =
	    host_run_cmd("(sleep 0.4; echo a; echo b; exec sleep 60) & echo $!");
	pid_t left = (pid_t)atoi(t.out[0]);
	turn_until(has_become_sleep, &left);
	kill(left, SIGKILL);
	transcript_free(&t);
}
END_TEST

static bool has_ended(void *pid)
{
	return kill(*(pid_t *)pid, 0) < 0;
}

static bool is_unknown(void *id)
{
	struct err e;
	return exec_table_find(agent_table(fixture_agent), id, &e) == NULL;
}

/* The result is pushed out by those of later execs; what the command left behind goes on. */
START_TEST(a_leftovers_cpu_time_is_limited_after_its_result_is_dropped)
{
	Sandgate__Limits l = SANDGATE__LIMITS__INIT;
	Sandgate__Uint64Value ms = SANDGATE__UINT64_VALUE__INIT;
	Sandgate__Exec m = exec_message("x", "(while :; do :; done) & echo $!");
	ms.value = 1500;
	l.cpu_time_ms = &ms;
	m.limits = &l;
	struct host *h = host_exec(&m);
	struct transcript t = host_finish(h, 0);
	if (t.result == NULL) { /* no cgroup v2: the limit was refused */
		transcript_free(&t);
		return;
	}
	pid_t left = (pid_t)atoi(t.out[0]);
	ck_assert(!has_ended(&left));
	transcript_free(&t);
	for (int i = 0; i <= RETAINED_UNCHOSEN_MAX; i++) {
		char id[16];
		snprintf(id, sizeof(id), "e%d", i);
		Sandgate__Exec other = exec_message(id, "true");
		t = host_run(&other);
		transcript_free(&t);
	}
	turn_until(is_unknown, m.exec_id);
	turn_until(has_ended, &left);
}
END_TEST

/* A process group of its own by the number that another had. */
static pid_t start_group(pid_t number)
{
	struct clone_args args = {
	    .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1};
	pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0) {
		setpgid(0, 0);
		for (;;)
			pause();
	}
	ck_assert_msg(pid == number, "clone3: %s", strerror(errno));
	while (getpgid(pid) != pid)
		;
	return pid;
}

START_TEST(a_signal_to_what_is_over_reaches_no_other)
{
	Sandgate__Exec m = exec_message("x", "echo $$");
	Sandgate__Signal s = SANDGATE__SIGNAL__INIT;
	struct transcript t = host_run(&m);
	pid_t other = start_group((pid_t)atoi(t.out[0]));
	struct host *h = host_attached("x", SANDGATE__ROLE__ROLE_CONTROL, 0);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE);
	s.signal = SIGKILL;
	s.all = true;
	host_send(h, SANDGATE__HOST_FRAME__BODY_SIGNAL, &s);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	host_close(h);
	turn_for(0.1);
	ck_assert_int_eq(waitpid(other, NULL, WNOHANG), 0);
	kill(other, SIGKILL);
	transcript_free(&t);
}
END_TEST

int main(void)
{
	TCase *t = new_case("exec_leftovers", fixture_setup, NULL);
	tcase_add_test(t, background_child_does_not_hold_the_result);
	tcase_add_test(t, output_after_the_leaders_exit_is_kept_while_it_flows);
	tcase_add_test(t, an_agent_that_did_not_run_does_not_take_that_for_silence);
	tcase_add_test(t, chatty_leftovers_are_cut_at_the_drain_limit);
	tcase_add_test(t, leftover_is_not_killed_by_sigpipe);
	tcase_add_test(t, a_leftovers_cpu_time_is_limited_after_its_result_is_dropped);
	tcase_add_test(t, a_signal_to_what_is_over_reaches_no_other);
	return run_suite("exec_leftovers", t) != 0;
}
