/* From the facts of a finished exec to its Result. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "guest-agent/exec_private.h"
#include "proto/clock.h"

/* What the failed stage was about: the client's own words. */
static const char *subject(const struct exec *x, const char *stage)
{
	if (strcmp(stage, "chdir") == 0)
		return x->req.cwd;
	if (strcmp(stage, "user") == 0)
		return x->req.user;
	if (strcmp(stage, "execve") == 0)
		return x->req.argv[0];
	return "";
}

/* Called while the request's strings are still there; they are made printable. */
void exec_note_failure(struct exec *x, const char *stage, int errnum)
{
	char name[100];
	if (x->killed && x->cause == CAUSE_NONE)
		errnum = ETIMEDOUT; /* it hung there until its deadline */
	snprintf(name, sizeof(name), "%s", subject(x, stage));
	for (char *c = name; *c != '\0'; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	bool no_user = strcmp(stage, "user") == 0 && errnum == ENOENT;
	snprintf(x->fail_message, sizeof(x->fail_message), "%s%s%s: %s", stage,
	         name[0] != '\0' ? " " : "", name,
	         no_user ? "there is no such user" : strerror(errnum));
	sandgate__spawn_error__init(&x->spawn_error);
	x->spawn_error.stage = (char *)stage;
	x->spawn_error.error_number = errnum;
	x->spawn_error.message = x->fail_message;
}

static struct verdict judge(const struct exec *x)
{
	/* A spawn that our timeout or a cancel cut short ended by our kill: the cause says why.
	 */
	bool cut_short = x->spawn_failed && x->cause != CAUSE_NONE;
	bool died = x->reaped;
	struct verdict_facts f = {
	    .spawn_failed = x->spawn_failed && !cut_short,
	    .not_found = x->spawn_failed && x->spawn_error.error_number == ENOENT &&
	                 strcmp(x->spawn_error.stage, "execve") == 0,
	    .cause = x->cause,
	    .cancel_reason = x->reason,
	    .leader_exited = died && x->leader_code == CLD_EXITED,
	    .leader_code = x->leader_status,
	    .leader_signal = died ? x->leader_status : SIGKILL,
	    .oom_kills = x->counters.oom_kills,
	    .leaf_ooms = x->counters.ooms,
	};
	return verdict(&f);
}

void exec_fill_result(struct exec *x, bool leftovers)
{
	Sandgate__Result *r = &x->result;
	struct verdict v = judge(x);
	uint64_t end_ms = x->reaped_ms != 0 ? x->reaped_ms : clock_mono_ms();

	sandgate__result__init(r);
	r->outcome = v.outcome;
	r->exit_code = v.exit_code;
	r->signal = (uint32_t)v.signal;
	r->cancel_reason = v.cancel_reason;
	r->oom_scope = v.oom_scope;
	r->stdout_bytes = ring_total(x->ring, SANDGATE__STREAM__STREAM_STDOUT);
	r->stderr_bytes = ring_total(x->ring, SANDGATE__STREAM__STREAM_STDERR);
	r->duration_ms = end_ms - x->created_mono_ms;
	r->cpu_user_us = x->counters.cpu_user_us;
	r->cpu_system_us = x->counters.cpu_system_us;
	r->oom_kills = x->counters.oom_kills;
	r->pids_limit_hits = x->counters.pids_hits;
	if (x->spawned && x->counters.memory_peak != UINT64_MAX) {
		sandgate__uint64_value__init(&x->peak);
		x->peak.value = x->counters.memory_peak;
		r->memory_peak_bytes = &x->peak;
	}
	r->leftover_count = leftovers ? cgroup_leaf_count(x->leaf) : 0;
	r->cleanup_pending = x->killed && x->spawned && (!x->reaped || leftovers);
	r->started_at_ms = x->started_wall_ms;
	r->finished_at_ms = clock_wall_ms();
	if (x->spawn_failed)
		r->spawn_error = &x->spawn_error;
}
