#include "guest-agent/exec_request.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/limits.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

int exec_request_check_id(const char *id, struct err *e)
{
	static const char allowed[] =
	    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t n = strlen(id);
	if (n == 0 || n > EXEC_ID_MAX || strspn(id, allowed) != n)
		return err_field(e, ERR_INVALID_FIELD, "exec_id",
		                 "exec_id is not 1 to %d of A-Z a-z 0-9 . _ -", EXEC_ID_MAX);
	return 0;
}

static int check_text(ProtobufCBinaryData b, const char *field, struct err *e)
{
	if (b.len > 0 && memchr(b.data, '\0', b.len) != NULL)
		return err_field(e, ERR_INVALID_FIELD, field, "%s holds a NUL", field);
	return 0;
}

static int check_command(const Sandgate__Exec *m, struct err *e)
{
	if (m->cmd.len == 0 && m->n_argv == 0)
		return err_field(e, ERR_MISSING_FIELD, "cmd", "neither cmd nor argv is given");
	if (m->cmd.len > 0 && m->n_argv > 0)
		return err_field(e, ERR_INVALID_FIELD, "argv",
		                 "cmd and argv exclude each other");
	if (check_text(m->cmd, "cmd", e) < 0)
		return -1;
	for (size_t i = 0; i < m->n_argv; i++)
		if (check_text(m->argv[i], "argv", e) < 0)
			return -1;
	if (m->n_argv > 0 && m->argv[0].len == 0)
		return err_field(e, ERR_INVALID_FIELD, "argv", "argv[0] is empty");
	return 0;
}

int exec_request_check_env(Sandgate__EnvVar *const *env, size_t count, struct err *e)
{
	if (count > ENV_COUNT_MAX)
		return err_field(e, ERR_INVALID_FIELD, "env", "more than %d variables",
		                 ENV_COUNT_MAX);
	for (size_t i = 0; i < count; i++) {
		ProtobufCBinaryData name = env[i]->name;
		if (check_text(name, "env", e) < 0 || check_text(env[i]->value, "env", e) < 0)
			return -1;
		if (name.len == 0 || memchr(name.data, '=', name.len) != NULL)
			return err_field(e, ERR_INVALID_FIELD, "env",
			                 "a variable's name is empty or holds '='");
	}
	return 0;
}

static int check_numbers(const Sandgate__Exec *m, struct err *e)
{
	if (m->request_digest.len > EXEC_DIGEST_MAX)
		return err_field(e, ERR_INVALID_FIELD, "request_digest", "over %d bytes",
		                 EXEC_DIGEST_MAX);
	if (m->timeout_ms > EXEC_TIMEOUT_MAX_S * 1000ull)
		return err_field(e, ERR_INVALID_FIELD, "timeout_seconds", "over %d s",
		                 EXEC_TIMEOUT_MAX_S);
	if (m->grace_ms > EXEC_GRACE_MAX_S * 1000ull)
		return err_field(e, ERR_INVALID_FIELD, "grace_seconds", "over %d s",
		                 EXEC_GRACE_MAX_S);
	if (m->link_grace_ms > EXEC_TIMEOUT_MAX_S * 1000ull)
		return err_field(e, ERR_INVALID_FIELD, "link_grace_seconds", "over %d s",
		                 EXEC_TIMEOUT_MAX_S);
	if (m->on_disconnect > SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH)
		return err_field(e, ERR_INVALID_FIELD, "on_disconnect", "unknown value");
	if (m->on_exit > SANDGATE__ON_EXIT__EXIT_KILL)
		return err_field(e, ERR_INVALID_FIELD, "on_exit", "unknown value");
	return 0;
}

static int check(const Sandgate__Exec *m, struct err *e)
{
	if (exec_request_check_id(m->exec_id, e) < 0 || check_command(m, e) < 0 ||
	    exec_request_check_env(m->env, m->n_env, e) < 0 ||
	    check_text(m->cwd, "cwd", e) < 0 || check_text(m->user, "user", e) < 0 ||
	    check_numbers(m, e) < 0)
		return -1;
	if (m->cwd.len > 0 && m->cwd.data[0] != '/')
		return err_field(e, ERR_INVALID_FIELD, "cwd", "cwd is not absolute");
	return 0;
}

/* ---- limits ---- */

static int take_limit(const Sandgate__Uint64Value *v, const char *field, uint64_t max,
                      uint64_t *out, struct err *e)
{
	if (v == NULL)
		return 0;
	if (v->value == 0 || v->value > max)
		return err_field(e, ERR_INVALID_FIELD, field, "%s is 0 or over %llu", field,
		                 (unsigned long long)max);
	*out = v->value;
	return 0;
}

static int parse_limits(struct exec_request *out, const Sandgate__Limits *m, struct err *e)
{
	const uint64_t most = UINT64_MAX - 1;
	struct cgroup_limits *l = &out->limits;

	*l = (struct cgroup_limits){UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
	                            UINT64_MAX, UINT64_MAX, true};
	out->open_files = out->file_size = UINT64_MAX;
	out->output_bytes = OUTPUT_BYTES_DEFAULT;
	if (m == NULL)
		return 0;
	if (m->base.n_unknown_fields > 0)
		return err_field(e, ERR_LIMIT_UNSUPPORTED, "limits",
		                 "limit number %u is not known to this agent",
		                 m->base.unknown_fields[0].tag);
	if (m->swap_bytes != NULL)
		l->swap_bytes = m->swap_bytes->value;
	if (m->oom_group != NULL)
		l->oom_group = m->oom_group->value;
	if (m->file_size_bytes != NULL)
		out->file_size = m->file_size_bytes->value;
	if (take_limit(m->memory_bytes, "limits.memory_mib", most, &l->memory_bytes, e) < 0 ||
	    take_limit(m->pids, "limits.pids", most, &l->pids, e) < 0 ||
	    take_limit(m->cpu_milli, "limits.cpus", 1000000000, &l->cpu_milli, e) < 0 ||
	    take_limit(m->io_read_bps, "limits.io_read_bps", most, &l->io_read_bps, e) < 0 ||
	    take_limit(m->io_write_bps, "limits.io_write_bps", most, &l->io_write_bps, e) < 0 ||
	    take_limit(m->cpu_time_ms, "limits.cpu_seconds", CPU_SECONDS_MAX * 1000ull,
	               &out->cpu_time_ms, e) < 0 ||
	    take_limit(m->output_bytes, "limits.output_bytes", OUTPUT_BYTES_MAX,
	               &out->output_bytes, e) < 0 ||
	    take_limit(m->open_files, "limits.open_files", NOFILE_HARD, &out->open_files, e) <
	        0)
		return -1;
	return 0;
}

static int parse_privileges(struct exec_request *out, const Sandgate__Exec *m,
                            const struct config *cfg, struct err *e)
{
	out->no_new_privs = cfg->no_new_privs || m->no_new_privs;
	out->narrow_caps = cfg->narrow_caps;
	out->caps = cfg->narrow_caps ? cfg->caps : UINT64_MAX;
	if (m->capabilities == NULL)
		return 0;
	uint64_t asked = 0;
	if (identity_caps(m->capabilities->keep, m->capabilities->n_keep, &asked, e) < 0)
		return -1;
	out->narrow_caps = true;
	out->caps &= asked;
	return 0;
}

/* ---- strings: argv, environment, cwd, user ---- */

/* Lays strings one behind the other; with `at` NULL it only measures. */
struct layout {
	char *at;
	size_t size;
};

static char *lay(struct layout *l, const void *a, size_t a_len, const void *b, size_t b_len)
{
	char *s = l->at;
	if (s != NULL) {
		memcpy(s, a, a_len);
		if (b_len > 0)
			memcpy(s + a_len, b, b_len);
		s[a_len + b_len] = '\0';
		l->at += a_len + b_len + 1;
	}
	l->size += a_len + b_len + 1;
	return s;
}

static char *lay_data(struct layout *l, ProtobufCBinaryData b)
{
	return lay(l, b.len > 0 ? (const char *)b.data : "", b.len, "", 0);
}

static char *lay_var(struct layout *l, const char *name, const char *value)
{
	return lay(l, name, strlen(name), value, strlen(value));
}

static size_t name_len(const char *var)
{
	return (size_t)(strchr(var, '=') - var) + 1;
}

/* Append, or replace the variable of the same name. */
static void put_var(struct exec_request *r, size_t *count, char *var)
{
	if (r->strings == NULL)
		return;
	size_t len = name_len(var), i = 0;
	while (i < *count && strncmp(r->envp[i], var, len) != 0)
		i++;
	r->envp[i] = var;
	if (i == *count)
		(*count)++;
}

static void lay_env(struct exec_request *r, struct layout *l, const Sandgate__Exec *m,
                    const struct config *cfg)
{
	size_t n = 0;
	put_var(r, &n, lay_var(l, "PATH=", DEFAULT_PATH));
	put_var(r, &n, lay_var(l, "HOME=", r->who->home));
	put_var(r, &n, lay_var(l, "USER=", r->who->name));
	put_var(r, &n, lay_var(l, "LOGNAME=", r->who->name));
	put_var(r, &n, lay_var(l, "SHELL=", r->who->shell));
	put_var(r, &n, lay_var(l, "LANG=", "C.UTF-8"));
	for (size_t i = 0; i < cfg->env_count; i++)
		put_var(r, &n, lay_var(l, cfg->env[i], ""));
	for (size_t i = 0; i < m->n_env; i++) {
		ProtobufCBinaryData name = m->env[i]->name, value = m->env[i]->value;
		char *s = lay(l, name.data, name.len, "=", 1);
		char *v = lay_data(l, value);
		if (s != NULL) {
			/* The value lies behind the name's NUL: close up over it. */
			memmove(s + name.len + 1, v, value.len + 1);
			put_var(r, &n, s);
		}
	}
}

static void lay_all(struct exec_request *r, struct layout *l, const Sandgate__Exec *m,
                    const struct config *cfg)
{
	size_t n = 0;
	char *argv[3] = {"/bin/sh", "-c", NULL}, source[40];

	snprintf(source, sizeof(source), ". /proc/self/fd/%d", r->cmd_fd);
	for (size_t i = 0; i < 2 && m->n_argv == 0; i++, n++) {
		char *s = lay_var(l, argv[i], "");
		if (r->strings != NULL)
			r->argv[n] = s;
	}
	size_t words = m->n_argv > 0 ? m->n_argv : 1;
	for (size_t i = 0; i < words; i++, n++) {
		char *s = m->n_argv > 0    ? lay_data(l, m->argv[i])
		          : r->cmd_fd >= 0 ? lay_var(l, source, "")
		                           : lay_data(l, m->cmd);
		if (r->strings != NULL)
			r->argv[n] = s;
	}
	lay_env(r, l, m, cfg);
	r->cwd = m->cwd.len > 0 ? lay_data(l, m->cwd) : lay_var(l, r->who->home, "");
	r->user = m->user.len > 0 ? lay_data(l, m->user)
	                          : lay_var(l, cfg->user != NULL ? cfg->user : "root", "");
}

static int build_strings(struct exec_request *r, const Sandgate__Exec *m,
                         const struct config *cfg, struct err *e)
{
	struct layout l = {NULL, 0};

	lay_all(r, &l, m, cfg);
	r->argv = calloc(m->n_argv + 4, sizeof(char *));
	r->envp = calloc(6 + cfg->env_count + m->n_env + 1, sizeof(char *));
	r->strings = l.at = malloc(l.size);
	if (r->argv == NULL || r->envp == NULL || r->strings == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	lay_all(r, &l, m, cfg);
	for (size_t i = 0; r->envp[i] != NULL; i++)
		if (strncmp(r->envp[i], "PATH=", 5) == 0)
			r->path = r->envp[i] + 5;
	return 0;
}

/* ---- the command ---- */

/*
 * A command that is too long for one argument travels in a sealed memfd and is sourced from
 * there by the same `/bin/sh -c`, so $0 and the exit status are what they are for a short
 * one. /proc/self/fd opens the file anew: a command that reads or closes the descriptor
 * does not disturb its own shell.
 */
static int make_cmd_fd(struct exec_request *r, ProtobufCBinaryData cmd, struct err *e)
{
	if (cmd.len + 1 <= ARG_STRING_MAX)
		return 0;
	r->cmd_fd = memfd_create("cmd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (r->cmd_fd < 0)
		return err_errno(e, ERR_INTERNAL, errno, "memfd for a long command");
	for (size_t done = 0; done < cmd.len;) {
		ssize_t n = write(r->cmd_fd, cmd.data + done, cmd.len - done);
		if (n < 0 && errno != EINTR)
			return err_errno(e, ERR_INTERNAL, errno, "memfd for a long command");
		done += n > 0 ? (size_t)n : 0;
	}
	fcntl(r->cmd_fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
	return 0;
}

static void resolve_user(struct exec_request *r, const Sandgate__Exec *m,
                         const struct config *cfg)
{
	char spec[128];
	const char *fallback = cfg->user != NULL ? cfg->user : "root";

	if (m->user.len == 0)
		snprintf(spec, sizeof(spec), "%s", fallback);
	else if (m->user.len < sizeof(spec))
		snprintf(spec, sizeof(spec), "%.*s", (int)m->user.len,
		         (const char *)m->user.data);
	r->user_errno = m->user.len < sizeof(spec) ? identity_resolve(spec, r->who) : EINVAL;
}

int exec_request_parse(struct exec_request *out, Sandgate__Exec *m, const struct config *cfg,
                       struct err *e)
{
	*out = (struct exec_request){.cmd_fd = -1};
	if (check(m, e) < 0 || parse_limits(out, m->limits, e) < 0 ||
	    parse_privileges(out, m, cfg, e) < 0)
		return -1;

	memcpy(out->id, m->exec_id, strlen(m->exec_id) + 1);
	out->merge_stderr = m->merge_stderr;
	out->detach_on_disconnect =
	    m->on_disconnect == SANDGATE__ON_DISCONNECT__DISCONNECT_DETACH;
	out->kill_on_exit = m->on_exit == SANDGATE__ON_EXIT__EXIT_KILL;
	out->detached = m->detached;
	out->keep_output = m->keep_output;
	out->timeout_ms = m->timeout_ms;
	out->grace_ms = m->grace_ms;
	out->link_grace_ms = m->link_grace_ms;

	out->cwd_is_default = m->cwd.len == 0;
	if ((out->who = calloc(1, sizeof(*out->who))) == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	resolve_user(out, m, cfg);
	if (make_cmd_fd(out, m->cmd, e) < 0 || build_strings(out, m, cfg, e) < 0)
		goto fail;
	if (m->request_digest.len > 0) {
		out->digest = malloc(m->request_digest.len);
		if (out->digest == NULL) {
			err_set(e, ERR_INTERNAL, "out of memory");
			goto fail;
		}
		memcpy(out->digest, m->request_digest.data, m->request_digest.len);
		out->digest_len = m->request_digest.len;
	}
	out->stdin_open = m->stdin_open;
	out->stdin_data = m->stdin.data;
	out->stdin_len = m->stdin.len;
	m->stdin.data = NULL;
	m->stdin.len = 0;
	return 0;
fail:
	exec_request_free(out);
	return -1;
}

void exec_request_spent(struct exec_request *r)
{
	free(r->argv);
	free(r->envp);
	free(r->strings);
	free(r->who);
	r->argv = r->envp = NULL;
	r->strings = NULL;
	r->who = NULL;
	r->path = r->cwd = r->user = NULL;
	if (r->cmd_fd >= 0)
		close(r->cmd_fd);
	r->cmd_fd = -1;
}

void exec_request_free(struct exec_request *r)
{
	exec_request_spent(r);
	free(r->digest);
	free(r->stdin_data);
	r->digest = r->stdin_data = NULL;
}
