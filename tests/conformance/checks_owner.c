/* Roles, and what happens when a session goes: back-pressure, takeover, link grace. */
#include "proto/limits.h"
#include "tests/conformance/ask.h"

/* Wait until the exec's output stands still: its end is the same in ten looks in a row. */
static uint64_t standstill(const struct target *t, const char *id)
{
	uint64_t end = 0;

	for (int i = 0, same = 0; i < 800; i++, ask_pause()) {
		uint64_t now = ask_state(t, id)->end_sequence;
		same = now > 0 && now == end ? same + 1 : 0;
		end = now;
		if (same == 10)
			return end;
	}
	fail("its output does not stand still: %llu bytes by now", (unsigned long long)end);
}

static void slow_owner_holds(const struct target *t)
{
	enum { TOTAL = 20000000 };
	Sandgate__Exec e = ask_sh("exec head -c 20000000 /dev/zero");

	e.timeout_ms = 60000; /* an emulated guest moves this slowly */
	struct conn *c = ask_start(t, &e);
	uint64_t end = standstill(t, e.exec_id);
	expect(end < 16 * MIB, "%llu bytes were read for an owner that reads nothing",
	       (unsigned long long)end);
	struct ask_end all = ask_run_sh(t, "echo ok");
	ask_expect_text(&all, SANDGATE__STREAM__STREAM_STDOUT, "ok\n");
	all = ask_end(c, 0);
	ask_expect(&all, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	expect(all.len[0] == TOTAL && all.gap == 0, "%zu bytes, %llu lost", all.len[0],
	       (unsigned long long)all.gap);
}

static void slow_owner_times_out(const struct target *t)
{
	Sandgate__Exec e = ask_sh("yes");

	e.timeout_ms = 1500;
	ask_start(t, &e);
	Sandgate__ExecState *s = ask_finished(t, e.exec_id);
	expect(s->result->outcome == SANDGATE__OUTCOME__OUTCOME_TIMED_OUT, "outcome %d",
	       s->result->outcome);
}

static void slow_watcher_stalls_nobody(const struct target *t)
{
	enum { TOTAL = 30000000 };
	Sandgate__Exec e = ask_sh("read go; exec head -c 30000000 /dev/zero");

	e.timeout_ms = 60000;
	e.stdin_open = true;
	struct conn *owner = ask_start(t, &e);
	struct conn *watcher = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OUTPUT, 0);
	ask_feed(owner, "\n");
	struct ask_end end = ask_end(owner, 0);
	expect(end.len[0] == TOTAL, "the owner got %zu bytes, %llu lost, outcome %d",
	       end.len[0], (unsigned long long)end.gap, (int)end.result->outcome);
	end = ask_end(watcher, 0);
	expect(end.gap + end.len[0] == TOTAL, "the watcher got %zu and %llu lost", end.len[0],
	       (unsigned long long)end.gap);
}

static void watcher_goes(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo up; sleep 0.5; echo done");
	struct conn *owner = ask_start(t, &e);
	struct conn *watcher = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OUTPUT, 0);

	ask_until(watcher, "up");
	conn_close(watcher);
	struct ask_end end = ask_end(owner, 0);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
}

static void watcher_may_not_cancel(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 0.5; echo done");
	struct conn *owner = ask_start(t, &e);
	struct conn *watcher = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OUTPUT, 0);

	ask_cancel(watcher, SANDGATE__CANCEL_REASON__CANCEL_KILLED);
	ask_next_refused(watcher, ERR_NONE);
	struct ask_end end = ask_end(owner, 0);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
}

static void takeover(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; read x; echo two");

	e.stdin_open = true;
	struct conn *first = ask_start_until(t, &e, "one");
	struct conn *second = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OWNER, 4);
	while (conn_recv(first, CONN_WAIT_MS))
		;
	conn_close(first);
	ask_feed(second, "\n");
	struct ask_end end = ask_end(second, 4);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "two\n");
}

static void lost_link_then_cancelled(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo up; sleep 60");

	e.link_grace_ms = 500;
	struct conn *c = ask_start_until(t, &e, "up");
	conn_close(c);
	Sandgate__ExecState *s =
	    ask_cancelled(t, e.exec_id, SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
	expect(s->result->duration_ms >= 450, "it was not awaited: %llu ms",
	       (unsigned long long)s->result->duration_ms);
}

/* A start and its repetition, both up to Started. */
static void start_twice(const struct target *t, Sandgate__Exec *e, struct conn *c[2])
{
	c[0] = ask_start(t, e);
	c[1] = ask_session(t, SANDGATE__OPEN__OP_EXEC, e);
	Sandgate__Started *s = ask_next(c[1], SANDGATE__GUEST_FRAME__BODY_STARTED)->started;
	expect(s->existing && !s->owner, "the repeated start is new, or the owner");
}

static void lost_link_passed_on(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 0.5; exit 3");
	struct conn *c[2];

	e.link_grace_ms = 0;
	start_twice(t, &e, c);
	conn_close(c[0]);
	struct ask_end end = ask_end(c[1], 0);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 3);
}

static void client_gone_passed_on(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 0.5; exit 3");
	struct conn *c[2];

	start_twice(t, &e, c);
	ask_cancel(c[0], SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	conn_close(c[0]);
	struct ask_end end = ask_end(c[1], 0);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 3);
}

static void all_clients_gone(const struct target *t)
{
	for (int first = 0; first < 2; first++) {
		Sandgate__Exec e = ask_sh("sleep 60");
		struct conn *c[2];

		start_twice(t, &e, c);
		for (int i = 0; i < 2; i++) {
			struct conn *goes = c[(first + i) % 2];
			ask_cancel(goes, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
			ask_next(goes, SANDGATE__GUEST_FRAME__BODY_DONE);
			conn_close(goes);
		}
		ask_cancelled(t, e.exec_id, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	}
}

static void lost_link_taken_up(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 1; echo two");

	e.link_grace_ms = 5000;
	struct conn *c = ask_start_until(t, &e, "one");
	conn_close(c);
	struct ask_end end =
	    ask_end(ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OWNER, 4), 4);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "two\n");
}

static void lost_link_ends_in_time(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo up; sleep 0.3; exit 9");

	e.link_grace_ms = 20000;
	struct conn *c = ask_start_until(t, &e, "up");
	conn_close(c);
	Sandgate__ExecState *s = ask_finished(t, e.exec_id);
	expect(s->result->exit_code == 9, "exit code %d", s->result->exit_code);
}

static void client_gone_detaches(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 0.5; echo two");

	e.on_disconnect = SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH;
	struct conn *c = ask_start_until(t, &e, "one");
	ask_cancel(c, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	conn_close(c);
	Sandgate__ExecState *s = ask_finished(t, e.exec_id);
	expect(s->result->outcome == SANDGATE__OUTCOME__OUTCOME_EXITED, "outcome %d",
	       s->result->outcome);
	struct ask_end end =
	    ask_end(ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OUTPUT, 0), 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "one\ntwo\n");
}

static void killed_though_detached(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60");

	e.on_disconnect = SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH;
	struct conn *c = ask_start(t, &e);
	ask_cancel(c, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED);
	ask_cancelled(t, e.exec_id, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED);
}

static void detached_runs_on(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 0.3; echo out");

	e.detached = true;
	e.link_grace_ms = 0;
	struct conn *c = ask_start(t, &e);
	expect(!conn_recv(c, CONN_WAIT_MS), "the session goes on after Started");
	struct ask_end end =
	    ask_end(ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OUTPUT, 0), 0);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "out\n");
}

static const struct check checks[] = {
    {42, "an owner that does not read holds its process, and nobody else", slow_owner_holds},
    {52, "an owner that does not read does not hold the timeout", slow_owner_times_out},
    {43, "a watcher that does not read stalls nobody", slow_watcher_stalls_nobody},
    {43, "a watcher's going means nothing", watcher_goes},
    {64, "a watcher may not cancel", watcher_may_not_cancel},
    {62, "a second owner takes over", takeover},
    {76, "a lost link is awaited, then cancelled as bridge_lost", lost_link_then_cancelled},
    {76, "a lost link passes the exec to a repeated start", lost_link_passed_on},
    {76, "a lost link can be taken up at its offset", lost_link_taken_up},
    {80, "an exec that ends without its link keeps its result", lost_link_ends_in_time},
    {75, "client_gone passes the exec to a repeated start", client_gone_passed_on},
    {75, "when all clients that started an exec are gone it ends", all_clients_gone},
    {75, "client_gone leaves an exec running that asked for detach", client_gone_detaches},
    {75, "any other cancel ends an exec that asked for detach", killed_though_detached},
    {30, "a detached exec has no owner and runs on", detached_runs_on},
};
CHECK_TABLE(checks_owner, checks);
