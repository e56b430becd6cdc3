/* Prepare and Resume as a host sees them: what is refused, what execs and their sessions go
 * through, and what becomes of a clone. What is done to a machine is check_renew.c's. */
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <time.h>

#include "tests/agent_fixture.h"

#define BYTES(s) ((ProtobufCBinaryData){sizeof(s) - 1, (uint8_t *)(s)})

static uint8_t entropy[RESUME_ENTROPY_MIN] = "fresh";

static Sandgate__Resume resume_message(uint64_t generation, Sandgate__ResumeRole role)
{
	Sandgate__Resume m = SANDGATE__RESUME__INIT;
	m.generation = generation;
	m.role = role;
	if (role == SANDGATE__RESUME_ROLE__RESUME_CLONE)
		m.entropy = (ProtobufCBinaryData){sizeof(entropy), entropy};
	return m;
}

static struct host *open_session(Sandgate__Open__OpCase op, void *message)
{
	struct host *h = host_connect();
	host_open(h, op, message);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	return h;
}

static struct host *begin_prepare(void)
{
	Sandgate__Prepare m = SANDGATE__PREPARE__INIT;
	return open_session(SANDGATE__OPEN__OP_PREPARE, &m);
}

static void end_prepare(struct host *h)
{
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_PREPARED);
	ck_assert(g->prepared->synced);
	host_free(g);
	ck_assert(host_next(h) == NULL);
	host_close(h);
}

static void prepare(void)
{
	end_prepare(begin_prepare());
}

/* To be freed. */
static Sandgate__GuestFrame *resume_with(Sandgate__Resume *m)
{
	struct host *h = open_session(SANDGATE__OPEN__OP_RESUME, m);
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_RESUMED);
	ck_assert_uint_eq(g->resumed->generation, m->generation);
	ck_assert(host_next(h) == NULL);
	host_close(h);
	return g;
}

static void resume(uint64_t generation, Sandgate__ResumeRole role)
{
	Sandgate__Resume m = resume_message(generation, role);
	host_free(resume_with(&m));
}

static void resume_same(void)
{
	resume(2, SANDGATE__RESUME_ROLE__RESUME_SAME);
}

static void resume_clone(void)
{
	resume(2, SANDGATE__RESUME_ROLE__RESUME_CLONE);
}

static void expect_refused(struct host *h, enum err_code code, const char *field)
{
	Sandgate__GuestFrame *g = host_next(h);
	ck_assert(g != NULL && g->body_case == SANDGATE__GUEST_FRAME__BODY_REFUSED);
	ck_assert_int_eq(g->refused->code, code);
	ck_assert_str_eq(g->refused->field, field);
	host_free(g);
	ck_assert(host_next(h) == NULL);
	host_close(h);
}

static void expect_resume_refused(Sandgate__Resume *m, enum err_code code, const char *field)
{
	struct host *h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_RESUME, m);
	expect_refused(h, code, field);
}

static struct host *start(Sandgate__Exec *m)
{
	struct host *h = host_exec(m);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_STARTED);
	return h;
}

static struct host *attach(const char *id, uint64_t offset)
{
	struct host *h = host_attach(id, SANDGATE__ROLE__ROLE_STANDBY, offset);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_OPENED);
	return h;
}

static struct transcript finish(struct host *h, uint64_t from)
{
	struct transcript t = host_read_all(h, from);
	host_close(h);
	return t;
}

static struct exec *find(const char *id)
{
	struct err e = {0};
	struct exec *x = exec_table_find(agent_table(fixture_agent), id, &e);
	ck_assert_msg(x != NULL, "%s", e.msg);
	return x;
}

static bool is_finished(void *arg)
{
	return exec_state(arg) == EXEC_FINISHED;
}

/* What a session carries up to Suspended, checked to leave nothing out: appended to `text`,
 * whose length is returned. */
static size_t read_suspended(struct host *h, uint64_t from, char *text)
{
	size_t len = 0;
	for (;;) {
		Sandgate__GuestFrame *g = host_next(h);
		ck_assert_msg(g != NULL, "closed without Suspended");
		if (g->body_case == SANDGATE__GUEST_FRAME__BODY_SUSPENDED) {
			ck_assert_uint_eq(g->suspended->sequence, from + len);
			host_free(g);
			ck_assert(host_next(h) == NULL);
			host_close(h);
			return len;
		}
		if (g->body_case == SANDGATE__GUEST_FRAME__BODY_OUTPUT) {
			ck_assert_uint_eq(g->output->sequence, from + len);
			memcpy(text + len, g->output->data.data, g->output->data.len);
			len += g->output->data.len;
		}
		host_free(g);
	}
}

/* ---- prepared ---- */

START_TEST(a_prepared_agent_takes_no_work_and_answers_questions)
{
	Sandgate__Exec m = exec_message("a", "echo a");
	Sandgate__Info info = SANDGATE__INFO__INIT;
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	Sandgate__Metrics metrics = SANDGATE__METRICS__INIT;
	Sandgate__ForgetExec forget = SANDGATE__FORGET_EXEC__INIT;

	prepare();
	expect_refused(host_exec(&m), ERR_INVALID_STATE, "");
	expect_refused(host_attach("a", SANDGATE__ROLE__ROLE_CONTROL, 0), ERR_INVALID_STATE,
	               "");
	forget.exec_id = "a";
	struct host *h = host_connect();
	host_open(h, SANDGATE__OPEN__OP_FORGET_EXEC, &forget);
	expect_refused(h, ERR_INVALID_STATE, "");
	h = open_session(SANDGATE__OPEN__OP_INFO, &info);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_INFO);
	host_close(h);
	h = open_session(SANDGATE__OPEN__OP_PING, &ping);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_PONG);
	host_close(h);
	h = open_session(SANDGATE__OPEN__OP_METRICS, &metrics);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_METRICS);
	host_close(h);
	prepare();
	resume_same();
	struct transcript t = finish(start(&m), 0);
	ck_assert_str_eq(t.out[0], "a\n");
	transcript_free(&t);
}
END_TEST

START_TEST(no_session_outlives_prepare)
{
	Sandgate__Exec m = exec_message("a", "sleep 60");
	struct host *sessions[] = {host_connect(), start(&m), attach("a", 0),
	                           host_attach("a", SANDGATE__ROLE__ROLE_CONTROL, 0),
	                           host_attach("a", SANDGATE__ROLE__ROLE_OUTPUT, 0)};
	Sandgate__Metrics metrics = SANDGATE__METRICS__INIT;

	host_expect_only(sessions[3], SANDGATE__GUEST_FRAME__BODY_OPENED);
	host_expect_only(sessions[4], SANDGATE__GUEST_FRAME__BODY_OPENED);
	prepare();
	struct host *h = open_session(SANDGATE__OPEN__OP_METRICS, &metrics);
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_METRICS);
	ck_assert_uint_eq(g->metrics->sessions, 1);
	host_free(g);
	host_close(h);
	ck_assert(host_next(sessions[0]) == NULL);
	host_close(sessions[0]);
	for (size_t i = 1; i < sizeof(sessions) / sizeof(sessions[0]); i++)
		ck_assert_uint_eq(read_suspended(sessions[i], 0, NULL), 0);
}
END_TEST

START_TEST(an_agent_that_hears_nothing_goes_on)
{
	Sandgate__Exec m = exec_message("a", "sleep 60"), after = exec_message("b", "echo b");

	m.link_grace_ms = 100;
	fixture_config.self_resume_s = 0.2;
	char none[1];
	struct host *owner = start(&m);
	prepare();
	read_suspended(owner, 0, none);
	turn_until(is_finished, find("a"));
	ck_assert_int_eq(exec_result(find("a"))->cancel_reason,
	                 SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
	struct transcript t = finish(start(&after), 0);
	ck_assert_str_eq(t.out[0], "b\n");
	transcript_free(&t);
	resume_clone(); /* it is still to be told what it is */
}
END_TEST

START_TEST(a_shutdown_refuses_prepare_and_ends_it)
{
	Sandgate__Exec m = exec_message("a", "trap '' TERM; echo up; sleep 60");
	Sandgate__Shutdown down = SANDGATE__SHUTDOWN__INIT;
	Sandgate__Prepare again = SANDGATE__PREPARE__INIT;
	char up[8];
	struct host *owner = start(&m);

	host_expect_only(owner, SANDGATE__GUEST_FRAME__BODY_OUTPUT);
	prepare();
	read_suspended(owner, 3, up);
	down.grace_ms = 300;
	struct host *h = open_session(SANDGATE__OPEN__OP_SHUTDOWN, &down);
	struct host *late = host_connect();
	host_open(late, SANDGATE__OPEN__OP_PREPARE, &again);
	expect_refused(late, ERR_INVALID_STATE, "");
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	host_close(h);
}
END_TEST

/* ---- execs in the source ---- */

START_TEST(output_goes_on_where_it_was_suspended)
{
	enum { TOTAL = 6888896 }; /* of seq 1000000 */
	Sandgate__Exec m = exec_message("a", "read go; exec seq 1000000");
	char *text = malloc(TOTAL + 1);
	Sandgate__Stdin go = SANDGATE__STDIN__INIT;
	size_t len = 0;

	m.stdin_open = true;
	go.data = BYTES("\n");
	struct host *h = start(&m);
	host_send(h, SANDGATE__HOST_FRAME__BODY_STDIN, &go);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	for (uint64_t generation = 2; generation < 5; generation++) {
		struct host *p = begin_prepare();
		len += read_suspended(h, len, text + len);
		end_prepare(p);
		resume(generation, SANDGATE__RESUME_ROLE__RESUME_SAME);
		h = attach("a", len);
		host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_STARTED);
		Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_OUTPUT);
		memcpy(text + len, g->output->data.data, g->output->data.len);
		len += g->output->data.len;
		host_free(g);
	}
	struct transcript t = finish(h, len);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	ck_assert_uint_eq(t.gaps, 0);
	ck_assert_uint_eq(t.end, TOTAL);
	memcpy(text + len, t.out[0], t.len[0]);
	size_t at = 0;
	for (int i = 1; i <= 1000000; i++) {
		char line[16];
		int n = snprintf(line, sizeof(line), "%d\n", i);
		ck_assert_msg(memcmp(text + at, line, (size_t)n) == 0, "line %d is amiss", i);
		at += (size_t)n;
	}
	transcript_free(&t);
	free(text);
}
END_TEST

START_TEST(a_host_that_reads_nothing_delays_prepare_but_loses_nothing)
{
	enum { TOTAL = 20000000 };
	Sandgate__Exec m = exec_message("a", "exec head -c 20000000 /dev/zero");
	uint64_t got = 0;
	struct host *h = host_exec(&m);

	m.limits = NULL;
	turn_for(0.2);
	prepare();
	for (Sandgate__GuestFrame *g; (g = host_next(h)) != NULL; host_free(g))
		if (g->body_case == SANDGATE__GUEST_FRAME__BODY_OUTPUT)
			got += g->output->data.len;
	host_close(h);
	resume_same();
	struct transcript t = finish(attach("a", got), got);
	ck_assert_uint_eq(t.end, TOTAL);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
}
END_TEST

/* Even though what it prints is far more than is retained. */
START_TEST(a_suspended_exec_is_held_until_its_owner_comes)
{
	enum { TOTAL = 3000000 };
	Sandgate__Exec m = exec_message("a", "read go; exec head -c 3000000 /dev/zero");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;
	Sandgate__Uint64Value little = SANDGATE__UINT64_VALUE__INIT;
	Sandgate__Stdin go = SANDGATE__STDIN__INIT;
	char none[1];

	little.value = 1000;
	limits.output_bytes = &little;
	m.limits = &limits;
	m.stdin_open = true;
	go.data = BYTES("\n");
	struct host *h = start(&m);
	host_send(h, SANDGATE__HOST_FRAME__BODY_STDIN, &go);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	struct host *p = begin_prepare();
	uint64_t end = ring_end(exec_ring(find("a")));
	end_prepare(p);
	turn_for(0.2);
	ck_assert_uint_eq(ring_end(exec_ring(find("a"))), end);
	if (end == 0)
		ck_assert_uint_eq(read_suspended(h, 0, none), 0);
	resume_same();
	turn_for(0.2);
	ck_assert_uint_lt(ring_end(exec_ring(find("a"))), TOTAL);
	struct transcript t = finish(attach("a", 0), 0);
	ck_assert_uint_eq(t.len[0], TOTAL);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
}
END_TEST

START_TEST(nobody_is_lost_while_the_agent_is_prepared)
{
	Sandgate__Exec a = exec_message("a", "sleep 60"), b = exec_message("b", "sleep 60");
	char none[1];

	a.link_grace_ms = b.link_grace_ms = 150;
	struct host *suspended = start(&a), *lost = start(&b);
	host_close(lost);
	prepare();
	read_suspended(suspended, 0, none);
	turn_for(0.5);
	ck_assert_int_eq(exec_state(find("a")), EXEC_RUNNING);
	ck_assert_int_eq(exec_state(find("b")), EXEC_RUNNING);
	resume_same();
	struct host *h = attach("b", 0);
	turn_until(is_finished, find("a"));
	ck_assert_int_eq(exec_result(find("a"))->cancel_reason,
	                 SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST);
	ck_assert_int_eq(exec_state(find("b")), EXEC_RUNNING);
	host_close(h);
}
END_TEST

START_TEST(a_leader_that_ends_meanwhile_has_its_output_and_result)
{
	Sandgate__Exec m = exec_message("a", "read go; echo one; sleep 0.2; echo two; exit 3");
	Sandgate__Stdin go = SANDGATE__STDIN__INIT;
	char text[16];

	m.stdin_open = true;
	go.data = BYTES("\n");
	struct host *h = start(&m);
	host_send(h, SANDGATE__HOST_FRAME__BODY_STDIN, &go);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	prepare();
	size_t len = read_suspended(h, 0, text);
	turn_until(is_finished, find("a"));
	resume_same();
	struct transcript t = finish(attach("a", len), len);
	ck_assert_uint_eq(t.end, 8);
	ck_assert_int_eq(t.result->exit_code, 3);
	transcript_free(&t);
}
END_TEST

/* What it did not read is no longer the agent's to keep. */
START_TEST(what_is_held_of_a_finished_exec_goes_with_its_owners_time)
{
	Sandgate__Exec m = exec_message("a", "head -c 400000 /dev/zero; sleep 1.6");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;
	Sandgate__Uint64Value little = SANDGATE__UINT64_VALUE__INIT;

	little.value = 1000;
	limits.output_bytes = &little;
	m.limits = &limits;
	m.link_grace_ms = 1000;
	struct host *deaf = host_exec(&m);
	turn_for(0.2);
	prepare();
	resume_same();
	host_close(deaf);
	turn_until(is_finished, find("a"));
	ck_assert_int_eq(exec_result(find("a"))->outcome, SANDGATE__OUTCOME__OUTCOME_EXITED);
	turn_for(1.2);
	while (ring_shed(exec_ring(find("a"))))
		;
	ck_assert_uint_eq(ring_memory(exec_ring(find("a"))), 0);
}
END_TEST

/* The first to be suspended is the owner; who stands by has read on and needs less. */
START_TEST(of_those_that_started_it_the_owner_is_what_it_is_held_for)
{
	enum { TOTAL = 1000000 };
	Sandgate__Exec m = exec_message("a", "exec head -c 1000000 /dev/zero");
	Sandgate__Limits limits = SANDGATE__LIMITS__INIT;
	Sandgate__Uint64Value little = SANDGATE__UINT64_VALUE__INIT;
	char *text = malloc(TOTAL);

	little.value = 1000;
	limits.output_bytes = &little;
	m.limits = &limits;
	struct host *owner = host_exec(&m);
	turn_for(0.2);
	struct host *other = attach("a", ring_end(exec_ring(find("a"))));
	host_expect_only(other, SANDGATE__GUEST_FRAME__BODY_STARTED);
	struct host *p = begin_prepare();
	size_t got = read_suspended(owner, 0, text);
	end_prepare(p);
	host_close(other);
	resume_same();
	struct transcript t = finish(attach("a", got), got);
	ck_assert_uint_eq(t.end, TOTAL);
	ck_assert_uint_eq(t.gaps, 0);
	transcript_free(&t);
	free(text);
}
END_TEST

/* Leftovers hold the pipe open: it is drained for a while as ever. */
START_TEST(a_leader_that_leaves_others_behind_ends_meanwhile)
{
	Sandgate__Exec m = exec_message("a", "read go; sleep 0.2; echo x; sleep 60 & exit 4");
	Sandgate__Stdin go = SANDGATE__STDIN__INIT;

	m.stdin_open = true;
	go.data = BYTES("\n");
	struct host *h = start(&m);
	host_send(h, SANDGATE__HOST_FRAME__BODY_STDIN, &go);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	prepare();
	ck_assert_uint_eq(read_suspended(h, 0, NULL), 0);
	turn_until(is_finished, find("a"));
	resume_clone(); /* a result that nobody got is another guest's, too */
	expect_refused(host_attach("a", SANDGATE__ROLE__ROLE_OUTPUT, 0), ERR_EXEC_NOT_FOUND,
	               "exec_id");
}
END_TEST

START_TEST(a_deadline_runs_on_while_prepared)
{
	Sandgate__Exec m = exec_message("a", "sleep 60");
	char none[1];

	m.timeout_ms = 300;
	struct host *h = start(&m);
	prepare();
	read_suspended(h, 0, none);
	turn_until(is_finished, find("a"));
	resume_same();
	struct transcript t = finish(attach("a", 0), 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_TIMED_OUT);
	transcript_free(&t);
}
END_TEST

START_TEST(input_that_was_taken_is_acknowledged_first)
{
	enum { LEN = 3 * STDIN_WINDOW };
	Sandgate__Exec m = exec_message("a", "sleep 0.5; wc -c");
	Sandgate__Stdin in = SANDGATE__STDIN__INIT;
	Sandgate__CloseStdin end = SANDGATE__CLOSE_STDIN__INIT;

	m.stdin_open = true;
	struct host *h = start(&m);
	in.data = (ProtobufCBinaryData){LEN, calloc(1, LEN)};
	host_send(h, SANDGATE__HOST_FRAME__BODY_STDIN, &in);
	turn_for(0.1);
	prepare();
	Sandgate__GuestFrame *g = host_expect(h, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK);
	ck_assert_uint_eq(g->stdin_ack->offset, LEN);
	host_free(g);
	ck_assert_uint_eq(read_suspended(h, 0, NULL), 0);
	resume_same();
	h = attach("a", 0);
	host_send(h, SANDGATE__HOST_FRAME__BODY_CLOSE_STDIN, &end);
	struct transcript t = finish(h, 0);
	ck_assert_int_eq(atoi(t.out[0]), LEN);
	transcript_free(&t);
	free(in.data.data);
}
END_TEST

/* ---- Resume ---- */

START_TEST(resume_is_idempotent_by_generation)
{
	Sandgate__Resume m = resume_message(5, SANDGATE__RESUME_ROLE__RESUME_CLONE);

	prepare();
	Sandgate__GuestFrame *first = resume_with(&m), *again = resume_with(&m);
	ck_assert_mem_eq(first->resumed->agent_instance.data,
	                 again->resumed->agent_instance.data, 16);
	ck_assert_uint_eq(first->resumed->n_failed, again->resumed->n_failed);
	host_free(first);
	host_free(again);
	prepare();
	host_free(resume_with(&m)); /* late: it resumes nothing */
	Sandgate__Exec e = exec_message("a", "true");
	expect_refused(host_exec(&e), ERR_INVALID_STATE, "");
	m.generation = 4;
	expect_resume_refused(&m, ERR_INVALID_STATE, "");
	m.generation = 6;
	host_free(resume_with(&m));
	host_close(start(&e));
}
END_TEST

START_TEST(a_resume_ends_a_prepare_that_is_under_way)
{
	Sandgate__Exec m = exec_message("a", "exec head -c 20000000 /dev/zero");
	struct host *deaf = host_exec(&m); /* its session takes a while to end */

	turn_for(0.2);
	struct host *h = begin_prepare();
	resume_same();
	expect_refused(h, ERR_INVALID_STATE, "");
	host_close(deaf);
}
END_TEST

START_TEST(faulty_resumes_are_refused_by_field)
{
	Sandgate__EnvVar v = SANDGATE__ENV_VAR__INIT, *env[] = {&v};
	Sandgate__Network network = SANDGATE__NETWORK__INIT;
	static uint8_t much[RESUME_ENTROPY_MAX + 1];
	Sandgate__Resume m;

	prepare();
#define FRESH(name) m = resume_message(2, SANDGATE__RESUME_ROLE__RESUME_##name)
	FRESH(CLONE);
	m.role = 7;
	expect_resume_refused(&m, ERR_INVALID_FIELD, "role");
	FRESH(CLONE);
	m.entropy.len--;
	expect_resume_refused(&m, ERR_MISSING_FIELD, "entropy");
	FRESH(SAME);
	m.entropy = (ProtobufCBinaryData){sizeof(much), much};
	expect_resume_refused(&m, ERR_INVALID_FIELD, "entropy");
	FRESH(CLONE);
	m.hostname = BYTES("a\0b");
	expect_resume_refused(&m, ERR_INVALID_FIELD, "hostname");
	m.hostname = (ProtobufCBinaryData){HOSTNAME_MAX + 1, (uint8_t *)malloc(65)};
	memset(m.hostname.data, 'a', 65);
	expect_resume_refused(&m, ERR_INVALID_FIELD, "hostname");
	free(m.hostname.data);
	FRESH(CLONE);
	m.machine_id = BYTES("short");
	expect_resume_refused(&m, ERR_INVALID_FIELD, "machine_id");
	FRESH(CLONE);
	v.name = BYTES("A=B");
	m.env = env;
	m.n_env = 1;
	expect_resume_refused(&m, ERR_INVALID_FIELD, "env");
	FRESH(SAME);
	m.env = env;
	m.n_env = 1;
	expect_resume_refused(&m, ERR_INVALID_FIELD, "env");
	FRESH(SAME);
	m.hostname = BYTES("a");
	expect_resume_refused(&m, ERR_INVALID_FIELD, "hostname");
	FRESH(SAME);
	m.machine_id = BYTES("0123456789abcdef");
	expect_resume_refused(&m, ERR_INVALID_FIELD, "machine_id");
	FRESH(SAME);
	m.network = &network;
	expect_resume_refused(&m, ERR_INVALID_FIELD, "network");
#undef FRESH
	resume_same(); /* none of them had an effect */
}
END_TEST

/* ---- clones ---- */

START_TEST(a_clone_is_another_agent_with_another_environment)
{
	Sandgate__Resume m = resume_message(2, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	Sandgate__EnvVar a = SANDGATE__ENV_VAR__INIT, b = SANDGATE__ENV_VAR__INIT,
	                 *env[] = {&a, &b};
	Sandgate__Info info = SANDGATE__INFO__INIT;
	Sandgate__Exec e = exec_message("a", "echo $WHO $NEW");
	struct err err = {0};

	ck_assert(config_set(&fixture_config, "env", "WHO=template", &err) == 0);
	struct host *h = open_session(SANDGATE__OPEN__OP_INFO, &info);
	Sandgate__GuestFrame *before = host_expect(h, SANDGATE__GUEST_FRAME__BODY_INFO);
	host_close(h);
	prepare();
	a.name = BYTES("WHO");
	a.value = BYTES("clone");
	b.name = BYTES("NEW");
	b.value = BYTES("yes");
	m.env = env;
	m.n_env = 2;
	host_free(resume_with(&m));
	h = open_session(SANDGATE__OPEN__OP_INFO, &info);
	Sandgate__GuestFrame *after = host_expect(h, SANDGATE__GUEST_FRAME__BODY_INFO);
	host_close(h);
	ck_assert_mem_ne(before->info->agent_instance.data, after->info->agent_instance.data,
	                 16);
	ck_assert_uint_eq(after->info->generation, 2);
	host_free(before);
	host_free(after);
	struct transcript t = finish(start(&e), 0);
	ck_assert_str_eq(t.out[0], "clone yes\n");
	transcript_free(&t);
}
END_TEST

START_TEST(in_a_clone_foreground_execs_are_cancelled_and_others_run_on)
{
	Sandgate__Exec fore = exec_message("fore", "sleep 60");
	Sandgate__Exec keep = exec_message("keep", "sleep 60");
	Sandgate__Exec back = exec_message("back", "sleep 60");
	char none[1];

	keep.on_disconnect = SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH;
	back.detached = true;
	struct host *a = start(&fore), *b = start(&keep), *c = start(&back);
	ck_assert(host_next(c) == NULL);
	host_close(c);
	prepare();
	read_suspended(a, 0, none);
	read_suspended(b, 0, none);
	resume_clone();
	struct transcript t = finish(attach("fore", 0), 0);
	ck_assert_int_eq(t.result->outcome, SANDGATE__OUTCOME__OUTCOME_CANCELLED);
	ck_assert_int_eq(t.result->cancel_reason, SANDGATE__CANCEL_REASON__CANCEL_FORKED);
	transcript_free(&t);
	ck_assert_int_eq(exec_state(find("keep")), EXEC_RUNNING);
	ck_assert_int_eq(exec_state(find("back")), EXEC_RUNNING);
	Sandgate__ExecState state;
	exec_describe(find("keep"), &state);
	ck_assert(state.detached);
}
END_TEST

/* Where the host copied it unasked, its sessions' peers are perhaps silent for ever. */
START_TEST(a_clone_that_was_not_prepared_ends_its_sessions)
{
	Sandgate__Exec m = exec_message("a", "sleep 60");
	struct host *owner = start(&m), *silent = host_connect();

	resume_clone();
	ck_assert_uint_eq(read_suspended(owner, 0, NULL), 0);
	ck_assert(host_next(silent) == NULL);
	host_close(silent);
	turn_until(is_finished, find("a"));
	ck_assert_int_eq(exec_result(find("a"))->cancel_reason,
	                 SANDGATE__CANCEL_REASON__CANCEL_FORKED);
}
END_TEST

START_TEST(a_clone_knows_no_results_and_all_ids_are_free)
{
	Sandgate__Exec done = exec_message("done", "echo x"),
	               gone = exec_message("gone", "echo y");
	Sandgate__ForgetExec forget = SANDGATE__FORGET_EXEC__INIT;

	struct transcript t = finish(start(&done), 0);
	transcript_free(&t);
	forget.exec_id = "gone";
	struct host *h = open_session(SANDGATE__OPEN__OP_FORGET_EXEC, &forget);
	host_expect_only(h, SANDGATE__GUEST_FRAME__BODY_DONE);
	host_close(h);
	prepare();
	resume_clone();
	expect_refused(host_attach("done", SANDGATE__ROLE__ROLE_OUTPUT, 0), ERR_EXEC_NOT_FOUND,
	               "exec_id");
	t = finish(host_exec(&done), 0);
	ck_assert(t.started && !t.existing);
	transcript_free(&t);
	t = finish(start(&gone), 0);
	ck_assert_str_eq(t.out[0], "y\n");
	transcript_free(&t);
}
END_TEST

static bool own_mounts;

/* Before there are threads: each would keep the others' mounts. */
static void setup_with_own_mounts(void)
{
	own_mounts =
	    unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
	fixture_setup();
}

/* Its siblings would draw the same random numbers. */
START_TEST(a_clone_without_entropy_is_refused_and_waits)
{
	Sandgate__Resume m = resume_message(2, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	Sandgate__Exec e = exec_message("a", "true");

	if (!own_mounts || mount("/dev/null", "/dev/urandom", NULL, MS_BIND, NULL) < 0) {
		printf("skipped: no mounts of our own here\n");
		return;
	}
	fixture_config.self_resume_s = 0.2;
	prepare();
	expect_refused(open_session(SANDGATE__OPEN__OP_RESUME, &m), ERR_INTERNAL, "entropy");
	turn_for(0.5);
	expect_refused(host_exec(&e), ERR_INVALID_STATE, "");
	ck_assert_uint_eq(snapshot_generation(agent_snapshot(fixture_agent)), 1);
	ck_assert(umount("/dev/urandom") == 0);
	host_free(resume_with(&m));
	host_close(start(&e));
}
END_TEST

/* The test is no machine of its own: nothing of this one may change. */
START_TEST(who_does_not_manage_the_machine_says_what_was_not_done)
{
	Sandgate__Resume m = resume_message(2, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	char before[65], after[65];
	bool told = false;

	ck_assert(!fixture_config.manage_machine);
	gethostname(before, sizeof(before));
	m.hostname = BYTES("never-so");
	m.wall_clock_ms = 1000;
	prepare();
	Sandgate__GuestFrame *g = resume_with(&m);
	for (size_t i = 0; i < g->resumed->n_failed; i++)
		told |= strcmp(g->resumed->failed[i], "hostname") == 0;
	ck_assert(told);
	host_free(g);
	gethostname(after, sizeof(after));
	ck_assert_str_eq(before, after);
	ck_assert_int_gt(time(NULL), 1000000000);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("snapshot");
	TCase *tc = new_case("snapshot", fixture_setup, NULL);
	tcase_add_test(tc, a_prepared_agent_takes_no_work_and_answers_questions);
	tcase_add_test(tc, no_session_outlives_prepare);
	tcase_add_test(tc, an_agent_that_hears_nothing_goes_on);
	tcase_add_test(tc, a_shutdown_refuses_prepare_and_ends_it);
	tcase_add_test(tc, output_goes_on_where_it_was_suspended);
	tcase_add_test(tc, a_host_that_reads_nothing_delays_prepare_but_loses_nothing);
	tcase_add_test(tc, a_suspended_exec_is_held_until_its_owner_comes);
	tcase_add_test(tc, nobody_is_lost_while_the_agent_is_prepared);
	tcase_add_test(tc, a_leader_that_ends_meanwhile_has_its_output_and_result);
	tcase_add_test(tc, what_is_held_of_a_finished_exec_goes_with_its_owners_time);
	tcase_add_test(tc, of_those_that_started_it_the_owner_is_what_it_is_held_for);
	tcase_add_test(tc, a_leader_that_leaves_others_behind_ends_meanwhile);
	tcase_add_test(tc, a_deadline_runs_on_while_prepared);
	tcase_add_test(tc, input_that_was_taken_is_acknowledged_first);
	tcase_add_test(tc, resume_is_idempotent_by_generation);
	tcase_add_test(tc, a_resume_ends_a_prepare_that_is_under_way);
	tcase_add_test(tc, faulty_resumes_are_refused_by_field);
	tcase_add_test(tc, a_clone_is_another_agent_with_another_environment);
	tcase_add_test(tc, in_a_clone_foreground_execs_are_cancelled_and_others_run_on);
	tcase_add_test(tc, a_clone_that_was_not_prepared_ends_its_sessions);
	tcase_add_test(tc, a_clone_knows_no_results_and_all_ids_are_free);
	tcase_add_test(tc, who_does_not_manage_the_machine_says_what_was_not_done);
	suite_add_tcase(s, tc);
	tc = tcase_create("own mounts");
	tcase_add_checked_fixture(tc, setup_with_own_mounts, NULL);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_clone_without_entropy_is_refused_and_waits);
	suite_add_tcase(s, tc);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed != 0;
}
