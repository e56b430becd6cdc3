/* Output: sequence stamps, both streams, drain rules, retention and replay. */
#include <string.h>

#include "proto/limits.h"
#include "tests/conformance/ask.h"

static void nothing_lost(const struct target *t)
{
	for (int i = 0; i < 20; i++) {
		struct ask_end end = ask_run_sh(t, "seq 1 10000; exit 5");
		ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 5);
		expect(end.len[0] == 48894, "%zu bytes of 48894", end.len[0]);
		expect(memcmp(end.bytes[0] + end.len[0] - 6, "10000\n", 6) == 0,
		       "another tail");
		expect(end.result->stdout_bytes == end.len[0],
		       "stdout_bytes is another number");
	}
}

static void both_streams(const struct target *t)
{
	struct ask_end end = ask_run_sh(t, "head -c 1000000 /dev/zero | tr '\\0' e >&2; head "
	                                   "-c 1000000 /dev/zero | tr '\\0' o");

	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	expect(end.len[0] == 1000000 && end.len[1] == 1000000, "%zu and %zu bytes", end.len[0],
	       end.len[1]);
	expect(end.sequence == 2000000, "the sequence ends at %llu",
	       (unsigned long long)end.sequence);
	expect(strspn((char *)end.bytes[0], "o") == 1000000, "stdout is mixed");
	expect(strspn((char *)end.bytes[1], "e") == 1000000, "stderr is mixed");
}

static void any_bytes(const struct target *t)
{
	struct ask_end end = ask_run_sh(t, "printf 'a\\377\\376b\\000c'");

	expect(end.len[0] == 6 && memcmp(end.bytes[0],
	                                 "a\xff\xfe"
	                                 "b\0c",
	                                 6) == 0,
	       "%zu other bytes", end.len[0]);
}

static void merged(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo a; echo b >&2; echo c; echo d >&2");

	e.merge_stderr = true;
	struct ask_end end = ask_run(t, &e);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "a\nb\nc\nd\n");
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDERR, "");
	expect(end.result->stderr_bytes == 0, "stderr_bytes is not 0");
}

static void leftover_holds_pipe(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60 & echo hi");
	struct ask_end end = ask_run(t, &e);

	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "hi\n");
	expect(end.result->duration_ms < 10000, "it took %llu ms",
	       (unsigned long long)end.result->duration_ms);
	if (ask_feature(t, "cgroup2"))
		expect(end.result->leftover_count == 1, "%u leftovers",
		       end.result->leftover_count);
	ask_forget(t, e.exec_id);
}

static void leftover_prints(const struct target *t)
{
	Sandgate__Exec e = ask_sh("(while :; do echo x; sleep 0.02; done) & echo hi");
	struct ask_end end = ask_run(t, &e);

	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	expect(end.result->duration_ms < DRAIN_MAX_MS, "the drain is in the duration");
	ask_forget(t, e.exec_id);
}

/* A leftover goes on printing after the exit was reported, and is not killed by SIGPIPE. */
static void leftover_lives_on(const struct target *t)
{
	Sandgate__Exec e = ask_sh(
	    "(trap 'touch /tmp/leftover-pipe' PIPE; rm -f /tmp/leftover-pipe; sleep 0.5; "
	    "i=0; while [ $i -lt 200 ]; do echo xxxxxxxxxxxxxxx; i=$((i+1)); done; "
	    "touch /tmp/leftover-done) & rm -f /tmp/leftover-done; echo hi");
	struct ask_end end = ask_run(t, &e);

	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	end = ask_run_sh(t, "i=0; until [ -e /tmp/leftover-done ]; do sleep 0.1; i=$((i+1)); "
	                    "[ $i -lt 50 ] || exit 1; done; ! [ -e /tmp/leftover-pipe ]");
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
}

static void leftovers_killed(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60 & echo $!");

	e.on_exit = SANDGATE__ON_EXIT__EXIT_KILL;
	struct ask_end end = ask_run(t, &e);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	expect(!ask_lives(t, (char *)end.bytes[0]), "the leftover lives");
}

static void replay(const struct target *t)
{
	Sandgate__Exec e = ask_sh("seq 1 1000; echo err >&2");

	e.keep_output = true;
	struct ask_end first = ask_run(t, &e);
	for (uint64_t offset = 0; offset <= first.sequence; offset += first.sequence / 3) {
		struct conn *c = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OUTPUT, offset);
		struct ask_end again = ask_end(c, offset);
		expect(again.sequence == first.sequence && again.gap == 0,
		       "from %llu: another end or a gap", (unsigned long long)offset);
		expect(again.len[0] + again.len[1] == first.sequence - offset,
		       "from %llu: %zu bytes", (unsigned long long)offset,
		       again.len[0] + again.len[1]);
		expect(again.result->exit_code == first.result->exit_code, "another result");
	}
}

/* The ring of a detached exec keeps the newest bytes and tells what it dropped. */
static void gap(const struct target *t)
{
	enum { TOTAL = 600000, KEPT = 128 * 1024 };
	Sandgate__Exec e = ask_sh("head -c 599997 /dev/zero; printf end");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	limits.output_bytes = ask_number(KEPT);
	e.limits = &limits;
	e.detached = true;
	struct conn *c = ask_start(t, &e);
	expect(!conn_recv(c, CONN_WAIT_MS), "a detached start goes on after Started");
	Sandgate__ExecState *s = ask_finished(t, e.exec_id);
	expect(s->result->stdout_bytes == TOTAL && s->end_sequence == TOTAL, "%llu bytes",
	       (unsigned long long)s->result->stdout_bytes);

	struct ask_end end =
	    ask_end(ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OUTPUT, 0), 0);
	expect(end.sequence == TOTAL && end.gap + end.len[0] == TOTAL, "%llu lost and %zu kept",
	       (unsigned long long)end.gap, end.len[0]);
	expect(end.len[0] > KEPT / 2 && end.len[0] <= KEPT, "%zu bytes kept of %d", end.len[0],
	       KEPT);
	expect(memcmp(end.bytes[0] + end.len[0] - 3, "end", 3) == 0, "not the newest bytes");
}

static uint64_t gap_on_replay(const struct target *t, const char *id)
{
	return ask_end(ask_attach(t, id, SANDGATE__ROLE__ROLE_OUTPUT, 0), 0).gap;
}

static uint64_t run_and_release(const struct target *t, Sandgate__Exec *e)
{
	Sandgate__HostFrame frame = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Release body = SANDGATE__RELEASE__INIT;
	struct conn *c = ask_start(t, e);
	struct ask_end end = ask_end(c, 0);

	frame.body_case = SANDGATE__HOST_FRAME__BODY_RELEASE;
	frame.release = &body;
	body.stderr_cut = 1;
	conn_send(c, &frame);
	conn_close(c);
	return end.sequence;
}

static void released(const struct target *t)
{
	Sandgate__Exec e = ask_sh("seq 1 100");
	uint64_t all = run_and_release(t, &e), lost = 0;

	for (int i = 0; i < 300 && lost != all; i++, ask_pause())
		lost = gap_on_replay(t, e.exec_id);
	expect(lost == all, "released output is still there: a gap of %llu",
	       (unsigned long long)lost);
	Sandgate__ExecState *s = ask_state(t, e.exec_id);
	expect(s->released && !s->stdout_cut && s->stderr_cut, "the state forgets the Release");
}

static void kept(const struct target *t)
{
	Sandgate__Exec e = ask_sh("seq 1 100");

	e.keep_output = true;
	run_and_release(t, &e);
	for (int i = 0; i < 20; i++, ask_pause())
		expect(gap_on_replay(t, e.exec_id) == 0, "output that was to be kept is gone");
	expect(!ask_state(t, e.exec_id)->released, "kept output is said to be released");
}

static const struct check checks[] = {
    {50, "exit never overtakes output", nothing_lost},
    {40, "two full streams are read side by side", both_streams},
    {41, "output is bytes, not text", any_bytes},
    {41, "merged stderr keeps the order", merged},
    {50, "a leftover that holds the pipe does not hold the exit", leftover_holds_pipe},
    {50, "a leftover that prints does not hold the exit", leftover_prints},
    {50, "a leftover's pipe stays open after the exit", leftover_lives_on},
    {56, "on_exit kill leaves no leftover", leftovers_killed},
    {61, "output is replayed from any offset", replay},
    {44, "a detached exec keeps the newest output and tells the gap", gap},
    {77, "Release gives the output up", released},
    {77, "output that is to be kept outlives Release", kept},
};
CHECK_TABLE(checks_output, checks);
