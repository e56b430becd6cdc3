/* One command from its start to its result: how it ends, what it gets and what it prints. */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "tests/agent_fixture.h"

START_TEST(exit_code_and_both_streams_are_reported)
{
	struct transcript t = host_run_cmd("echo out; echo err >&2; exit 5");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_int_eq(t.result->exit_code, 5);
	ck_assert_str_eq(t.out[0], "out\n");
	ck_assert_str_eq(t.out[1], "err\n");
	ck_assert_uint_eq(t.result->stdout_bytes, 4);
	ck_assert(t.started && !t.existing);
	transcript_free(&t);
}
END_TEST

START_TEST(death_by_a_signal_of_its_own_is_signaled)
{
	struct transcript t = host_run_cmd("kill -9 $$");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_SIGNALED);
	ck_assert_int_eq(t.result->exit_code, 137);
	ck_assert_uint_eq(t.result->signal, SIGKILL);
	transcript_free(&t);
}
END_TEST

START_TEST(exit_137_is_an_exit)
{
	struct transcript t = host_run_cmd("exit 137");
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_int_eq(t.result->exit_code, 137);
	transcript_free(&t);
}
END_TEST

START_TEST(timeout_keeps_what_was_printed)
{
	Sandgate__Exec m = exec_message("x", "echo partial; sleep 60");
	m.timeout_ms = 1000;
	struct transcript t = host_run(&m);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	ck_assert_int_eq(t.result->exit_code, 124);
	ck_assert_str_eq(t.out[0], "partial\n");
	ck_assert_uint_ge(t.result->duration_ms, 1000);
	transcript_free(&t);
}
END_TEST

START_TEST(timeout_is_a_timeout_even_if_a_trap_exits_0)
{
	Sandgate__Exec m =
	    exec_message("x", "trap 'exit 0' TERM; while :; do sleep 0.05; done");
	m.timeout_ms = 1000; /* the trap is set by then */
	m.grace_ms = 60000;
	struct transcript t = host_run(&m);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	ck_assert_int_eq(t.result->signal, 0);
	ck_assert_uint_lt(t.result->duration_ms, AT_ONCE_MS);
	transcript_free(&t);
}
END_TEST

START_TEST(a_stopped_or_deaf_process_is_killed_after_the_grace)
{
	Sandgate__Exec m = exec_message("x", "trap '' TERM; kill -STOP $$; sleep 60; sleep 60");
	m.timeout_ms = 200;
	struct transcript t = host_run(&m);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	ck_assert_uint_ge(t.result->duration_ms, 400);
	ck_assert(!t.result->cleanup_pending);
	transcript_free(&t);
}
END_TEST

START_TEST(cancel_ends_it_with_its_reason)
{
	Sandgate__Exec m = exec_message("x", "echo up; sleep 60");
	struct host *h = host_start(&m);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OUTPUT);
	host_cancel(h, SANDGATE__CANCEL_REASON__CANCEL_KILLED);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	struct transcript t = host_finish(h, 3);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_KILLED);
	transcript_free(&t);
}
END_TEST

#ifndef __SANITIZE_ADDRESS__ /* which has a heap of its own */
START_TEST(output_that_there_is_no_memory_for_is_no_exit)
{
	struct rlimit before, none;
	siginfo_t ended;
	int gate[2];
	Sandgate__Exec m = exec_message("x", "read go </proc/$PPID/fd/99; echo out");
	ck_assert(pipe2(gate, O_CLOEXEC) == 0 && dup3(gate[0], 99, O_CLOEXEC) == 99);
	struct host *h = host_start(&m);
	ck_assert_int_eq(write(gate[1], "\n", 1), 1);
	ck_assert_int_eq(waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_DATA, &before), 0);
	none = (struct rlimit){1, before.rlim_max};
	ck_assert_int_eq(setrlimit(RLIMIT_DATA, &none), 0);
	struct transcript t = host_finish(h, 0);
	ck_assert_int_eq(setrlimit(RLIMIT_DATA, &before), 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	transcript_free(&t);
}
END_TEST
#endif

START_TEST(missing_cwd_runs_nothing_and_names_the_stage)
{
	Sandgate__Exec m = exec_message("x", "echo leaked");
	m.cwd = BYTES("/nope");
	struct transcript t = host_run(&m);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED);
	ck_assert_int_eq(t.result->exit_code, 126);
	ck_assert_str_eq(t.result->spawn_error->stage, "chdir");
	ck_assert_int_eq(t.result->spawn_error->error_number, ENOENT);
	ck_assert(strstr(t.result->spawn_error->message, "/nope") != NULL);
	ck_assert(!t.started);
	ck_assert_uint_eq(t.len[0], 0);
	transcript_free(&t);
}
END_TEST

START_TEST(unknown_user_is_a_spawn_failure)
{
	Sandgate__Exec m = exec_message("x", "id -u");
	m.user = BYTES("ghost");
	struct transcript t = host_run(&m);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED);
	ck_assert_str_eq(t.result->spawn_error->stage, "user");
	transcript_free(&t);
}
END_TEST

START_TEST(unknown_program_is_127)
{
	Sandgate__Exec m = exec_message("x", "");
	ProtobufCBinaryData argv[] = {BYTES("no-such-prog")};
	m.argv = argv;
	m.n_argv = 1;
	struct transcript t = host_run(&m);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED);
	ck_assert_int_eq(t.result->exit_code, 127);
	ck_assert_str_eq(t.result->spawn_error->stage, "execve");
	transcript_free(&t);
}
END_TEST

START_TEST(tail_of_output_is_never_lost)
{
	for (int i = 0; i < 30; i++) {
		char id[16];
		snprintf(id, sizeof(id), "t%d", i);
		Sandgate__Exec m = exec_message(id, "seq 1 10000; exit 5");
		struct transcript t = host_run(&m);
		ck_assert_uint_eq(t.len[0], 48894);
		ck_assert_str_eq(t.out[0] + 48894 - 6, "10000\n");
		ck_assert_int_eq(t.result->exit_code, 5);
		transcript_free(&t);
	}
}
END_TEST

START_TEST(both_streams_drain_together)
{
	struct transcript t = host_run_cmd("head -c 1000000 /dev/zero | tr '\\0' e >&2;"
	                                   "head -c 1000000 /dev/zero | tr '\\0' o");
	ck_assert_uint_eq(t.len[0], 1000000);
	ck_assert_uint_eq(t.len[1], 1000000);
	transcript_free(&t);
}
END_TEST

START_TEST(merged_streams_are_stdout)
{
	Sandgate__Exec m = exec_message("x", "echo a; echo b >&2; echo c");
	m.merge_stderr = 1;
	struct transcript t = host_run(&m);
	ck_assert_str_eq(t.out[0], "a\nb\nc\n");
	ck_assert_uint_eq(t.len[1], 0);
	transcript_free(&t);
}
END_TEST

/* ---- stdin ---- */

START_TEST(without_stdin_a_reader_sees_the_end)
{
	struct transcript t = host_run_cmd("cat; echo done");
	ck_assert_str_eq(t.out[0], "done\n");
	transcript_free(&t);
}
END_TEST

static struct transcript run_with_input(const char *cmd, size_t len)
{
	static uint8_t input[MIB];
	Sandgate__Exec m = exec_message("x", cmd);
	memset(input, 'x', sizeof(input));
	m.stdin = (ProtobufCBinaryData){len, input};
	return host_run(&m);
}

START_TEST(stdin_reaches_the_command_and_ends)
{
	struct transcript t = run_with_input("cat; echo done", 3);
	ck_assert_str_eq(t.out[0], "xxxdone\n");
	transcript_free(&t);
}
END_TEST

START_TEST(a_mebibyte_of_stdin_goes_through_and_back)
{
	struct transcript t = run_with_input("cat", MIB);
	ck_assert_uint_eq(t.len[0], MIB);
	transcript_free(&t);
}
END_TEST

START_TEST(stdin_that_nobody_reads_is_no_failure)
{
	struct transcript t = run_with_input("true", MIB);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_int_eq(t.result->exit_code, 0);
	transcript_free(&t);
}
END_TEST

/* ---- the process's surroundings ---- */

START_TEST(environment_is_built_in_order)
{
	Sandgate__EnvVar a = SANDGATE__ENV_VAR__INIT, *env[] = {&a};
	Sandgate__Exec m = exec_message("x", "echo $HOME:$USER:$LANG:$A:$B");
	a.name = BYTES("A");
	a.value = BYTES("2");
	m.env = env;
	m.n_env = 1;
	struct err e;
	ck_assert_int_eq(config_set(&fixture_config, "env", "A=1", &e), 0);
	ck_assert_int_eq(config_set(&fixture_config, "env", "B=1", &e), 0);
	struct transcript t = host_run(&m);
	ck_assert_str_eq(t.out[0], "/root:root:C.UTF-8:2:1\n");
	transcript_free(&t);
}
END_TEST

START_TEST(command_over_the_string_limit_still_runs)
{
	size_t len = 3 * ARG_STRING_MAX;
	char *cmd = malloc(len + 1);
	memset(cmd, ' ', len);
	memcpy(cmd, "echo $0;", 8);
	memcpy(cmd + len - 6, "exit 9", 6);
	cmd[len] = '\0';
	struct transcript t = host_run_cmd(cmd);
	ck_assert_str_eq(t.out[0], "/bin/sh\n");
	ck_assert_int_eq(t.result->exit_code, 9);
	transcript_free(&t);
	free(cmd);
}
END_TEST

START_TEST(a_home_that_is_missing_is_done_without)
{
	Sandgate__Exec m = exec_message("x", "pwd; id -u");
	m.user = BYTES("nobody");
	struct transcript t = host_run(&m);
	ck_assert_str_eq(t.out[0], "/\n65534\n");
	transcript_free(&t);
}
END_TEST

START_TEST(cpu_time_is_limited_or_the_limit_refused)
{
	Sandgate__Limits l = SANDGATE__LIMITS__INIT;
	Sandgate__Uint64Value ms = SANDGATE__UINT64_VALUE__INIT;
	Sandgate__Exec m = exec_message("x", "while :; do :; done");
	ms.value = 200;
	l.cpu_time_ms = &ms;
	m.limits = &l;
	struct host *h = host_exec(&m);
	struct transcript t = host_finish(h, 0);
	if (t.result == NULL) {
		ck_assert_int_eq(t.last->refused->code, ERR_LIMIT_UNSUPPORTED);
		ck_assert_str_eq(t.last->refused->field, "limits.cpu_seconds");
	} else {
		ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CPU_LIMIT);
		ck_assert_int_eq(t.result->exit_code, 152);
		ck_assert_uint_ge(t.result->cpu_user_us + t.result->cpu_system_us, 200000);
	}
	transcript_free(&t);
}
END_TEST

START_TEST(nothing_of_the_agent_is_inherited)
{
	struct transcript t = host_run_cmd("exec grep -E '^Sig(Blk|Ign)' /proc/self/status");
	ck_assert_str_eq(t.out[0], "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
	transcript_free(&t);
	Sandgate__Exec m = exec_message("y", "ls /proc/self/fd");
	t = host_run(&m);
	ck_assert_str_eq(t.out[0], "0\n1\n2\n3\n"); /* 3 is ls's own */
	transcript_free(&t);
}
END_TEST

int main(void)
{
	TCase *t = new_case("exec", fixture_setup, NULL);
	tcase_add_test(t, exit_code_and_both_streams_are_reported);
	tcase_add_test(t, death_by_a_signal_of_its_own_is_signaled);
	tcase_add_test(t, exit_137_is_an_exit);
	tcase_add_test(t, timeout_keeps_what_was_printed);
	tcase_add_test(t, timeout_is_a_timeout_even_if_a_trap_exits_0);
	tcase_add_test(t, a_stopped_or_deaf_process_is_killed_after_the_grace);
	tcase_add_test(t, cancel_ends_it_with_its_reason);
#ifndef __SANITIZE_ADDRESS__
	tcase_add_test(t, output_that_there_is_no_memory_for_is_no_exit);
#endif
	tcase_add_test(t, missing_cwd_runs_nothing_and_names_the_stage);
	tcase_add_test(t, unknown_user_is_a_spawn_failure);
	tcase_add_test(t, unknown_program_is_127);
	tcase_add_test(t, tail_of_output_is_never_lost);
	tcase_add_test(t, both_streams_drain_together);
	tcase_add_test(t, merged_streams_are_stdout);
	tcase_add_test(t, without_stdin_a_reader_sees_the_end);
	tcase_add_test(t, stdin_reaches_the_command_and_ends);
	tcase_add_test(t, a_mebibyte_of_stdin_goes_through_and_back);
	tcase_add_test(t, stdin_that_nobody_reads_is_no_failure);
	tcase_add_test(t, environment_is_built_in_order);
	tcase_add_test(t, command_over_the_string_limit_still_runs);
	tcase_add_test(t, a_home_that_is_missing_is_done_without);
	tcase_add_test(t, cpu_time_is_limited_or_the_limit_refused);
	tcase_add_test(t, nothing_of_the_agent_is_inherited);
	return run_suite("exec", t) != 0;
}
