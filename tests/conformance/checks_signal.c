/* Signal and Cancel from owner and control sessions. */
#include <signal.h>

#include "tests/conformance/ask.h"

static void send_signal(struct conn *c, unsigned number, bool all)
{
	Sandgate__HostFrame frame = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Signal body = SANDGATE__SIGNAL__INIT;

	body.signal = number;
	body.all = all;
	frame.body_case = SANDGATE__HOST_FRAME__BODY_SIGNAL;
	frame.signal = &body;
	conn_send(c, &frame);
}

static struct conn *control(const struct target *t, const char *id)
{
	struct conn *c = ask_attach(t, id, SANDGATE__ROLE__ROLE_CONTROL, 0);

	ask_next(c, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE);
	return c;
}

static void delivered(const struct target *t)
{
	Sandgate__Exec e =
	    ask_sh("trap 'echo got; exit 4' USR1; echo up; while :; do sleep 0.05; done");
	struct conn *c = ask_start(t, &e);

	ask_until(c, "up");
	struct conn *side = control(t, e.exec_id);
	send_signal(side, SIGUSR1, false);
	ask_next(side, SANDGATE__GUEST_FRAME__BODY_DONE);
	struct ask_end end = ask_end(c, 3);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 4);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "got\n");
}

static void dying_of_it_is_signaled(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo up; exec sleep 60");
	struct conn *c = ask_start(t, &e);

	ask_until(c, "up");
	send_signal(c, SIGTERM, false);
	struct ask_end end = ask_end(c, 3);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_SIGNALED, 128 + SIGTERM);
}

/* Only the leader is meant: a child in its own session stays, unless `all` is set. The leader
 * has set its trap before there is a child that could say "up". */
static void all_or_leader(const struct target *t)
{
	static const char cmd[] =
	    "trap 'echo leader' USR1; "
	    "(trap 'echo child' USR1; echo up; while :; do sleep 0.05; done) & "
	    "while :; do wait; done";
	for (int all = 0; all < 2; all++) {
		Sandgate__Exec e = ask_sh(cmd);
		struct conn *c = ask_start_until(t, &e, "up");
		struct conn *side = control(t, e.exec_id);
		send_signal(side, SIGUSR1, all);
		ask_next(side, SANDGATE__GUEST_FRAME__BODY_DONE);
		if (all)
			ask_until(c, "child");
		else
			ask_until(c, "leader");
		ask_forget(t, e.exec_id);
	}
}

static void bad_number(const struct target *t)
{
	static const unsigned numbers[] = {0, 65, 4000000000u};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		Sandgate__Exec e = ask_sh("sleep 60");
		ask_start(t, &e);
		struct conn *side = control(t, e.exec_id);
		send_signal(side, numbers[i], false);
		ask_next_refused(side, ERR_INVALID_FIELD);
		expect(ask_state(t, e.exec_id)->phase != SANDGATE__EXEC_PHASE__PHASE_FINISHED,
		       "signal %u ended it", numbers[i]);
		ask_forget(t, e.exec_id);
	}
}

static void kill_from_aside(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60");
	struct conn *c = ask_start(t, &e);
	struct conn *side = control(t, e.exec_id);

	ask_cancel(side, SANDGATE__CANCEL_REASON__CANCEL_KILLED);
	ask_next(side, SANDGATE__GUEST_FRAME__BODY_DONE);
	struct ask_end end = ask_end(c, 0);
	expect(end.result->outcome == SANDGATE__OUTCOME__OUTCOME_CANCELLED &&
	           end.result->cancel_reason == SANDGATE__CANCEL_REASON__CANCEL_KILLED,
	       "outcome %d, reason %d", end.result->outcome, end.result->cancel_reason);
}

static void kill_of_leftovers(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60 & echo $!");
	struct ask_end end = ask_run(t, &e);
	char cmd[96] =
	    "i=0; while kill -0 $PID; do sleep 0.05; i=$((i+1)); [ $i -lt 60 ] || exit 1; done";
	Sandgate__EnvVar pid = SANDGATE__ENV_VAR__INIT, *env[] = {&pid};

	if (!ask_feature(t, "cgroup2"))
		skip("no cgroup v2: leftovers are not tracked");
	struct conn *side = control(t, e.exec_id);
	ask_cancel(side, SANDGATE__CANCEL_REASON__CANCEL_KILLED);
	ask_next(side, SANDGATE__GUEST_FRAME__BODY_DONE);
	Sandgate__Exec probe = ask_sh(cmd);
	pid.name = ask_text("PID");
	pid.value.data = end.bytes[0];
	pid.value.len = end.len[0] - 1;
	probe.env = env;
	probe.n_env = 1;
	end = ask_run(t, &probe);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	expect(ask_state(t, e.exec_id)->result->outcome == SANDGATE__OUTCOME__OUTCOME_EXITED,
	       "the kill changed the outcome of a finished exec");
}

static const struct check checks[] = {
    {70, "a signal reaches the leader", delivered},
    {54, "dying of a signal is signaled", dying_of_it_is_signaled},
    {70, "a signal reaches all when asked", all_or_leader},
    {70, "a number that is no signal is refused", bad_number},
    {64, "a control session kills", kill_from_aside},
    {74, "killing a finished exec kills its leftovers", kill_of_leftovers},
};
CHECK_TABLE(checks_signal, checks);
