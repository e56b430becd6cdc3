/* What a command is started with, and how a failure to start is told. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"
#include "tests/conformance/ask.h"

static void expect_spawn_failed(const struct target *t, Sandgate__Exec *e, const char *stage,
                                int errnum, int exit_code)
{
	struct ask_end end = ask_run(t, e);

	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED, exit_code);
	Sandgate__SpawnError *s = end.result->spawn_error;
	expect(s, "spawn_failed without spawn_error");
	expect(strcmp(s->stage, stage) == 0 && s->error_number == errnum,
	       "expected stage %s errno %d, got %s %d", stage, errnum, s->stage,
	       s->error_number);
	expect(end.len[0] + end.len[1] == 0, "something ran");
}

static void bad_cwd(const struct target *t)
{
	static const struct {
		const char *cwd;
		int errnum;
	} cases[] = {{"/nope", ENOENT}, {"/proc/version", ENOTDIR}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		Sandgate__Exec e = ask_sh("echo ran");
		e.cwd = ask_text(cases[i].cwd);
		expect_spawn_failed(t, &e, "chdir", cases[i].errnum, 126);
	}
}

static void closed_cwd(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo ran");

	ask_run_sh(t, "mkdir -p /tmp/closed && chmod 700 /tmp/closed");
	e.cwd = ask_text("/tmp/closed");
	e.user = ask_text("12345:12345");
	expect_spawn_failed(t, &e, "chdir", EACCES, 126);
}

static void unknown_user(const struct target *t)
{
	Sandgate__Exec e = ask_sh("id -u");

	e.user = ask_text("ghost-of-nobody");
	expect_spawn_failed(t, &e, "user", ENOENT, 126);
}

static void malformed_user(const struct target *t)
{
	static const char *const users[] = {"1000:", ":1000",      "-1",   "0x0",
	                                    "0 ",    "4294967296", "1:2:3"};

	for (size_t i = 0; i < sizeof(users) / sizeof(users[0]); i++) {
		Sandgate__Exec e = ask_sh("echo ran");
		e.user = ask_text(users[i]);
		struct conn *c = ask_session(t, SANDGATE__OPEN__OP_EXEC, &e);
		Sandgate__GuestFrame *m = conn_recv(c, CONN_WAIT_MS);
		if (m && m->body_case == SANDGATE__GUEST_FRAME__BODY_REFUSED)
			continue;
		if (m && m->body_case == SANDGATE__GUEST_FRAME__BODY_STARTED)
			m = conn_recv(c, CONN_WAIT_MS);
		expect(m && m->body_case == SANDGATE__GUEST_FRAME__BODY_EXIT &&
		           m->exit->result->outcome == SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED,
		       "user '%s' ran something", users[i]);
	}
}

static void not_found(const struct target *t)
{
	Sandgate__Exec e = ask_argv((const char *[]){"no-such-program", NULL});
	expect_spawn_failed(t, &e, "execve", ENOENT, 127);
	Sandgate__Exec absolute = ask_argv((const char *[]){"/no/such/program", NULL});
	expect_spawn_failed(t, &absolute, "execve", ENOENT, 127);
}

static void not_executable(const struct target *t)
{
	Sandgate__Exec e = ask_argv((const char *[]){"/etc/passwd", NULL});
	expect_spawn_failed(t, &e, "execve", EACCES, 126);
}

static void argument_too_long(const struct target *t)
{
	char *text = malloc(ARG_STRING_MAX + 2);

	expect(text, "out of memory");
	memset(text, 'x', ARG_STRING_MAX + 1);
	text[ARG_STRING_MAX + 1] = '\0';
	Sandgate__Exec e = ask_argv((const char *[]){"true", text, NULL});
	expect_spawn_failed(t, &e, "execve", E2BIG, 126);
}

static void long_command(const struct target *t)
{
	size_t len = ARG_STRING_MAX * 3;
	char *cmd = malloc(len + 1);
	static const char tail[] = "\necho \"$0 $#\"";

	expect(cmd, "out of memory");
	memset(cmd, '#', len);
	memcpy(cmd + len - strlen(tail), tail, sizeof(tail));
	struct ask_end end = ask_run_sh(t, cmd);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	expect(end.len[0] > 0, "it printed nothing");
}

static void expect_stdout(const struct target *t, const char *cmd, const char *want)
{
	struct ask_end end = ask_run_sh(t, cmd);

	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	if (strcmp((char *)end.bytes[0], want) != 0)
		fail("'%s' gave '%.200s'", cmd, (char *)end.bytes[0]);
}

static void nothing_inherited(const struct target *t)
{
	expect_stdout(t, "exec grep -E '^Sig(Blk|Ign)' /proc/self/status",
	              "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
	expect_stdout(t, "umask; cat /proc/self/oom_score_adj; ulimit -n", "0022\n0\n1024\n");

	Sandgate__Exec e = ask_argv((const char *[]){"ls", "/proc/self/fd", NULL});
	struct ask_end end = ask_run(t, &e);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "0\n1\n2\n3\n");
}

static void broken_pipe_kills(const struct target *t)
{
	struct ask_end end = ask_run_sh(t, "while :; do echo a; done | head -n 1");

	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "a\n");
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDERR, "");
}

static void environment(const struct target *t)
{
	Sandgate__Exec e = ask_sh("echo $HOME $USER $LOGNAME $LANG $A; test -n \"$PATH\"; pwd");
	Sandgate__EnvVar a = SANDGATE__ENV_VAR__INIT, *env[] = {&a};

	a.name = ask_text("A");
	a.value = ask_text("b=c d");
	e.env = env;
	e.n_env = 1;
	e.user = ask_text("0");
	struct ask_end end = ask_run(t, &e);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT,
	                "/root root root C.UTF-8 b=c d\n/root\n");
}

static void own_user(const struct target *t)
{
	Sandgate__Exec e = ask_sh("id -u; id -g; id -G; echo ok > /root/x");

	e.user = ask_text("12345:23456");
	e.cwd = ask_text("/");
	struct ask_end end = ask_run(t, &e);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "12345\n23456\n23456\n");
	expect(end.result->exit_code != 0, "it could write to /root");
}

static void narrowed(const struct target *t)
{
	Sandgate__Exec e = ask_sh("grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status");
	Sandgate__Capabilities caps = SANDGATE__CAPABILITIES__INIT;
	char *keep[] = {"CAP_KILL"};

	caps.keep = keep;
	caps.n_keep = 1;
	e.capabilities = &caps;
	e.no_new_privs = true;
	struct ask_end end = ask_run(t, &e);
	ask_expect_text(
	    &end, SANDGATE__STREAM__STREAM_STDOUT,
	    "CapEff:\t0000000000000020\nCapBnd:\t0000000000000020\nNoNewPrivs:\t1\n");

	keep[0] = "CAP_NO_SUCH";
	e.exec_id = ask_id();
	Sandgate__Refused *r = ask_refused(t, SANDGATE__OPEN__OP_EXEC, &e, ERR_INVALID_FIELD);
	expect(strncmp(r->field, "capabilities", 12) == 0, "field '%s'", r->field);
}

static const struct check checks[] = {
    {26, "a missing cwd, or a file, is spawn_failed at chdir", bad_cwd},
    {26, "a cwd closed to the user is spawn_failed at chdir", closed_cwd},
    {24, "an unknown user is spawn_failed at user", unknown_user},
    {24, "a malformed user never runs anything", malformed_user},
    {54, "a missing program is spawn_failed at execve, 127", not_found},
    {54, "a file that is not executable is spawn_failed, 126", not_executable},
    {26, "an argument over the kernel's limit is E2BIG", argument_too_long},
    {20, "a command over the kernel's limit runs", long_command},
    {23, "signals, mask, umask, limits, descriptors: nothing is inherited", nothing_inherited},
    {23, "SIGPIPE kills a producer whose reader is gone", broken_pipe_kills},
    {23, "the environment is the user's and the request's", environment},
    {24, "a numeric user has no group of root's", own_user},
    {21, "capabilities and no_new_privs narrow", narrowed},
};
CHECK_TABLE(checks_spawn, checks);
