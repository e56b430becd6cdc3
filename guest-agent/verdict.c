#include "guest-agent/verdict.h"

#include <signal.h>

#define EXIT_TIMED_OUT 124
#define EXIT_NOT_EXECUTABLE 126
#define EXIT_NOT_FOUND 127
#define EXIT_SIGNAL_BASE 128

/* A shell reports a SIGKILLed child as this exit status. */
static bool looks_killed(const struct verdict_facts *f)
{
	return f->leader_exited ? f->leader_code == EXIT_SIGNAL_BASE + SIGKILL
	                        : f->leader_signal == SIGKILL;
}

static Sandgate__OomScope scope_of(const struct verdict_facts *f)
{
	if (f->oom_kills == 0 && f->cause != CAUSE_OOM)
		return SANDGATE__OOM_SCOPE__OOM_NONE;
	return f->leaf_ooms > 0 ? SANDGATE__OOM_SCOPE__OOM_EXEC
	                        : SANDGATE__OOM_SCOPE__OOM_GUEST;
}

static void set_oom_killed(struct verdict *v)
{
	v->outcome = SANDGATE__OUTCOME__OUTCOME_OOM_KILLED;
	v->exit_code = EXIT_SIGNAL_BASE + SIGKILL;
	v->signal = SIGKILL;
}

/* Nobody of ours interfered: the wait status and the OOM counter decide. */
static void decide_by_status(const struct verdict_facts *f, struct verdict *v)
{
	if (looks_killed(f) && f->oom_kills > 0) {
		set_oom_killed(v);
	} else if (f->leader_exited) {
		v->outcome = SANDGATE__OUTCOME__OUTCOME_EXITED;
		v->exit_code = f->leader_code;
	} else {
		v->outcome = SANDGATE__OUTCOME__OUTCOME_SIGNALED;
		v->exit_code = EXIT_SIGNAL_BASE + f->leader_signal;
		v->signal = f->leader_signal;
	}
}

struct verdict verdict(const struct verdict_facts *f)
{
	struct verdict v = {.cancel_reason = SANDGATE__CANCEL_REASON__CANCEL_NONE,
	                    .oom_scope = SANDGATE__OOM_SCOPE__OOM_NONE};
	int ended_by = f->leader_exited ? 0 : f->leader_signal;

	if (f->spawn_failed) {
		v.outcome = SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED;
		v.exit_code = f->not_found ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
		return v;
	}
	v.oom_scope = scope_of(f);
	switch (f->cause) {
	case CAUSE_TIMEOUT:
		v.outcome = SANDGATE__OUTCOME__OUTCOME_TIMED_OUT;
		v.exit_code = EXIT_TIMED_OUT;
		v.signal = ended_by;
		break;
	case CAUSE_CPU_LIMIT:
		v.outcome = SANDGATE__OUTCOME__OUTCOME_CPU_LIMIT;
		v.exit_code = EXIT_SIGNAL_BASE + SIGXCPU;
		break;
	case CAUSE_OOM:
		set_oom_killed(&v);
		break;
	case CAUSE_CANCEL:
		/* One that exits from its TERM handler was ended by that SIGTERM all the same.
		 */
		v.outcome = SANDGATE__OUTCOME__OUTCOME_CANCELLED;
		v.exit_code = EXIT_SIGNAL_BASE + (ended_by != 0 ? ended_by : SIGTERM);
		v.signal = ended_by;
		v.cancel_reason = f->cancel_reason;
		break;
	case CAUSE_NONE:
		decide_by_status(f, &v);
		break;
	}
	return v;
}
