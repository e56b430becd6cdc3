/*
 * Prepare and Resume. The agent under judgement is told that it is a copy again and again;
 * that it runs on where it is all the time is a case the protocol allows. An agent that does
 * not manage its machine says so, and is judged by the rest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/limits.h"
#include "tests/conformance/ask.h"

#define BYTES(s) ((ProtobufCBinaryData){sizeof(s) - 1, (uint8_t *)(s)})

static Sandgate__InfoReply *info(const struct target *t)
{
	Sandgate__Info m = SANDGATE__INFO__INIT;
	return ask_once(t, SANDGATE__OPEN__OP_INFO, &m, SANDGATE__GUEST_FRAME__BODY_INFO)->info;
}

static uint64_t now_ms(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void pause_ms(int ms)
{
	for (int i = 0; i < ms / 10; i++)
		ask_pause();
}

/* The next Resume in line, with the right time. */
static Sandgate__Resume *new_resume(const struct target *t, Sandgate__ResumeRole role)
{
	static Sandgate__Resume m;
	static uint8_t entropy[RESUME_ENTROPY_MIN];

	sandgate__resume__init(&m);
	m.generation = info(t)->generation + 1;
	m.role = role;
	m.wall_clock_ms = now_ms();
	for (size_t i = 0; i < sizeof(entropy); i++)
		entropy[i] = (uint8_t)(random() >> 8);
	if (role == SANDGATE__RESUME_ROLE__RESUME_CLONE)
		m.entropy = (ProtobufCBinaryData){sizeof(entropy), entropy};
	return &m;
}

static Sandgate__Resumed *send_resume(const struct target *t, Sandgate__Resume *m)
{
	struct conn *c = ask_session(t, SANDGATE__OPEN__OP_RESUME, m);
	Sandgate__GuestFrame *g = conn_recv(c, CONN_WAIT_MS);

	if (g && g->body_case == SANDGATE__GUEST_FRAME__BODY_REFUSED &&
	    strcmp(g->refused->field, "entropy") == 0)
		skip("the agent may not give its kernel entropy");
	expect(g && g->body_case == SANDGATE__GUEST_FRAME__BODY_RESUMED, "no Resumed: %d",
	       g ? (int)g->body_case : 0);
	expect(g->resumed->generation == m->generation, "generation %llu",
	       (unsigned long long)g->resumed->generation);
	expect(!conn_recv(c, CONN_WAIT_MS), "a frame follows Resumed");
	return g->resumed;
}

static Sandgate__Resumed *resume(const struct target *t, Sandgate__ResumeRole role)
{
	return send_resume(t, new_resume(t, role));
}

static bool has_failed(const Sandgate__Resumed *r, const char *step)
{
	for (size_t i = 0; i < r->n_failed; i++)
		if (strcmp(r->failed[i], step) == 0)
			return true;
	return false;
}

/* Every check begins here: an agent that another check left prepared works again. */
static void begin(const struct target *t)
{
	if (!ask_feature(t, "snapshot"))
		skip("the agent knows no snapshots");
	srandom((unsigned)now_ms());
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
}

static struct conn *begin_prepare(const struct target *t)
{
	Sandgate__Prepare m = SANDGATE__PREPARE__INIT;
	return ask_session(t, SANDGATE__OPEN__OP_PREPARE, &m);
}

static void end_prepare(const struct target *t, struct conn *c)
{
	Sandgate__GuestFrame *g = ask_next(c, SANDGATE__GUEST_FRAME__BODY_PREPARED);
	expect(g->prepared->generation == info(t)->generation, "another generation");
	expect(!conn_recv(c, CONN_WAIT_MS), "a frame follows Prepared");
}

static void prepare(const struct target *t)
{
	end_prepare(t, begin_prepare(t));
}

/* The number of bytes up to Suspended, which must name their end, and be the last frame. */
static uint64_t read_suspended(struct conn *c, uint64_t from)
{
	uint64_t end = from;
	Sandgate__GuestFrame *g;

	for (;; protobuf_c_message_free_unpacked(&g->base, NULL)) {
		g = conn_recv(c, CONN_WAIT_MS);
		expect(g, "closed without Suspended");
		if (g->body_case == SANDGATE__GUEST_FRAME__BODY_SUSPENDED)
			break;
		if (g->body_case != SANDGATE__GUEST_FRAME__BODY_OUTPUT)
			continue;
		expect(g->output->sequence == end, "output at %llu where %llu was due",
		       (unsigned long long)g->output->sequence, (unsigned long long)end);
		end += g->output->data.len;
	}
	expect(g->suspended->sequence == end, "suspended at %llu where %llu was due",
	       (unsigned long long)g->suspended->sequence, (unsigned long long)end);
	expect(!conn_recv(c, CONN_WAIT_MS), "a frame follows Suspended");
	return end;
}

/* ---- Prepare ---- */

static void prepared_takes_no_work(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo x");
	Sandgate__Attach a = SANDGATE__ATTACH__INIT;
	Sandgate__ListExecs list = SANDGATE__LIST_EXECS__INIT;
	Sandgate__Metrics metrics = SANDGATE__METRICS__INIT;

	begin(t);
	prepare(t);
	a.exec_id = e.exec_id;
	ask_refused(t, SANDGATE__OPEN__OP_EXEC, &e, ERR_INVALID_STATE);
	ask_refused(t, SANDGATE__OPEN__OP_ATTACH, &a, ERR_INVALID_STATE);
	ask_refused(t, SANDGATE__OPEN__OP_LIST_EXECS, &list, ERR_INVALID_STATE);
	ask_alive(t);
	ask_once(t, SANDGATE__OPEN__OP_METRICS, &metrics, SANDGATE__GUEST_FRAME__BODY_METRICS);
	expect(info(t)->prepared, "Info does not say that it is prepared");
	prepare(t);
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	expect(!info(t)->prepared, "Info says that it is prepared after Resume");
	struct ask_end end = ask_run(t, &e);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "x\n");
}

static void silent_sessions_are_closed(const struct target *t)
{
	begin(t);
	struct conn *silent = conn_dial(t);
	ask_alive(t); /* it was accepted before */
	prepare(t);
	expect(conn_readable(silent, CONN_WAIT_MS) && !conn_recv(silent, 0),
	       "a session without Open outlives Prepare");
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
}

static void followers_are_closed(const struct target *t)
{
	Sandgate__ListExecs list = SANDGATE__LIST_EXECS__INIT;
	Sandgate__GuestFrame *m;

	begin(t);
	if (!ask_feature(t, "follow"))
		skip("the agent does not tell of ends");
	list.follow = true;
	struct conn *c = ask_session(t, SANDGATE__OPEN__OP_LIST_EXECS, &list);
	while ((m = conn_recv(c, CONN_WAIT_MS)) &&
	       m->body_case != SANDGATE__GUEST_FRAME__BODY_DONE)
		;
	prepare(t);
	expect(conn_readable(c, CONN_WAIT_MS) && !conn_recv(c, 0),
	       "a session that follows outlives Prepare");
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
}

static void output_goes_on(const struct target *t)
{
	enum { TOTAL = 4000000 };
	Sandgate__Exec e = ask_sh("head -c 4000000 /dev/zero");
	uint64_t end = 0;

	begin(t);
	e.timeout_ms = 60000;
	struct conn *c = ask_start(t, &e);
	for (int i = 0; i < 3; i++) {
		struct conn *p = begin_prepare(t);
		end = read_suspended(c, end);
		end_prepare(t, p);
		resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
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

	begin(t);
	struct conn *owner = ask_start(t, &e);
	ask_until(owner, "one");
	struct conn *watcher = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_OUTPUT, 0);
	struct conn *control = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_CONTROL, 0);
	ask_until(watcher, "one");
	prepare(t);
	read_suspended(owner, 4);
	read_suspended(watcher, 4);
	read_suspended(control, 0);
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	ask_forget(t, e.exec_id);
}

static void nobody_is_lost(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 2; echo two");

	begin(t);
	e.link_grace_ms = 500;
	struct conn *c = ask_start(t, &e);
	ask_until(c, "one");
	prepare(t);
	read_suspended(c, 4);
	pause_ms(1000);
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	c = ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_STANDBY, 4);
	struct ask_end end = ask_end(c, 4);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "two\n");
}

static void who_stays_away_is_lost(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 60");

	begin(t);
	e.link_grace_ms = 300;
	struct conn *c = ask_start(t, &e);
	ask_until(c, "one");
	prepare(t);
	read_suspended(c, 4);
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	Sandgate__ExecState *s = ask_finished(t, e.exec_id);
	expect(s->result->cancel_reason == SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST,
	       "outcome %d, reason %d", s->result->outcome, s->result->cancel_reason);
}

/* It prints much more than is retained of it. */
static void suspended_exec_is_held(const struct target *t)
{
	enum { TOTAL = 2000000 };
	Sandgate__Exec e = ask_sh("echo; head -c 1999999 /dev/zero");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;

	begin(t);
	limits.output_bytes = ask_number(4096);
	e.limits = &limits;
	e.timeout_ms = 60000;
	e.link_grace_ms = 20000;
	struct conn *c = ask_start(t, &e);
	ask_until(c, "\n");
	struct conn *p = begin_prepare(t);
	uint64_t end = 1;
	for (Sandgate__GuestFrame *g; (g = conn_recv(c, CONN_WAIT_MS)) &&
	                              g->body_case == SANDGATE__GUEST_FRAME__BODY_OUTPUT;)
		end = g->output->sequence + g->output->data.len;
	end_prepare(t, p);
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	pause_ms(500);
	struct ask_end all =
	    ask_end(ask_attach(t, e.exec_id, SANDGATE__ROLE__ROLE_STANDBY, end), end);
	expect(all.gap == 0 && all.sequence == TOTAL, "%llu bytes, %llu lost",
	       (unsigned long long)all.sequence, (unsigned long long)all.gap);
}

static void deadline_runs_on(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 60");

	begin(t);
	e.timeout_ms = 1500;
	struct conn *c = ask_start(t, &e);
	ask_until(c, "one");
	prepare(t);
	pause_ms(2500);
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	Sandgate__ExecState *s = ask_state(t, e.exec_id);
	expect(s->result && s->result->outcome == SANDGATE__OUTCOME__OUTCOME_TIMED_OUT,
	       "it is not timed out by now");
	expect(s->result->duration_ms < 2500, "after %llu ms",
	       (unsigned long long)s->result->duration_ms);
}

/* ---- Resume ---- */

static void resume_is_idempotent(const struct target *t)
{
	Sandgate__Exec e = ask_sh("true");

	begin(t);
	prepare(t);
	Sandgate__Resume *m = new_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	Sandgate__Resumed *first = send_resume(t, m), *again = send_resume(t, m);
	expect(memcmp(first->agent_instance.data, again->agent_instance.data, 16) == 0,
	       "the same Resume was carried out twice");
	prepare(t);
	send_resume(t, m);
	ask_refused(t, SANDGATE__OPEN__OP_EXEC, &e, ERR_INVALID_STATE);
	m->generation--;
	ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_INVALID_STATE);
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	ask_run(t, &e);
}

static void clock_is_set(const struct target *t)
{
	begin(t);
	Sandgate__Resume *m = new_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	m->wall_clock_ms += 3600000;
	bool managed = !has_failed(send_resume(t, m), "clock");
	int64_t off = (int64_t)(info(t)->wall_clock_ms - now_ms());
	resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	if (!managed && off < 1800000)
		skip("the agent manages no clock");
	expect(managed, "the clock was set though it failed");
	expect(off > 3590000 && off < 3610000, "the clock is %lld ms off", (long long)off);
	off = (int64_t)(info(t)->wall_clock_ms - now_ms());
	expect(off > -5000 && off < 5000, "the clock is %lld ms off", (long long)off);
}

static void faulty_resumes(const struct target *t)
{
	Sandgate__EnvVar var = SANDGATE__ENV_VAR__INIT, *env[] = {&var};
	Sandgate__Resume *m;

	begin(t);
	m = new_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	m->entropy.len = RESUME_ENTROPY_MIN - 1;
	Sandgate__Refused *r = ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_MISSING_FIELD);
	expect(strcmp(r->field, "entropy") == 0, "field %s", r->field);
	m = new_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	m->hostname = BYTES("not a name");
	r = ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_INVALID_FIELD);
	expect(strcmp(r->field, "hostname") == 0, "field %s", r->field);
	m = new_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	m->hostname = BYTES("name");
	r = ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_INVALID_FIELD);
	expect(strcmp(r->field, "hostname") == 0, "field %s", r->field);
	m = new_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	var.name = BYTES("A");
	m->env = env;
	m->n_env = 1;
	r = ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_INVALID_FIELD);
	expect(strcmp(r->field, "env") == 0, "field %s", r->field);
	expect(info(t)->generation == m->generation - 1, "a refused Resume had an effect");
}

/* ---- clones ---- */

static void clone_has_names_of_its_own(const struct target *t)
{
	Sandgate__EnvVar var = SANDGATE__ENV_VAR__INIT, *env[] = {&var};

	begin(t);
	struct ask_end before = ask_run_sh(t, "cat /proc/sys/kernel/random/boot_id");
	ProtobufCBinaryData instance = info(t)->agent_instance;
	prepare(t);
	Sandgate__Resume *m = new_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	m->hostname = BYTES("conformance-clone");
	var.name = BYTES("CONFORMANCE");
	var.value = BYTES("clone");
	m->env = env;
	m->n_env = 1;
	Sandgate__Resumed *r = send_resume(t, m);
	expect(r->agent_instance.len == 16 &&
	           memcmp(r->agent_instance.data, instance.data, 16) != 0,
	       "the clone has its source's instance");
	struct ask_end end = ask_run_sh(t, "echo $CONFORMANCE");
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "clone\n");
	if (has_failed(r, "hostname") && has_failed(r, "boot_id"))
		skip("the agent manages no names");
	end = ask_run_sh(t, "cat /proc/sys/kernel/hostname");
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "conformance-clone\n");
	end = ask_run_sh(t, "cat /proc/sys/kernel/random/boot_id");
	expect(end.len[0] == 37 && strcmp((char *)end.bytes[0], (char *)before.bytes[0]) != 0,
	       "boot id %s", (char *)end.bytes[0]);
}

static void clone_cancels_foreground(const struct target *t)
{
	Sandgate__Exec fore = ask_sh("echo up; sleep 60"), keep = ask_sh("echo up; sleep 60"),
	               back = ask_sh("sleep 60");

	begin(t);
	keep.on_disconnect = SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH;
	back.detached = true;
	struct conn *a = ask_start(t, &fore), *b = ask_start(t, &keep);
	ask_start(t, &back);
	ask_until(a, "up");
	ask_until(b, "up");
	prepare(t);
	read_suspended(a, 3);
	read_suspended(b, 3);
	resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	Sandgate__ExecState *s = ask_finished(t, fore.exec_id);
	expect(s->result->outcome == SANDGATE__OUTCOME__OUTCOME_CANCELLED &&
	           s->result->cancel_reason == SANDGATE__CANCEL_REASON__CANCEL_FORKED,
	       "outcome %d, reason %d", s->result->outcome, s->result->cancel_reason);
	s = ask_state(t, keep.exec_id);
	expect(s->phase == SANDGATE__EXEC_PHASE__PHASE_RUNNING && s->detached,
	       "what asked for detach does not run on");
	s = ask_state(t, back.exec_id);
	expect(s->phase == SANDGATE__EXEC_PHASE__PHASE_RUNNING,
	       "what is detached does not run on");
	ask_forget(t, keep.exec_id);
	ask_forget(t, back.exec_id);
}

static void clone_forgets(const struct target *t)
{
	Sandgate__Exec done = ask_sh("echo again"), gone = ask_sh("echo once");

	begin(t);
	ask_run(t, &done);
	ask_forget(t, gone.exec_id);
	prepare(t);
	resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	Sandgate__ExecInfo m = SANDGATE__EXEC_INFO__INIT;
	m.exec_id = done.exec_id;
	ask_refused(t, SANDGATE__OPEN__OP_EXEC_INFO, &m, ERR_EXEC_NOT_FOUND);
	struct ask_end end = ask_run(t, &done);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "again\n");
	end = ask_run(t, &gone);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "once\n");
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
    {95, "a repeated Resume does nothing, a lower one is refused", resume_is_idempotent},
    {96, "Resume sets the clock", clock_is_set},
    {97, "faulty Resumes are refused by field", faulty_resumes},
    {97, "a clone has names of its own", clone_has_names_of_its_own},
    {98, "a clone cancels foreground execs and keeps the others", clone_cancels_foreground},
    {98, "a clone forgets results and closed ids", clone_forgets},
};
CHECK_TABLE(checks_snapshot, checks);
