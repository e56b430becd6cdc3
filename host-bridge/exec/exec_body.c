#include "host-bridge/exec/exec_body.h"

#include <stdio.h>
#include <string.h>

#include "proto/limits.h"

#define MIB_MAX (1 << 24) /* 16 TiB: what a limit in MiB may say */
#define BPS_MAX 1e15

#define LIMIT(f, t, lo, hi) \
	.name = #f, .type = t, .offset = offsetof(struct limit_fields, f), .min = lo, .max = hi
static const struct body_field limit_table[] = {
    {LIMIT(memory_mib, BODY_INT, 1, MIB_MAX)},
    {LIMIT(swap_mib, BODY_INT, 0, MIB_MAX)},
    {LIMIT(oom_group, BODY_BOOL, 0, 0)},
    {LIMIT(pids, BODY_INT, 1, 4194304)},
    {LIMIT(cpus, BODY_NUM, 0.01, 1024)},
    {LIMIT(cpu_seconds, BODY_NUM, 0, CPU_SECONDS_MAX), .above = true},
    {LIMIT(output_bytes, BODY_INT, 1, OUTPUT_BYTES_MAX)},
    {LIMIT(open_files, BODY_INT, 3, NOFILE_HARD)},
    {LIMIT(file_size_mib, BODY_INT, 0, MIB_MAX)},
    {LIMIT(io_read_bps, BODY_INT, 1, BPS_MAX)},
    {LIMIT(io_write_bps, BODY_INT, 1, BPS_MAX)},
    {.name = NULL},
};

static const char *const disconnect_names[] = {"kill", "detach", NULL};
static const char *const exit_names[] = {"keep", "kill", NULL};
static const char *const encoding_names[] = {"utf-8", "base64", NULL};

#define FIELD(f, t) .name = #f, .type = t, .offset = offsetof(struct exec_fields, f)
#define TIMEOUT FIELD(timeout_seconds, BODY_NUM), .max = EXEC_TIMEOUT_MAX_S, .above = true
#define LIMITS FIELD(limits, BODY_GROUP), .fields = limit_table
static const struct body_field exec_table[] = {
    {FIELD(cmd, BODY_STR)},
    {FIELD(argv, BODY_LIST)},
    {FIELD(exec_id, BODY_STR)},
    {FIELD(env, BODY_MAP)},
    {FIELD(cwd, BODY_STR)},
    {FIELD(user, BODY_STR)},
    {.name = "stdin", .type = BODY_BYTES, .offset = offsetof(struct exec_fields, input)},
    {.name = "stdin_base64",
     .type = BODY_STR,
     .offset = offsetof(struct exec_fields, input_base64)},
    {FIELD(stdin_open, BODY_BOOL)},
    {FIELD(merge_stderr, BODY_BOOL)},
    {TIMEOUT},
    {FIELD(grace_seconds, BODY_NUM), .max = EXEC_GRACE_MAX_S},
    {FIELD(no_new_privs, BODY_BOOL)},
    {FIELD(capabilities, BODY_LIST)},
    {FIELD(on_disconnect, BODY_ENUM), .names = disconnect_names},
    {FIELD(on_exit, BODY_ENUM), .names = exit_names},
    {FIELD(output_encoding, BODY_ENUM), .names = encoding_names},
    {LIMITS},
    {.name = NULL},
};

static const struct body_field defaults_table[] = {
    {FIELD(user, BODY_STR)}, {FIELD(env, BODY_MAP)}, {TIMEOUT}, {LIMITS}, {.name = NULL},
};

/* ---- rules that a table cannot say ---- */

static int check_exec_id(const struct body_str *id, struct err *e)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	                              "0123456789._-";
	if (id->s == NULL)
		return 0;
	if (id->len == 0 || id->len > EXEC_ID_MAX || strspn(id->s, allowed) != id->len)
		return err_field(e, ERR_INVALID_FIELD, "exec_id",
		                 "exec_id must be 1 to %d of A-Z a-z 0-9 . _ -", EXEC_ID_MAX);
	return 0;
}

static int check_env(json_t *env, const char *prefix, struct err *e)
{
	const char *key;
	json_t *value;
	json_object_foreach (env, key, value) {
		if (*key != '\0' && strchr(key, '=') == NULL)
			continue;
		char path[64];
		snprintf(path, sizeof(path), "%s.%.40s", prefix, key);
		return err_field(e, ERR_INVALID_FIELD, path,
		                 "a variable's name must not be empty or hold \"=\"");
	}
	return 0;
}

static int check_command(const struct exec_fields *f, struct err *e)
{
	if (f->cmd.s == NULL && f->argv == NULL)
		return err_field(e, ERR_MISSING_FIELD, "cmd", "cmd or argv is required");
	if (f->cmd.s != NULL && f->argv != NULL)
		return err_field(e, ERR_INVALID_FIELD, "argv",
		                 "cmd and argv exclude each other");
	if (f->cmd.s != NULL && f->cmd.len == 0)
		return err_field(e, ERR_INVALID_FIELD, "cmd", "cmd must not be empty");
	if (f->argv != NULL && (json_array_size(f->argv) == 0 ||
	                        json_string_length(json_array_get(f->argv, 0)) == 0))
		return err_field(e, ERR_INVALID_FIELD, "argv", "argv needs a program's name");
	return 0;
}

static int check(const struct exec_fields *f, struct err *e)
{
	if (check_command(f, e) < 0 || check_exec_id(&f->exec_id, e) < 0 ||
	    check_env(f->env, "env", e) < 0)
		return -1;
	if (f->cwd.s != NULL && f->cwd.s[0] != '/')
		return err_field(e, ERR_INVALID_FIELD, "cwd", "cwd must be an absolute path");
	if (f->user.s != NULL && f->user.len == 0)
		return err_field(e, ERR_INVALID_FIELD, "user", "user must not be empty");
	if (f->input.s != NULL && f->input_base64.s != NULL)
		return err_field(e, ERR_INVALID_FIELD, "stdin_base64",
		                 "stdin and stdin_base64 exclude each other");
	return 0;
}

json_t *exec_body_parse(const char *data, size_t len, struct exec_fields *f, struct err *e)
{
	json_t *doc = body_parse(data, len, exec_table, f, e);
	if (doc == NULL || check(f, e) == 0)
		return doc;
	json_decref(doc);
	return NULL;
}

int exec_body_read_defaults(json_t *defaults, struct exec_fields *f, struct err *e)
{
	if (body_read("exec_defaults.", defaults, defaults_table, f, e) < 0)
		return -1;
	return check_env(f->env, "exec_defaults.env", e);
}
