/* Prepare: what an agent does and refuses until it is resumed, and what goes on meanwhile. */
#include "proto/limits.h"
#include "tests/conformance/snapshot.h"

static void prepared_takes_no_work(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo x");
	Sandgate__Attach a = SANDGATE__ATTACH__INIT;
	Sandgate__ListExecs list = SANDGATE__LIST_EXECS__INIT;
	Sandgate__Metrics metrics = SANDGATE__METRICS__INIT;

	snapshot_begin(t);
	snapshot_prepare(t);
	a.exec_id = e.exec_id;
	ask_refused(t, SANDGATE__OPEN__OP_EXEC, &e, ERR_INVALID_STATE);
	ask_refused(t, SANDGATE__OPEN__OP_ATTACH, &a, ERR_INVALID_STATE);
	ask_refused(t, SANDGATE__OPEN__OP_LIST_EXECS, &list, ERR_INVALID_STATE);
	ask_alive(t);
	ask_once(t, SANDGATE__OPEN__OP_METRICS, &metrics, SANDGATE__GUEST_FRAME__BODY_METRICS);
	expect(snapshot_info(t)->prepared, "Info does not say that it is prepared");
	snapshot_prepare(t);
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	expect(!snapshot_info(t)->prepared, "Info says that it is prepared after Resume");
	struct ask_end end = ask_run(t, &e);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "x\n");
}

static void silent_sessions_are_closed(const struct target *t)
{
	snapshot_begin(t);
	struct conn *silent = conn_dial(t);
	ask_alive(t); /* it was accepted before */
	snapshot_prepare(t);
	expect(conn_readable(silent, CONN_WAIT_MS) && !conn_recv(silent, 0),
	       "a session without Open outlives Prepare");
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
}

static void followers_are_closed(const struct target *t)
{
	Sandgate__ListExecs list = SANDGATE__LIST_EXECS__INIT;
	Sandgate__GuestFrame *m;

	snapshot_begin(t);
	if (!ask_feature(t, "follow"))
		skip("the agent does not tell of ends");
	list.follow = true;
	struct conn *c = ask_session(t, SANDGATE__OPEN__OP_LIST_EXECS, &list);
	while ((m = conn_recv(c, CONN_WAIT_MS)) &&
	       m->body_case != SANDGATE__GUEST_FRAME__BODY_DONE)
		;
	snapshot_prepare(t);
	expect(conn_readable(c, CONN_WAIT_MS) && !conn_recv(c, 0),
	       "a session that follows outlives Prepare");
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
}

static void output_goes_on(const struct target *t)
{
	enum { TOTAL = 4000000 };
	Sandgate__Exec e = ask_sh("head -c 4000000 /dev/zero");
	uint64_t end = 0;

	snapshot_begin(t);
	e.timeout_ms = 60000;
	struct conn *c = ask_start(t, &e);
	for (int i = 0; i < 3; i++) {
		struct conn *p = snapshot_begin_prepare(t);
		end = snapshot_read_suspended(c, end);
		snapshot_end_prepare(t, p);
		snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
		c = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_STANDBY, end);
		Sandgate__GuestFrame *g = ask_next(c, SANDGATE__GUEST_FRAME__BODY_STARTED);
		expect(g->started->owner, "the owner did not become one again");
	}
	struct ask_end all = ask_end(c, end);
	ask_expect(&all, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	expect(all.gap == 0 && all.sequence == TOTAL, "%llu bytes, %llu lost",
	       (unsigned long long)all.sequence, (unsigned long long)all.gap);
}

static void watchers_and_controllers_are_suspended(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 60");

	snapshot_begin(t);
	struct conn *owner = ask_start_until(t, &e, "one");
	struct conn *watcher = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OUTPUT, 0);
	struct conn *control = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_CONTROL, 0);
	ask_until(watcher, "one");
	snapshot_prepare(t);
	snapshot_read_suspended(owner, 4);
	snapshot_read_suspended(watcher, 4);
	snapshot_read_suspended(control, 0);
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	ask_forget(t, e.exec_id);
}

static void pause_ms(int ms)
{
	for (int i = 0; i < ms / 10; i++)
		ask_pause();
}

/* `e` prints "one" and a line's end, and is suspended then. */
static void start_and_suspend(const struct target *t, Sandgate__Exec *e)
{
	struct conn *c = ask_start_until(t, e, "one\n");
	snapshot_prepare(t);
	snapshot_read_suspended(c, 4);
}

static void nobody_is_lost(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 4; echo two");

	snapshot_begin(t);
	e.link_grace_ms = 1500;
	start_and_suspend(t, &e);
	pause_ms(2000);
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	struct ask_end end =
	    ask_end(ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_STANDBY, 4), 4);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "two\n");
}

static void who_stays_away_is_lost(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 60");

	snapshot_begin(t);
	e.link_grace_ms = 300;
	start_and_suspend(t, &e);
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	ask_cancelled(t, e.exec_id, SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
}

/* It prints much more than is retained of it. */
static void suspended_exec_is_held(const struct target *t)
{
	enum { TOTAL = 2000000 };
	Sandgate__Exec e = ask_sh("echo; head -c 1999999 /dev/zero");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	snapshot_begin(t);
	limits.output_bytes = ask_number(4096);
	e.limits = &limits;
	e.timeout_ms = 60000;
	e.link_grace_ms = 20000;
	struct conn *c = ask_start_until(t, &e, "\n");
	struct conn *p = snapshot_begin_prepare(t);
	Sandgate__GuestFrame *g;
	do {
		g = conn_recv(c, CONN_WAIT_MS);
	} while (g && g->body_case == SANDGATE__GUEST_FRAME__BODY_OUTPUT);
	expect(g && g->body_case == SANDGATE__GUEST_FRAME__BODY_SUSPENDED, "no Suspended");
	uint64_t end = g->suspended->sequence;
	snapshot_end_prepare(t, p);
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	pause_ms(500);
	struct ask_end all =
	    ask_end(ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_STANDBY, end), end);
	expect(all.gap == 0 && all.sequence == TOTAL, "%llu bytes, %llu lost",
	       (unsigned long long)all.sequence, (unsigned long long)all.gap);
}

static void deadline_runs_on(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 60");

	snapshot_begin(t);
	e.timeout_ms = 3000;
	start_and_suspend(t, &e);
	pause_ms(5000);
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	Sandgate__ExecState *s = ask_state(t, e.exec_id);
	expect(s->result && s->result->outcome == SANDGATE__OUTCOME__OUTCOME_TIMED_OUT,
	       "it is not timed out by now");
	expect(s->result->duration_ms < 5000, "after %llu ms",
	       (unsigned long long)s->result->duration_ms);
}

static const struct check checks[] = {
    {90, "a prepared agent takes no work and answers questions", prepared_takes_no_work},
    {90, "a session without Open ends with Prepare", silent_sessions_are_closed},
    {90, "a session that follows ends with Prepare", followers_are_closed},
    {91, "output goes on where it was suspended", output_goes_on},
    {91, "watchers and controllers are suspended, too", watchers_and_controllers_are_suspended},
    {92, "no owner is lost while the agent is prepared", nobody_is_lost},
    {92, "an owner that does not come back after Resume is lost", who_stays_away_is_lost},
    {92, "a suspended exec is held for its owner", suspended_exec_is_held},
    {92, "a deadline runs on while the agent is prepared", deadline_runs_on},
};
CHECK_TABLE(checks_snapshot, checks);
