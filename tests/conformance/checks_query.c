/* Info, Ping, Metrics, ExecInfo, ListExecs, ForgetExec, and that nothing piles up. */
#include <string.h>

#include "proto/limits.h"
#include "tests/conformance/ask.h"

static Sandgate__MetricsReply *metrics(const struct target *t)
{
	Sandgate__Metrics body = SANDGATE__METRICS__INIT;

	return ask_once(t, SANDGATE__OPEN__OP_METRICS, &body,
	                SANDGATE__GUEST_FRAME__BODY_METRICS)
	    ->metrics;
}

static void info(const struct target *t)
{
	Sandgate__Info body = SANDGATE__INFO__INIT;
	struct conn *c = conn_dial(t);

	conn_send(c, ask_open(t, SANDGATE__OPEN__OP_INFO, &body));
	Sandgate__Opened *o = ask_next(c, SANDGATE__GUEST_FRAME__BODY_OPENED)->opened;
	Sandgate__InfoReply *i = ask_next(c, SANDGATE__GUEST_FRAME__BODY_INFO)->info;
	expect(*i->agent_version && *i->kernel && *i->arch, "an empty version, kernel or arch");
	expect(i->protocol_version == PROTOCOL_VERSION, "version %u", i->protocol_version);
	expect(i->memory_bytes > 0 && i->cpus > 0 && i->pid > 0, "no memory, cpus or pid");
	expect(i->agent_instance.len == o->agent_instance.len &&
	           memcmp(i->agent_instance.data, o->agent_instance.data,
	                  o->agent_instance.len) == 0,
	       "Info and Opened name different instances");
	expect(i->n_features == o->n_features, "Info and Opened list different features");
}

static void ping(const struct target *t)
{
	Sandgate__Ping body = SANDGATE__PING__INIT;
	uint64_t times[2];

	for (int i = 0; i < 2; i++)
		times[i] = ask_once(t, SANDGATE__OPEN__OP_PING, &body,
		                    SANDGATE__GUEST_FRAME__BODY_PONG)
		               ->pong->monotonic_us;
	expect(times[1] > times[0], "the monotonic clock does not go on");
}

/* What they are once they stand still: what an agent does in idle time is done, and its host
 * has opened what sessions it wants. */
static Sandgate__MetricsReply *settled_metrics(const struct target *t)
{
	Sandgate__MetricsReply *now = metrics(t), *before;

	for (int i = 0, still = 0; i < 500 && still < 30; i++, ask_pause()) {
		before = now;
		now = metrics(t);
		still = now->leaves == before->leaves && now->agent_fds == before->agent_fds
		            ? still + 1
		            : 0;
	}
	return now;
}

static void counts(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo up; sleep 60");
	Sandgate__MetricsReply *before = settled_metrics(t);

	ask_until(ask_start(t, &e), "up");
	Sandgate__MetricsReply *m = metrics(t);
	expect(m->execs_running == before->execs_running + 1, "%u running after %u",
	       m->execs_running, before->execs_running);
	expect(m->sessions == before->sessions + 1, "%u sessions after %u", m->sessions,
	       before->sessions);
	expect(m->memory_total_bytes >= m->memory_available_bytes && m->agent_rss_bytes > 0 &&
	           m->agent_fds > 0,
	       "memory or descriptors are not told");
	ask_forget(t, e.exec_id);
}

static void unknown_exec(const struct target *t)
{
	Sandgate__ExecInfo state = SANDGATE__EXEC_INFO__INIT;
	Sandgate__Attach attach = SANDGATE__ATTACH__INIT;

	state.exec_id = attach.exec_id = ask_id();
	ask_refused(t, SANDGATE__OPEN__OP_EXEC_INFO, &state, ERR_EXEC_NOT_FOUND);
	ask_refused(t, SANDGATE__OPEN__OP_ATTACH, &attach, ERR_EXEC_NOT_FOUND);
	attach.role = SANDGATE__ROLE__ROLE_CONTROL;
	ask_refused(t, SANDGATE__OPEN__OP_ATTACH, &attach, ERR_EXEC_NOT_FOUND);
}

static void state_of_running(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo up; sleep 60");
	struct conn *c = ask_start(t, &e);

	ask_until(c, "up");
	Sandgate__ExecState *s = ask_state(t, e.exec_id);
	expect(s->phase == SANDGATE__EXEC_PHASE__PHASE_RUNNING, "phase %d", s->phase);
	expect(!s->result && s->finished_at_ms == 0, "a running exec has a result");
	expect(s->end_sequence == 3 && s->started_at_ms > 0, "end %llu, started %llu",
	       (unsigned long long)s->end_sequence, (unsigned long long)s->started_at_ms);
	expect(s->has_deadline && !s->detached, "has_deadline %d, detached %d", s->has_deadline,
	       s->detached);
	expect(s->request_digest.len == e.request_digest.len, "the digest is not kept");
	ask_forget(t, e.exec_id);
}

static void state_of_finished(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo out; exit 7");

	e.keep_output = true;
	ask_run(t, &e);
	Sandgate__ExecState *s = ask_state(t, e.exec_id);
	expect(s->phase == SANDGATE__EXEC_PHASE__PHASE_FINISHED && s->result, "not finished");
	expect(s->result->exit_code == 7 && s->result->stdout_bytes == 4, "another result");
	expect(s->finished_at_ms >= s->started_at_ms &&
	           s->retained_until_ms > s->finished_at_ms,
	       "the times are out of order");
}

/* ListExecs comes in several frames when there are many execs, and ends with Done. */
static void list(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60");
	Sandgate__ListExecs body = SANDGATE__LIST_EXECS__INIT;
	Sandgate__GuestFrame *m;
	size_t found = 0;

	ask_start(t, &e);
	struct conn *c = ask_session(t, SANDGATE__OPEN__OP_LIST_EXECS, &body);
	while ((m = conn_recv(c, CONN_WAIT_MS)) &&
	       m->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_LIST)
		for (size_t i = 0; i < m->exec_list->n_execs; i++)
			found += strcmp(m->exec_list->execs[i]->exec_id, e.exec_id) == 0;
	expect(m && m->body_case == SANDGATE__GUEST_FRAME__BODY_DONE,
	       "the list does not end with done");
	expect(found == 1, "the running exec is listed %zu times", found);
	ask_forget(t, e.exec_id);
}

/* A session that follows: past the list. */
static struct conn *follow(const struct target *t)
{
	Sandgate__ListExecs body = SANDGATE__LIST_EXECS__INIT;
	Sandgate__GuestFrame *m;

	if (!ask_feature(t, "follow"))
		skip("the agent does not tell of ends");
	body.follow = true;
	struct conn *c = ask_session(t, SANDGATE__OPEN__OP_LIST_EXECS, &body);
	while ((m = conn_recv(c, CONN_WAIT_MS)) &&
	       m->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_LIST)
		;
	expect(m && m->body_case == SANDGATE__GUEST_FRAME__BODY_DONE,
	       "the list does not end with done");
	return c;
}

/* The next end of an exec of this id; others of the host's may be told between. */
static Sandgate__Result *followed_end(struct conn *c, const char *id)
{
	for (;;) {
		Sandgate__ExecState *s =
		    ask_next(c, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE)->exec_state;
		expect(s->phase == SANDGATE__EXEC_PHASE__PHASE_FINISHED && s->result,
		       "told of an exec that has not ended");
		if (strcmp(s->exec_id, id) == 0)
			return s->result;
	}
}

static void ends_are_followed(const struct target *t)
{
	Sandgate__Exec detached = ask_sh("exit 7"), owned = ask_sh("exit 8"),
	               never = ask_argv((const char *const[]){"/no/such/program", NULL}),
	               forgotten = ask_sh("sleep 60");
	struct conn *c = follow(t);

	detached.detached = true;
	ask_start(t, &detached);
	expect(followed_end(c, detached.exec_id)->exit_code == 7, "another exit code");
	ask_run(t, &owned);
	expect(followed_end(c, owned.exec_id)->exit_code == 8, "another exit code");
	ask_run(t, &never);
	expect(followed_end(c, never.exec_id)->outcome ==
	           SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED,
	       "another outcome");
	ask_start(t, &forgotten);
	ask_forget(t, forgotten.exec_id);
	expect(followed_end(c, forgotten.exec_id)->cancel_reason ==
	           SANDGATE__CANCEL_REASON__CANCEL_KILLED,
	       "another reason");
}

/* What ended before is in the list, so that nothing is missed in between. */
static void ends_before_are_listed(const struct target *t)
{
	Sandgate__ListExecs body = SANDGATE__LIST_EXECS__INIT;
	Sandgate__Exec e = ask_sh("exit 9");
	bool found = false;

	conn_close(follow(t));
	e.keep_output = true;
	ask_run(t, &e);
	body.follow = true;
	struct conn *c = ask_session(t, SANDGATE__OPEN__OP_LIST_EXECS, &body);
	for (;;) {
		Sandgate__GuestFrame *m = conn_recv(c, CONN_WAIT_MS);
		expect(m, "closed before the list's end");
		if (m->body_case != SANDGATE__GUEST_FRAME__BODY_EXEC_LIST)
			break;
		for (size_t i = 0; i < m->exec_list->n_execs; i++)
			found =
			    found || strcmp(m->exec_list->execs[i]->exec_id, e.exec_id) == 0;
	}
	expect(found, "an exec that has ended is not listed");
}

static void forget_running(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60");
	Sandgate__ExecInfo info_body = SANDGATE__EXEC_INFO__INIT;
	struct conn *c = ask_start(t, &e);

	ask_forget(t, e.exec_id);
	struct ask_end end = ask_end(c, 0);
	expect(end.result->outcome == SANDGATE__OUTCOME__OUTCOME_CANCELLED, "outcome %d",
	       end.result->outcome);
	info_body.exec_id = e.exec_id;
	ask_refused(t, SANDGATE__OPEN__OP_EXEC_INFO, &info_body, ERR_EXEC_NOT_FOUND);
}

/* Leaves, descriptors, sessions and running execs return to where they were; the host may
 * have opened one spare session meanwhile. */
static void baseline(const struct target *t)
{
	Sandgate__MetricsReply *before, *after;

	ask_run_sh(t, "true");
	before = settled_metrics(t);
	for (int i = 0; i < 30; i++) {
		Sandgate__Exec e = ask_sh(i % 3 ? "sleep 60 & sleep 60" : "exit 3");
		e.timeout_ms = i % 3 == 1 ? 500 : 10000;
		e.grace_ms = 0;
		struct conn *c = ask_start(t, &e);
		if (i % 3 == 2)
			ask_cancel(c, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
		ask_end(c, 0);
		conn_close(c);
		ask_forget(t, e.exec_id);
	}
	for (int i = 0; i < 500; i++, ask_pause()) {
		after = metrics(t);
		if (after->leaves <= before->leaves &&
		    after->agent_fds <= before->agent_fds + 1 &&
		    after->sessions <= before->sessions + 1 &&
		    after->execs_running <= before->execs_running)
			return;
	}
	fail("before and after: %u and %u leaves, %u and %u descriptors, %u and %u sessions, "
	     "%u and %u running",
	     before->leaves, after->leaves, before->agent_fds, after->agent_fds,
	     before->sessions, after->sessions, before->execs_running, after->execs_running);
}

static const struct check checks[] = {
    {85, "Info tells who the agent is", info},
    {85, "Ping answers with a monotonic clock", ping},
    {85, "Metrics counts execs and sessions", counts},
    {60, "an unknown exec is not found", unknown_exec},
    {83, "ExecInfo tells of a running exec", state_of_running},
    {83, "ExecInfo tells of a finished exec", state_of_finished},
    {82, "ListExecs lists an exec once", list},
    {82, "a session that follows is told of each end", ends_are_followed},
    {82, "what has ended before is in the list", ends_before_are_listed},
    {81, "ForgetExec kills what runs and drops it", forget_running},
    {81, "leaves, descriptors and sessions return to the baseline", baseline},
};
CHECK_TABLE(checks_query, checks);
