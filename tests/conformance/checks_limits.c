/* Limits: enforced where the agent says it can, refused by name where it cannot. */
#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"
#include "tests/conformance/ask.h"

/* Whether the agent can enforce it. If not, asking for it must be refused by name, and
 * the check is over. */
static bool can(const struct target *t, const char *feature, Sandgate__Exec *e,
                const char *field)
{
	if (ask_feature(t, feature))
		return true;
	Sandgate__Refused *r =
	    ask_refused(t, SANDGATE__OPEN__OP_EXEC, e, ERR_LIMIT_UNSUPPORTED);
	expect(strcmp(r->field, field) == 0, "field '%s' instead of '%s'", r->field, field);
	return false;
}

static void oom(const struct target *t)
{
	static const char *const cmds[] = {"tail /dev/zero", "exec tail /dev/zero",
	                                   "sh -c 'tail /dev/zero'; exit $?"};
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	limits.memory_bytes = ask_number(32 * MIB);
	for (size_t i = 0; i < sizeof(cmds) / sizeof(cmds[0]); i++) {
		Sandgate__Exec e = ask_sh(cmds[i]);
		e.limits = &limits;
		e.timeout_ms = 30000;
		if (!can(t, "memory", &e, "limits.memory_mib"))
			return;
		struct ask_end end = ask_run(t, &e);
		ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_OOM_KILLED, 137);
		expect(end.result->oom_kills >= 1, "no OOM kill was counted");
		expect(end.result->oom_scope == SANDGATE__OOM_SCOPE__OOM_EXEC, "scope %d",
		       end.result->oom_scope);
	}
}

static void oom_without_group(const struct target *t)
{
	Sandgate__Exec e = ask_sh("tail /dev/zero; echo survived; exit 0");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;
	Sandgate__BoolValue off = SANDGATE__BOOL_VALUE__INIT;

	limits.memory_bytes = ask_number(32 * MIB);
	limits.oom_group = &off;
	e.limits = &limits;
	e.timeout_ms = 30000;
	if (!can(t, "memory", &e, "limits.memory_mib"))
		return;
	struct ask_end end = ask_run(t, &e);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "survived\n");
	expect(end.result->oom_kills >= 1, "the surviving shell's OOM kill is not counted");
}

static void tiny_memory(const struct target *t)
{
	Sandgate__Exec e = ask_sh("true");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	limits.memory_bytes = ask_number(4096);
	e.limits = &limits;
	if (!can(t, "memory", &e, "limits.memory_mib"))
		return;
	struct ask_end end = ask_run(t, &e);
	expect(end.result->outcome == SANDGATE__OUTCOME__OUTCOME_OOM_KILLED ||
	           end.result->outcome == SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED,
	       "outcome %d with one page of memory", end.result->outcome);
	ask_alive(t);
}

static void pids(const struct target *t)
{
	Sandgate__Exec e =
	    ask_sh("for i in 1 2 3 4 5 6 7 8; do sleep 0.2 & done; wait; exit 0");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	limits.pids = ask_number(4);
	e.limits = &limits;
	if (!can(t, "pids", &e, "limits.pids"))
		return;
	struct ask_end end = ask_run(t, &e);
	expect(end.result->pids_limit_hits >= 1, "eight children under a limit of four");
}

static void cpu_time(const struct target *t)
{
	Sandgate__Exec e = ask_sh("while :; do :; done");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	limits.cpu_time_ms = ask_number(300);
	e.limits = &limits;
	if (!can(t, "cgroup2", &e, "limits.cpu_seconds"))
		return;
	struct ask_end end = ask_run(t, &e);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_CPU_LIMIT, 152);
	uint64_t used = end.result->cpu_user_us + end.result->cpu_system_us;
	expect(used >= 250000 && used < 2000000, "%llu us were used", (unsigned long long)used);
}

static void cpu_share(const struct target *t)
{
	Sandgate__Exec e = ask_sh("while :; do :; done");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	limits.cpu_milli = ask_number(200);
	e.limits = &limits;
	e.timeout_ms = 1000;
	if (!can(t, "cpu", &e, "limits.cpus"))
		return;
	struct ask_end end = ask_run(t, &e);
	uint64_t used = end.result->cpu_user_us + end.result->cpu_system_us;
	expect(used < 500000, "%llu us in a second at a fifth of a CPU",
	       (unsigned long long)used);
}

static void rlimits(const struct target *t)
{
	Sandgate__Exec e = ask_sh("ulimit -n; ulimit -Hn; head -c 2000000 /dev/zero > /tmp/$$; "
	                          "wc -c < /tmp/$$; rm /tmp/$$");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	limits.open_files = ask_number(77);
	limits.file_size_bytes = ask_number(MIB);
	e.limits = &limits;
	struct ask_end end = ask_run(t, &e);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "77\n77\n1048576\n");
}

static void io(const struct target *t)
{
	Sandgate__Exec e = ask_sh("true");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	limits.io_read_bps = ask_number(MIB);
	e.limits = &limits;
	if (can(t, "io", &e, "limits.io_read_bps"))
		skip("io.max is there, and may have no disk to limit");
}

static void usage(const struct target *t)
{
	struct ask_end end = ask_run_sh(t, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
	uint64_t used = end.result->cpu_user_us + end.result->cpu_system_us;

	expect(used > 0 || !ask_feature(t, "cgroup2"), "no CPU time was counted");
	expect(end.result->duration_ms * 1000 + 100000 >= used / 2, "a short duration");
	expect(end.result->finished_at_ms >= end.result->started_at_ms, "times out of order");
	if (ask_feature(t, "memory") && end.result->memory_peak_bytes)
		expect(end.result->memory_peak_bytes->value > 0, "a memory peak of 0");
}

static const struct check checks[] = {
    {22, "an OOM kill is oom_killed, also behind a shell", oom},
    {22, "with oom_group off a shell survives and the kill is counted", oom_without_group},
    {22, "one page of memory is told truthfully", tiny_memory},
    {22, "the pids limit holds and its hits are counted", pids},
    {22, "the CPU time limit is cpu_limit", cpu_time},
    {22, "the CPU share holds", cpu_share},
    {22, "open files and file size are limited", rlimits},
    {22, "an io limit without its controller is refused by name", io},
    {57, "usage is counted", usage},
};
CHECK_TABLE(checks_limits, checks);
