/* Resume: what is repeated and refused, and what becomes of a clone. An agent that does not
 * manage its machine says so, and is judged by the rest. */
#include <string.h>

#include "proto/limits.h"
#include "tests/conformance/snapshot.h"

#define BYTES(s) ((ProtobufCBinaryData){sizeof(s) - 1, (uint8_t *)(s)})

static bool has_failed(const Sandgate__Resumed *r, const char *step)
{
	for (size_t i = 0; i < r->n_failed; i++)
		if (strcmp(r->failed[i], step) == 0)
			return true;
	return false;
}

static void resume_is_idempotent(const struct target *t)
{
	Sandgate__Exec e = ask_sh("true");

	snapshot_begin(t);
	snapshot_prepare(t);
	Sandgate__Resume *m = snapshot_new_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	Sandgate__Resumed *first = snapshot_send_resume(t, m),
	                  *again = snapshot_send_resume(t, m);
	expect(memcmp(first->agent_instance.data, again->agent_instance.data, 16) == 0,
	       "the same Resume was carried out twice");
	snapshot_prepare(t);
	snapshot_send_resume(t, m);
	ask_refused(t, SANDGATE__OPEN__OP_EXEC, &e, ERR_INVALID_STATE);
	m->generation--;
	ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_INVALID_STATE);
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	ask_run(t, &e);
}

static void clock_is_set(const struct target *t)
{
	snapshot_begin(t);
	Sandgate__Resume *m = snapshot_new_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	m->wall_clock_ms += 3600000;
	bool managed = !has_failed(snapshot_send_resume(t, m), "clock");
	int64_t off = (int64_t)(snapshot_info(t)->wall_clock_ms - snapshot_now_ms());
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	if (!managed && off < 1800000)
		skip("the agent manages no clock");
	expect(managed, "the clock was set though it failed");
	expect(off > 3590000 && off < 3610000, "the clock is %lld ms off", (long long)off);
	off = (int64_t)(snapshot_info(t)->wall_clock_ms - snapshot_now_ms());
	expect(off > -5000 && off < 5000, "the clock is %lld ms off", (long long)off);
}

static void faulty_resumes(const struct target *t)
{
	Sandgate__EnvVar var = SANDGATE__ENV_VAR__INIT, *env[] = {&var};
	Sandgate__Resume *m;

	snapshot_begin(t);
	m = snapshot_new_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	m->entropy.len = RESUME_ENTROPY_MIN - 1;
	Sandgate__Refused *r = ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_MISSING_FIELD);
	expect(strcmp(r->field, "entropy") == 0, "field %s", r->field);
	m = snapshot_new_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	m->hostname = BYTES("not a name");
	r = ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_INVALID_FIELD);
	expect(strcmp(r->field, "hostname") == 0, "field %s", r->field);
	m = snapshot_new_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	m->hostname = BYTES("name");
	r = ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_INVALID_FIELD);
	expect(strcmp(r->field, "hostname") == 0, "field %s", r->field);
	m = snapshot_new_resume(t, SANDGATE__RESUME_ROLE__RESUME_SAME);
	var.name = BYTES("A");
	m->env = env;
	m->n_env = 1;
	r = ask_refused(t, SANDGATE__OPEN__OP_RESUME, m, ERR_INVALID_FIELD);
	expect(strcmp(r->field, "env") == 0, "field %s", r->field);
	expect(snapshot_info(t)->generation == m->generation - 1,
	       "a refused Resume had an effect");
}

/* ---- clones ---- */

static void clone_has_names_of_its_own(const struct target *t)
{
	Sandgate__EnvVar var = SANDGATE__ENV_VAR__INIT, *env[] = {&var};

	snapshot_begin(t);
	struct ask_end before = ask_run_sh(t, "cat /proc/sys/kernel/random/boot_id");
	ProtobufCBinaryData instance = snapshot_info(t)->agent_instance;
	snapshot_prepare(t);
	Sandgate__Resume *m = snapshot_new_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	m->hostname = BYTES("conformance-clone");
	var.name = BYTES("CONFORMANCE");
	var.value = BYTES("clone");
	m->env = env;
	m->n_env = 1;
	Sandgate__Resumed *r = snapshot_send_resume(t, m);
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

	snapshot_begin(t);
	keep.on_disconnect = SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH;
	back.detached = true;
	struct conn *a = ask_start(t, &fore), *b = ask_start(t, &keep);
	ask_start(t, &back);
	ask_until(a, "up");
	ask_until(b, "up");
	snapshot_prepare(t);
	snapshot_read_suspended(a, 3);
	snapshot_read_suspended(b, 3);
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	ask_cancelled(t, fore.exec_id, SANDGATE__CANCEL_REASON__CANCEL_FORKED);
	Sandgate__ExecState *s = ask_state(t, keep.exec_id);
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

	snapshot_begin(t);
	ask_run(t, &done);
	ask_forget(t, gone.exec_id);
	snapshot_prepare(t);
	snapshot_resume(t, SANDGATE__RESUME_ROLE__RESUME_CLONE);
	Sandgate__ExecInfo m = SANDGATE__EXEC_INFO__INIT;
	m.exec_id = done.exec_id;
	ask_refused(t, SANDGATE__OPEN__OP_EXEC_INFO, &m, ERR_EXEC_NOT_FOUND);
	struct ask_end end = ask_run(t, &done);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "again\n");
	end = ask_run(t, &gone);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "once\n");
}

static const struct check checks[] = {
    {95, "a repeated Resume does nothing, a lower one is refused", resume_is_idempotent},
    {96, "Resume sets the clock", clock_is_set},
    {97, "faulty Resumes are refused by field", faulty_resumes},
    {97, "a clone has names of its own", clone_has_names_of_its_own},
    {98, "a clone cancels foreground execs and keeps the others", clone_cancels_foreground},
    {98, "a clone forgets results and closed ids", clone_forgets},
};
CHECK_TABLE(checks_resume, checks);
