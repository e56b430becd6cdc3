/* Exec ids: idempotent starts, conflicts, tombstones; and requests that may not run. */
#include <string.h>

#include "proto/limits.h"
#include "tests/conformance/ask.h"

static Sandgate__Started *start(const struct target *t, Sandgate__Exec *e, struct conn **out)
{
	*out = ask_session(t, SANDGATE__OPEN__OP_EXEC, e);
	return ask_next(*out, SANDGATE__GUEST_FRAME__BODY_STARTED)->started;
}

static void repeat_while_running(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo run >> /tmp/$ID; sleep 0.5; cat /tmp/$ID; rm /tmp/$ID");
	Sandgate__EnvVar id = SANDGATE__ENV_VAR__INIT, *env[] = {&id};
	struct conn *c[2];

	id.name = ask_text("ID");
	id.value = ask_text(e.exec_id);
	e.env = env;
	e.n_env = 1;
	Sandgate__Started *first = start(t, &e, &c[0]), *second = start(t, &e, &c[1]);
	expect(!first->existing && first->owner, "a new exec is said to exist, or unowned");
	expect(second->existing, "the repeated start is said to be new");
	expect(!second->owner, "the repeated start took the exec from its owner");
	for (int i = 0; i < 2; i++) {
		struct ask_end end = ask_end(c[i], 0);
		ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
		ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "run\n");
	}
}

static void repeat_after_a_lost_link(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo one; sleep 1; echo two");
	struct conn *c;

	e.link_grace_ms = 500;
	start(t, &e, &c);
	ask_until(c, "one");
	conn_close(c);
	while (!start(t, &e, &c)->owner) { /* until the agent has seen that */
		conn_close(c);
		ask_pause();
	}
	struct ask_end all = ask_end(c, 0);
	ask_expect(&all, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&all, SANDGATE__STREAM__STREAM_STDOUT, "one\ntwo\n");
}

static void repeat_when_finished(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo out; exit 6");
	struct conn *c;

	e.keep_output = true;
	ask_run(t, &e);
	expect(start(t, &e, &c)->existing, "the repeated start ran it again");
	struct ask_end end = ask_end(c, 0);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 6);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "out\n");
}

static void conflict(const struct target *t)
{
	Sandgate__Exec e = ask_sh("sleep 60");
	Sandgate__Exec other = e;

	ask_start(t, &e);
	other.request_digest = ask_text("another request");
	ask_refused(t, SANDGATE__OPEN__OP_EXEC, &other, ERR_EXEC_ID_CONFLICT);
	expect(ask_state(t, e.exec_id)->phase != SANDGATE__EXEC_PHASE__PHASE_FINISHED,
	       "the conflict ended the first");
	ask_forget(t, e.exec_id);
}

static void tombstone(const struct target *t)
{
	Sandgate__Exec e = ask_sh("true");

	ask_forget(t, e.exec_id);
	ask_refused(t, SANDGATE__OPEN__OP_EXEC, &e, ERR_EXEC_ID_CONFLICT);
}

static void bad_ids(const struct target *t)
{
	static char too_long[EXEC_ID_MAX + 2];
	const char *const ids[] = {"", "a/b", "a b", "..\n", "\xc3\xa9", too_long};

	memset(too_long, 'a', EXEC_ID_MAX + 1);
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		Sandgate__Exec e = ask_sh("true");
		e.exec_id = (char *)ids[i];
		Sandgate__Refused *r = ask_refused(t, SANDGATE__OPEN__OP_EXEC, &e, ERR_NONE);
		expect(strcmp(r->field, "exec_id") == 0, "id '%s': field '%s'", ids[i],
		       r->field);
	}
}

static void tricky_ids(const struct target *t)
{
	static const char *const ids[] = {"..",         ".", "cgroup.procs",
	                                  "memory.max", "-", "agent"};

	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		Sandgate__Exec e = ask_sh("exit 3");
		e.exec_id = (char *)ids[i];
		struct ask_end end = ask_run(t, &e);
		ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 3);
		ask_forget(t, ids[i]);
	}
}

static const ProtobufCBinaryData with_nul = {.len = 3, .data = (uint8_t *)"a\0b"};

static void refuse_field(const struct target *t, Sandgate__Exec *e, const char *field)
{
	Sandgate__Refused *r = ask_refused(t, SANDGATE__OPEN__OP_EXEC, e, ERR_INVALID_FIELD);

	expect(strncmp(r->field, field, strlen(field)) == 0, "field '%s' instead of '%s'",
	       r->field, field);
}

static void nul_bytes(const struct target *t)
{
	Sandgate__EnvVar var = SANDGATE__ENV_VAR__INIT, *env[] = {&var};
	Sandgate__Exec cmd = ask_sh("true"), cwd = ask_sh("true"), user = ask_sh("true");
	Sandgate__Exec argv = ask_argv((const char *[]){"true", "x", NULL});
	Sandgate__Exec with_env = ask_sh("true");

	cmd.cmd = cwd.cwd = user.user = argv.argv[1] = with_nul;
	refuse_field(t, &cmd, "cmd");
	refuse_field(t, &cwd, "cwd");
	refuse_field(t, &user, "user");
	refuse_field(t, &argv, "argv");
	with_env.env = env;
	with_env.n_env = 1;
	var.name = with_nul;
	refuse_field(t, &with_env, "env");
	var.name = ask_text("A");
	var.value = with_nul;
	refuse_field(t, &with_env, "env");
}

static void bad_environment(const struct target *t)
{
	Sandgate__EnvVar var = SANDGATE__ENV_VAR__INIT, *env[] = {&var};
	Sandgate__Exec e = ask_sh("true");

	e.env = env;
	e.n_env = 1;
	refuse_field(t, &e, "env");
	var.name = ask_text("A=B");
	refuse_field(t, &e, "env");
}

static void what_to_run(const struct target *t)
{
	Sandgate__Exec neither = ask_sh(""), both = ask_argv((const char *[]){"true", NULL});
	Sandgate__Exec relative = ask_sh("true");

	neither.cmd.len = 0;
	ask_refused(t, SANDGATE__OPEN__OP_EXEC, &neither, ERR_NONE);
	both.cmd = ask_text("true");
	ask_refused(t, SANDGATE__OPEN__OP_EXEC, &both, ERR_NONE);
	relative.cwd = ask_text("tmp");
	refuse_field(t, &relative, "cwd");
}

static const struct check checks[] = {
    {28, "a repeated start stands by while the exec has its owner", repeat_while_running},
    {28, "a repeated start takes up an exec whose owner was lost", repeat_after_a_lost_link},
    {28, "a repeated start returns the retained result", repeat_when_finished},
    {28, "the same id with another request is a conflict", conflict},
    {81, "a forgotten id that was never seen refuses a late start", tombstone},
    {21, "an id outside its alphabet or length is refused", bad_ids},
    {21, "an id named like a cgroup file is just an id", tricky_ids},
    {21, "a NUL in any string is refused, naming the field", nul_bytes},
    {21, "an environment name that is empty or holds '=' is refused", bad_environment},
    {20, "exactly one of cmd and argv, and an absolute cwd", what_to_run},
};
CHECK_TABLE(checks_id, checks);
