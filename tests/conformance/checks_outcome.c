/* How an exec ended: one check an outcome, and the mistakes that others make. */
#include <string.h>

#include "proto/limits.h"
#include "tests/conformance/ask.h"

static void exit_codes(const struct target *t)
{
	static const struct {
		const char *cmd;
		int code;
	} cases[] = {{"exit 0", 0}, {"exit 1", 1}, {"exit 137", 137}, {"exit 255", 255}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ask_end end = ask_run_sh(t, cases[i].cmd);
		ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, cases[i].code);
		expect(end.result->signal == 0 && end.result->oom_kills == 0,
		       "'%s' has a signal or an OOM kill", cases[i].cmd);
		expect(end.result->cancel_reason == SANDGATE__CANCEL_REASON__CANCEL_NONE,
		       "'%s' has a cancel reason", cases[i].cmd);
	}
}

static void signals(const struct target *t)
{
	static const int numbers[] = {9, 15, 11, 6, 13};
	char cmd[] = "kill -00 $$";

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		cmd[6] = (char)('0' + numbers[i] / 10);
		cmd[7] = (char)('0' + numbers[i] % 10);
		struct ask_end end = ask_run_sh(t, cmd);
		ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_SIGNALED, 128 + numbers[i]);
		expect(end.result->signal == (uint32_t)numbers[i], "signal %u",
		       end.result->signal);
	}
}

static struct ask_end run_until_timeout(const struct target *t, const char *cmd)
{
	Sandgate__Exec e = ask_sh(cmd);

	e.timeout_ms = 1000; /* a slow guest has done what comes first by then */
	struct ask_end end = ask_run(t, &e);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT, 124);
	expect(end.result->duration_ms >= 1000, "ended after %llu ms",
	       (unsigned long long)end.result->duration_ms);
	expect(end.result->duration_ms < 10000, "ended only after %llu ms",
	       (unsigned long long)end.result->duration_ms);
	return end;
}

static void timeout_keeps_output(const struct target *t)
{
	struct ask_end end = run_until_timeout(t, "echo partial; sleep 60");

	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "partial\n");
}

static void timeout_with_trap(const struct target *t)
{
	struct ask_end end =
	    run_until_timeout(t, "trap 'exit 0' TERM; while :; do sleep 0.05; done");

	expect(end.result->signal == 0, "the handler exited, yet signal %u",
	       end.result->signal);
}

static void timeout_with_ignored_term(const struct target *t)
{
	struct ask_end end = run_until_timeout(t, "trap '' TERM; sleep 60; sleep 60");

	expect(end.result->signal == 9, "signal %u", end.result->signal);
}

static void timeout_stopped(const struct target *t)
{
	run_until_timeout(t, "kill -STOP $$; echo after");
}

/* A descendant in a session of its own that ignores SIGTERM is gone with the rest. */
static void timeout_kills_descendants(const struct target *t)
{
	if (!ask_feature(t, "cgroup2"))
		skip("without cgroup v2 a process group is all that can be killed");
	struct ask_end end = run_until_timeout(
	    t,
	    "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' & sleep 60");
	expect(!ask_lives(t, (char *)end.bytes[0]), "the descendant lives");
}

static void grace(const struct target *t)
{
	Sandgate__Exec e = ask_sh("trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done");
	e.timeout_ms = 1000;
	e.grace_ms = 5000;
	struct ask_end end = ask_run(t, &e);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT, 124);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "bye\n");

	Sandgate__Exec hard =
	    ask_sh("trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done");
	hard.timeout_ms = 1000;
	hard.grace_ms = 0;
	end = ask_run(t, &hard);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT, 124);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "");
	expect(end.result->signal == 9, "signal %u", end.result->signal);
}

static void no_timeout(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 0.3; echo ok");

	e.timeout_ms = 0;
	struct ask_end end = ask_run(t, &e);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
}

static void cancelled(const struct target *t)
{
	static const Sandgate__CancelReason reasons[] = {
	    SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE, SANDGATE__CANCEL_REASON__CANCEL_KILLED,
	    SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED,
	    SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_EXPIRED,
	    SANDGATE__CANCEL_REASON__CANCEL_SHUTDOWN};

	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
		Sandgate__Exec e = ask_sh("echo up; exec sleep 60");
		struct conn *c = ask_start(t, &e);
		ask_cancel(c, reasons[i]);
		struct ask_end end = ask_end(c, 0);
		ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_CANCELLED, 128 + 15);
		expect(end.result->cancel_reason == reasons[i], "reason %d after %d",
		       end.result->cancel_reason, reasons[i]);
	}
}

static void first_cause_wins(const struct target *t)
{
	Sandgate__Exec e = ask_sh("trap 'echo term' TERM; while :; do sleep 0.05; done");
	e.timeout_ms = 1000;
	e.grace_ms = 3000;
	struct conn *c = ask_start_until(t, &e, "term");
	ask_cancel(c, SANDGATE__CANCEL_REASON__CANCEL_KILLED);
	Sandgate__ExecState *s = ask_finished(t, e.exec_id);
	expect(s->result->outcome == SANDGATE__OUTCOME__OUTCOME_TIMED_OUT, "outcome %d",
	       s->result->outcome);
}

/* Every status reaches its own exec, and no orphan steals one. */
static void concurrent(const struct target *t)
{
	enum { EXECS = 50 };
	struct conn *c[EXECS];
	char cmd[] = "(sleep 0.01 &); exit 00";

	for (int i = 0; i < EXECS; i++) {
		cmd[sizeof(cmd) - 3] = (char)('0' + i / 10);
		cmd[sizeof(cmd) - 2] = (char)('0' + i % 10);
		Sandgate__Exec e = ask_sh(cmd);
		c[i] = ask_start(t, &e);
	}
	for (int i = 0; i < EXECS; i++) {
		struct ask_end end = ask_end(c[i], 0);
		ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, i);
	}
}

static void no_zombies(const struct target *t)
{
	struct ask_end end = {0};

	ask_run_sh(t, "for i in 1 2 3 4 5; do (sleep 0.01 &); done");
	for (int i = 0; i < 300; i++, ask_pause()) {
		end = ask_run_sh(t,
		                 "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | "
		                 "while read f; do grep -q '^Name:.sleep' $f && echo $f; done");
		if (end.len[0] == 0)
			return;
	}
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "");
}

static const struct check checks[] = {
    {54, "exit codes are the command's own", exit_codes},
    {54, "a signal of nobody's is signaled, 128+n", signals},
    {52, "a timeout keeps what was printed", timeout_keeps_output},
    {53, "a timeout whose handler exits 0 is timed_out", timeout_with_trap},
    {52, "a timeout with SIGTERM ignored ends by the kill", timeout_with_ignored_term},
    {52, "a timeout ends a stopped process", timeout_stopped},
    {52, "a timeout kills every descendant", timeout_kills_descendants},
    {52, "the grace is what was asked for, and 0 kills at once", grace},
    {52, "no timeout is no timeout", no_timeout},
    {74, "a cancel is cancelled with its reason", cancelled},
    {53, "the first cause wins", first_cause_wins},
    {54, "fifty at once keep their own exit codes", concurrent},
    {50, "no zombie is left", no_zombies},
};
CHECK_TABLE(checks_outcome, checks);
