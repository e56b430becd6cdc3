/* How an exec ended, by the facts: the whole table. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "guest-agent/verdict.h"
#include "tests/suite_fixture.h"

#define EXITED SANDGATE__OUTCOME__OUTCOME_EXITED
#define SIGNALED SANDGATE__OUTCOME__OUTCOME_SIGNALED
#define TIMED_OUT SANDGATE__OUTCOME__OUTCOME_TIMED_OUT
#define OOM_KILLED SANDGATE__OUTCOME__OUTCOME_OOM_KILLED
#define CPU_LIMIT SANDGATE__OUTCOME__OUTCOME_CPU_LIMIT
#define CANCELLED SANDGATE__OUTCOME__OUTCOME_CANCELLED
#define SPAWN_FAILED SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED
#define NOT_OOM SANDGATE__OOM_SCOPE__OOM_NONE
#define IN_EXEC SANDGATE__OOM_SCOPE__OOM_EXEC
#define IN_GUEST SANDGATE__OOM_SCOPE__OOM_GUEST

static const struct row {
	const char *what;
	struct verdict_facts facts;
	Sandgate__Outcome outcome;
	int exit_code, signal;
	Sandgate__OomScope scope;
} rows[] = {
    /* the leader called exit */
    {"exit 0", {.leader_exited = true}, EXITED, 0, 0, NOT_OOM},
    {"exit 255", {.leader_exited = true, .leader_code = 255}, EXITED, 255, 0, NOT_OOM},
    {"exit 124 is no timeout",
     {.leader_exited = true, .leader_code = 124},
     EXITED,
     124,
     0,
     NOT_OOM},
    {"exit 137 without a count",
     {.leader_exited = true, .leader_code = 137},
     EXITED,
     137,
     0,
     NOT_OOM},
    {"exit 137 while only the limit was hit",
     {.leader_exited = true, .leader_code = 137, .leaf_ooms = 3},
     EXITED,
     137,
     0,
     NOT_OOM},
    {"exit 0 although a child was OOM-killed",
     {.leader_exited = true, .oom_kills = 1, .leaf_ooms = 1},
     EXITED,
     0,
     0,
     IN_EXEC},
    {"exit 1 although a child was OOM-killed",
     {.leader_exited = true, .leader_code = 1, .oom_kills = 2, .leaf_ooms = 1},
     EXITED,
     1,
     0,
     IN_EXEC},
    {"exit 143 is not taken for SIGTERM",
     {.leader_exited = true, .leader_code = 143},
     EXITED,
     143,
     0,
     NOT_OOM},

    /* signals of others */
    {"kill -9 without a count", {.leader_signal = SIGKILL}, SIGNALED, 137, SIGKILL, NOT_OOM},
    {"kill -9 while only the limit was hit",
     {.leader_signal = SIGKILL, .leaf_ooms = 1},
     SIGNALED,
     137,
     SIGKILL,
     NOT_OOM},
    {"SIGSEGV", {.leader_signal = SIGSEGV}, SIGNALED, 139, SIGSEGV, NOT_OOM},
    {"SIGTERM of its own", {.leader_signal = SIGTERM}, SIGNALED, 143, SIGTERM, NOT_OOM},
    {"SIGXCPU of its own", {.leader_signal = SIGXCPU}, SIGNALED, 152, SIGXCPU, NOT_OOM},
    {"SIGSEGV although a child was OOM-killed",
     {.leader_signal = SIGSEGV, .oom_kills = 1, .leaf_ooms = 1},
     SIGNALED,
     139,
     SIGSEGV,
     IN_EXEC},
    {"the last real-time signal", {.leader_signal = 64}, SIGNALED, 192, 64, NOT_OOM},

    /* OOM */
    {"SIGKILL and a count",
     {.leader_signal = SIGKILL, .oom_kills = 1, .leaf_ooms = 1},
     OOM_KILLED,
     137,
     SIGKILL,
     IN_EXEC},
    {"SIGKILL and a count from above",
     {.leader_signal = SIGKILL, .oom_kills = 1},
     OOM_KILLED,
     137,
     SIGKILL,
     IN_GUEST},
    {"137 of a shell and a count",
     {.leader_exited = true, .leader_code = 137, .oom_kills = 1, .leaf_ooms = 1},
     OOM_KILLED,
     137,
     SIGKILL,
     IN_EXEC},
    {"a timer that found an OOM kill under way",
     {.cause = CAUSE_OOM, .leader_signal = SIGKILL, .oom_kills = 2, .leaf_ooms = 1},
     OOM_KILLED,
     137,
     SIGKILL,
     IN_EXEC},
    {"a timer that found one, and the leader exited",
     {.cause = CAUSE_OOM, .leader_exited = true, .oom_kills = 1, .leaf_ooms = 1},
     OOM_KILLED,
     137,
     SIGKILL,
     IN_EXEC},

    /* our deadline */
    {"SIGTERM at the deadline",
     {.cause = CAUSE_TIMEOUT, .leader_signal = SIGTERM},
     TIMED_OUT,
     124,
     SIGTERM,
     NOT_OOM},
    {"SIGKILL after the grace",
     {.cause = CAUSE_TIMEOUT, .leader_signal = SIGKILL},
     TIMED_OUT,
     124,
     SIGKILL,
     NOT_OOM},
    {"a TERM handler that exits 0",
     {.cause = CAUSE_TIMEOUT, .leader_exited = true},
     TIMED_OUT,
     124,
     0,
     NOT_OOM},
    {"a deadline first and an OOM kill in the grace",
     {.cause = CAUSE_TIMEOUT, .leader_signal = SIGKILL, .oom_kills = 1, .leaf_ooms = 1},
     TIMED_OUT,
     124,
     SIGKILL,
     IN_EXEC},

    /* our CPU limit */
    {"the CPU limit",
     {.cause = CAUSE_CPU_LIMIT, .leader_signal = SIGKILL},
     CPU_LIMIT,
     152,
     0,
     NOT_OOM},
    {"the CPU limit, handled",
     {.cause = CAUSE_CPU_LIMIT, .leader_exited = true, .leader_code = 3},
     CPU_LIMIT,
     152,
     0,
     NOT_OOM},
    {"the CPU limit first and an OOM kill after",
     {.cause = CAUSE_CPU_LIMIT, .leader_signal = SIGKILL, .oom_kills = 1},
     CPU_LIMIT,
     152,
     0,
     IN_GUEST},

    /* our cancel */
    {"cancelled by SIGTERM",
     {.cause = CAUSE_CANCEL, .leader_signal = SIGTERM},
     CANCELLED,
     143,
     SIGTERM,
     NOT_OOM},
    {"cancelled by SIGKILL",
     {.cause = CAUSE_CANCEL, .leader_signal = SIGKILL},
     CANCELLED,
     137,
     SIGKILL,
     NOT_OOM},
    {"cancelled, and its TERM handler exits",
     {.cause = CAUSE_CANCEL, .leader_exited = true},
     CANCELLED,
     143,
     0,
     NOT_OOM},
    {"cancelled first and an OOM kill after",
     {.cause = CAUSE_CANCEL, .leader_signal = SIGKILL, .oom_kills = 1, .leaf_ooms = 1},
     CANCELLED,
     137,
     SIGKILL,
     IN_EXEC},

    /* nothing ran: whatever else is known */
    {"not found", {.spawn_failed = true, .not_found = true}, SPAWN_FAILED, 127, 0, NOT_OOM},
    {"not executable", {.spawn_failed = true}, SPAWN_FAILED, 126, 0, NOT_OOM},
    {"hung until the deadline",
     {.spawn_failed = true, .cause = CAUSE_TIMEOUT, .leader_signal = SIGKILL},
     SPAWN_FAILED,
     126,
     0,
     NOT_OOM},
    {"without memory to start in",
     {.spawn_failed = true, .leader_signal = SIGKILL, .oom_kills = 1},
     SPAWN_FAILED,
     126,
     0,
     NOT_OOM},
};

START_TEST(each_row_of_the_table)
{
	const struct row *r = &rows[_i];
	struct verdict v = verdict(&r->facts);

	ck_assert_msg(v.outcome == r->outcome, "%s: outcome %d", r->what, v.outcome);
	ck_assert_msg(v.exit_code == r->exit_code, "%s: exit code %d", r->what, v.exit_code);
	ck_assert_msg(v.signal == r->signal, "%s: signal %d", r->what, v.signal);
	ck_assert_msg(v.oom_scope == r->scope, "%s: scope %d", r->what, v.oom_scope);
	ck_assert_msg(v.cancel_reason == SANDGATE__CANCEL_REASON__CANCEL_NONE, "%s", r->what);
}
END_TEST

START_TEST(every_exit_code_is_reported_as_it_is)
{
	struct verdict_facts f = {.leader_exited = true, .leader_code = _i};
	struct verdict v = verdict(&f);

	ck_assert_int_eq(v.outcome, EXITED);
	ck_assert_int_eq(v.exit_code, _i);
	ck_assert_int_eq(v.signal, 0);
}
END_TEST

START_TEST(a_cancel_keeps_its_reason)
{
	struct verdict_facts f = {.cause = CAUSE_CANCEL,
	                          .leader_signal = SIGTERM,
	                          .cancel_reason = (Sandgate__CancelReason)_i};

	ck_assert_int_eq(verdict(&f).cancel_reason, _i);
}
END_TEST

/* A reason that came too late to be the cause is not told. */
START_TEST(a_reason_without_a_cancel_is_dropped)
{
	struct verdict_facts f = {.cause = CAUSE_TIMEOUT,
	                          .leader_signal = SIGTERM,
	                          .cancel_reason = SANDGATE__CANCEL_REASON__CANCEL_KILLED};

	ck_assert_int_eq(verdict(&f).cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_NONE);
}
END_TEST

int main(void)
{
	TCase *t = new_case("verdict", NULL, NULL);
	tcase_add_loop_test(t, each_row_of_the_table, 0, sizeof(rows) / sizeof(rows[0]));
	tcase_add_loop_test(t, every_exit_code_is_reported_as_it_is, 0, 256);
	tcase_add_loop_test(t, a_cancel_keeps_its_reason,
	                    SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE,
	                    SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST + 1);
	tcase_add_test(t, a_reason_without_a_cancel_is_dropped);
	return run_suite("verdict", t) != 0;
}
