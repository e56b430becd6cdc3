/*
 * An Exec message, validated and turned into what a spawn needs: nothing here starts
 * anything. Every fault is named by the API's field name, and nothing is cut or dropped:
 * a NUL anywhere, a bad name or a number out of range refuses the whole request.
 */
#ifndef SANDGATE_EXEC_REQUEST_H
#define SANDGATE_EXEC_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "guest-agent/cgroup.h"
#include "guest-agent/config.h"
#include "guest-agent/identity.h"
#include "proto/limits.h"
#include "proto/sandgate.pb-c.h"

/* Names and values of an environment, whoever sets it. */
int exec_request_check_env(Sandgate__EnvVar *const *env, size_t count, struct err *e);

struct exec_request {
	char id[EXEC_ID_MAX + 1];
	uint8_t *digest;
	size_t digest_len;

	/* What the spawn needs, until exec_request_spent(); strings lie in one allocation. */
	char **argv, **envp;
	const char *path; /* PATH of the new environment */
	const char *cwd;
	const char *user; /* as asked for, or the default */
	char *strings;
	struct identity *who;
	bool cwd_is_default; /* the home: a command that named no directory may do without */
	int user_errno;      /* not 0: the spawn fails at stage "user" with it */
	int cmd_fd;          /* a long command's memfd, or -1 */

	uint8_t *stdin_data; /* malloc'ed; a stdin_feed takes it over */
	size_t stdin_len;
	bool stdin_open, merge_stderr, no_new_privs, narrow_caps;
	bool detach_on_disconnect, kill_on_exit, detached, keep_output;
	uint64_t caps;
	uint64_t timeout_ms;  /* 0: none */
	uint64_t cpu_time_ms; /* 0: none */
	uint64_t grace_ms, link_grace_ms, output_bytes;
	uint64_t open_files, file_size; /* UINT64_MAX: not asked for */
	struct cgroup_limits limits;
};

/* Fill `out`; `m` loses its stdin bytes to it. On failure nothing is left to free. */
int exec_request_parse(struct exec_request *out, Sandgate__Exec *m, const struct config *cfg,
                       struct err *e);
/* Free what only the spawn needed. */
void exec_request_spent(struct exec_request *r);
void exec_request_free(struct exec_request *r);

/* Whether `id` may name an exec; ERR_INVALID_FIELD "exec_id" else. */
int exec_request_check_id(const char *id, struct err *e);

#endif
