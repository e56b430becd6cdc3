/*
 * conformance [--token-file FILE] [--only WORD] TARGET: judges the agent at TARGET by the
 * requirements of proto/README.md, one line a check. Exit status 0 when none failed, 1 when
 * one did or the agent cannot be reached at all.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/check.h"

/* Seconds after which a check that has not ended is killed. */
#define CHECK_DEADLINE_S 60

enum { STATUS_OK = 0, STATUS_FAILED = 1, STATUS_SKIPPED = 2 };

/* Where the running check, a child, writes why it failed or was skipped. */
static int why_fd = -1;

static _Noreturn void end_check(int status, const char *fmt, va_list ap)
{
	vdprintf(why_fd, fmt, ap);
	_exit(status);
}

void fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	end_check(STATUS_FAILED, fmt, ap);
}

void skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	end_check(STATUS_SKIPPED, fmt, ap);
}

static int run_check(const struct check *check, const struct target *t, char *why, size_t room)
{
	int pipe_fds[2], status;

	if (pipe(pipe_fds) < 0)
		return STATUS_FAILED;
	pid_t pid = fork();
	if (pid == 0) {
		close(pipe_fds[0]);
		why_fd = pipe_fds[1];
		alarm(CHECK_DEADLINE_S);
		check->run(t);
		_exit(STATUS_OK);
	}
	close(pipe_fds[1]);
	ssize_t n = read(pipe_fds[0], why, room - 1);
	why[n > 0 ? n : 0] = '\0';
	close(pipe_fds[0]);
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return STATUS_FAILED;
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	snprintf(why, room, "the check was ended by %s after at most %d s",
	         strsignal(WTERMSIG(status)), CHECK_DEADLINE_S);
	return STATUS_FAILED;
}

static unsigned run_table(const struct check_table *table, const struct target *t,
                          const char *only, unsigned counts[3])
{
	static const char *const words[] = {"ok", "not ok", "skip"};
	char why[512];

	for (size_t i = 0; i < table->count; i++) {
		const struct check *check = &table->checks[i];
		if (only && !strstr(check->name, only))
			continue;
		int status = run_check(check, t, why, sizeof(why));
		if (status != STATUS_OK && status != STATUS_SKIPPED)
			status = STATUS_FAILED;
		counts[status]++;
		printf("%s P-%u %s%s%s\n", words[status], check->requirement, check->name,
		       *why ? ": " : "", why);
		fflush(stdout);
	}
	return counts[STATUS_FAILED];
}

static void reach(const struct target *t)
{
	conn_close(conn_dial(t));
}

static int read_token(const char *path, struct target *t)
{
	FILE *f = fopen(path, "re");

	if (!f)
		return -1;
	t->token_len = fread(t->token, 1, sizeof(t->token), f);
	fclose(f);
	while (t->token_len > 0 && t->token[t->token_len - 1] == '\n')
		t->token_len--;
	return 0;
}

static _Noreturn void usage(const char *why)
{
	fprintf(stderr,
	        "%s\nusage: conformance [--token-file FILE] [--only WORD] "
	        "unix:PATH|hybrid:PATH[:PORT]|vsock:CID:PORT\n",
	        why);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct check_table *const tables[] = {
	    &checks_frame,  &checks_open,     &checks_query,  &checks_outcome, &checks_spawn,
	    &checks_output, &checks_owner,    &checks_stdin,  &checks_signal,  &checks_id,
	    &checks_limits, &checks_snapshot, &checks_resume,
	};
	static const struct check reached = {.run = reach};
	const char *token_file = NULL, *only = NULL, *why;
	char unreached[512];
	unsigned counts[3] = {0};
	struct target t;

	int i = 1;
	for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
		if (strcmp(argv[i], "--token-file") == 0)
			token_file = argv[i + 1];
		else if (strcmp(argv[i], "--only") == 0)
			only = argv[i + 1];
		else
			usage("unknown option");
	}
	if (i + 1 != argc)
		usage("one target is expected");
	if (target_parse(argv[i], &t, &why) < 0)
		usage(why);
	if (token_file && read_token(token_file, &t) < 0)
		usage(strerror(errno));

	if (run_check(&reached, &t, unreached, sizeof(unreached)) != STATUS_OK) {
		fprintf(stderr, "conformance: no agent at %s: %s\n", argv[i], unreached);
		return 1;
	}
	for (size_t n = 0; n < sizeof(tables) / sizeof(tables[0]); n++)
		run_table(tables[n], &t, only, counts);
	printf("%u passed, %u failed, %u skipped\n", counts[STATUS_OK], counts[STATUS_FAILED],
	       counts[STATUS_SKIPPED]);
	return counts[STATUS_FAILED] > 0;
}
