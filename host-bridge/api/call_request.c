#include "host-bridge/api/call_request.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

#define MIB_MAX (1 << 24) /* 16 TiB: what a limit in MiB may say */
#define BPS_MAX 1e15

struct limit_fields {
	struct body_int memory_mib, swap_mib, pids, output_bytes, open_files, file_size_mib,
	    io_read_bps, io_write_bps;
	struct body_num cpus, cpu_seconds;
	struct body_bool oom_group;
};

struct exec_fields {
	struct body_str cmd, exec_id, cwd, user, input, input_base64;
	struct body_bool stdin_open, merge_stderr, no_new_privs;
	struct body_num timeout_seconds, grace_seconds;
	struct body_int on_disconnect, on_exit, output_encoding;
	json_t *argv, *env, *capabilities;
	struct limit_fields limits;
};

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

int call_request_check_defaults(json_t *defaults, struct err *e)
{
	struct exec_fields f = {0};
	if (body_read("exec_defaults.", defaults, defaults_table, &f, e) < 0)
		return -1;
	return check_env(f.env, "exec_defaults.env", e);
}

/* ---- conversion ---- */

static ProtobufCBinaryData bytes(const char *s, size_t len)
{
	return (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)s};
}

static int compare_env(const void *a, const void *b)
{
	const Sandgate__EnvVar *x = a, *y = b;
	return strcmp((const char *)x->name.data, (const char *)y->name.data);
}

/* The request's variables over the defaults', in order of name: an object has no order, so
 * neither may the digest. */
static int take_env(struct call_request *q, json_t *defaults, json_t *own)
{
	size_t n = 0, room = json_object_size(defaults) + json_object_size(own);
	const char *key;
	json_t *value;
	if (room == 0)
		return 0;
	q->env = calloc(room, sizeof(*q->env));
	q->env_list = calloc(room, sizeof(Sandgate__EnvVar *));
	if (q->env == NULL || q->env_list == NULL)
		return -1;
	for (int own_turn = 0; own_turn < 2; own_turn++) {
		json_object_foreach (own_turn ? own : defaults, key, value) {
			if (!own_turn && json_is_string(json_object_get(own, key)))
				continue;
			if (!json_is_string(value))
				continue;
			sandgate__env_var__init(&q->env[n]);
			q->env[n].name = bytes(key, strlen(key));
			q->env[n++].value =
			    bytes(json_string_value(value), json_string_length(value));
		}
	}
	qsort(q->env, n, sizeof(*q->env), compare_env);
	for (size_t i = 0; i < n; i++)
		q->env_list[i] = &q->env[i];
	q->exec.n_env = n;
	q->exec.env = q->env_list;
	return 0;
}

static int take_argv(struct call_request *q, json_t *argv)
{
	size_t i, n = json_array_size(argv);
	json_t *item;
	if (n == 0)
		return 0;
	q->argv = calloc(n, sizeof(*q->argv));
	if (q->argv == NULL)
		return -1;
	json_array_foreach (argv, i, item)
		q->argv[i] = bytes(json_string_value(item), json_string_length(item));
	q->exec.n_argv = n;
	q->exec.argv = q->argv;
	return 0;
}

static int take_capabilities(struct call_request *q, json_t *list)
{
	size_t i, n = json_array_size(list);
	json_t *item;
	if (list == NULL)
		return 0;
	sandgate__capabilities__init(&q->capabilities);
	q->exec.capabilities = &q->capabilities;
	if (n == 0)
		return 0;
	q->keep = calloc(n, sizeof(char *));
	if (q->keep == NULL)
		return -1;
	json_array_foreach (list, i, item)
		q->keep[i] = (char *)(uintptr_t)json_string_value(item);
	q->capabilities.n_keep = n;
	q->capabilities.keep = q->keep;
	return 0;
}

static Sandgate__Uint64Value *value(struct call_request *q, int slot, bool set, double v)
{
	if (!set)
		return NULL;
	sandgate__uint64_value__init(&q->values[slot]);
	q->values[slot].value = (uint64_t)v;
	return &q->values[slot];
}

static Sandgate__Uint64Value *integer(struct call_request *q, int slot,
                                      const struct body_int *own,
                                      const struct body_int *fallback, unsigned unit)
{
	const struct body_int *from = own->set ? own : fallback;
	return value(q, slot, from->set, (double)from->v * unit);
}

static Sandgate__Uint64Value *thousandths(struct call_request *q, int slot,
                                          const struct body_num *own,
                                          const struct body_num *fallback)
{
	const struct body_num *from = own->set ? own : fallback;
	return value(q, slot, from->set, ceil(from->v * 1000));
}

static void take_limits(struct call_request *q, const struct limit_fields *f,
                        const struct limit_fields *d)
{
	Sandgate__Limits *l = &q->limits;
	const struct body_bool *group = f->oom_group.set ? &f->oom_group : &d->oom_group;
	sandgate__limits__init(l);
	l->memory_bytes = integer(q, 0, &f->memory_mib, &d->memory_mib, MIB);
	l->swap_bytes = integer(q, 1, &f->swap_mib, &d->swap_mib, MIB);
	l->pids = integer(q, 2, &f->pids, &d->pids, 1);
	l->cpu_milli = thousandths(q, 3, &f->cpus, &d->cpus);
	l->cpu_time_ms = thousandths(q, 4, &f->cpu_seconds, &d->cpu_seconds);
	l->output_bytes = integer(q, 5, &f->output_bytes, &d->output_bytes, 1);
	l->open_files = integer(q, 6, &f->open_files, &d->open_files, 1);
	l->file_size_bytes = integer(q, 7, &f->file_size_mib, &d->file_size_mib, MIB);
	l->io_read_bps = integer(q, 8, &f->io_read_bps, &d->io_read_bps, 1);
	l->io_write_bps = integer(q, 9, &f->io_write_bps, &d->io_write_bps, 1);
	if (group->set) {
		sandgate__bool_value__init(&q->oom_group);
		q->oom_group.value = group->v;
		l->oom_group = &q->oom_group;
	}
	q->output_bytes =
	    l->output_bytes != NULL ? l->output_bytes->value : OUTPUT_BYTES_DEFAULT;
	q->exec.limits = l;
}

static int take_stdin(struct call_request *q, const struct exec_fields *f, struct err *e)
{
	q->exec.stdin = bytes(f->input.s, f->input.len);
	if (f->input_base64.s == NULL)
		return 0;
	size_t len, room = f->input_base64.len / 4 * 3 + 3;
	q->stdin_decoded = malloc(room);
	if (q->stdin_decoded == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	if (sodium_base642bin(q->stdin_decoded, room, f->input_base64.s, f->input_base64.len,
	                      NULL, &len, NULL, sodium_base64_VARIANT_ORIGINAL) < 0)
		return err_field(e, ERR_INVALID_FIELD, "stdin_base64",
		                 "stdin_base64 must be base64 with its padding");
	q->exec.stdin = (ProtobufCBinaryData){len, q->stdin_decoded};
	return 0;
}

/* Hash the message as it stands, before its id is set and its input is cut. */
static int take_digest(struct call_request *q)
{
	size_t size = sandgate__exec__get_packed_size(&q->exec);
	uint8_t *packed = malloc(size + 1);
	if (packed == NULL)
		return -1;
	sandgate__exec__pack(&q->exec, packed);
	crypto_generichash(q->digest, sizeof(q->digest), packed, size, NULL, 0);
	free(packed);
	q->exec.request_digest = (ProtobufCBinaryData){sizeof(q->digest), q->digest};
	return 0;
}

static void take_id(struct call_request *q, const struct body_str *id)
{
	q->id_given = id->s != NULL;
	if (q->id_given) {
		memcpy(q->exec_id, id->s, id->len + 1);
	} else {
		unsigned char random[12];
		randombytes_buf(random, sizeof(random));
		memcpy(q->exec_id, "exec-", 5);
		sodium_bin2hex(q->exec_id + 5, sizeof(q->exec_id) - 5, random, sizeof(random));
	}
	q->exec.exec_id = q->exec_id;
}

static void cut_stdin(struct call_request *q)
{
	ProtobufCBinaryData *in = &q->exec.stdin;
	if (in->len <= STDIN_INLINE_MAX)
		return;
	q->stdin_rest = in->data + STDIN_INLINE_MAX;
	q->stdin_rest_len = in->len - STDIN_INLINE_MAX;
	in->len = STDIN_INLINE_MAX;
	q->exec.stdin_open = true;
}

static int build(struct call_request *q, const struct exec_fields *f,
                 const struct exec_fields *d, bool detached, struct err *e)
{
	Sandgate__Exec *x = &q->exec;
	const struct body_str *user = f->user.s != NULL ? &f->user : &d->user;
	const struct body_num *timeout =
	    f->timeout_seconds.set ? &f->timeout_seconds : &d->timeout_seconds;

	sandgate__exec__init(x);
	x->cmd = bytes(f->cmd.s, f->cmd.len);
	x->cwd = bytes(f->cwd.s, f->cwd.len);
	x->user = bytes(user->s, user->len);
	x->merge_stderr = f->merge_stderr.v;
	x->no_new_privs = f->no_new_privs.v;
	x->on_disconnect = (Sandgate__OnDisconnect)f->on_disconnect.v;
	x->on_exit = (Sandgate__OnExit)f->on_exit.v;
	x->detached = detached;
	x->link_grace_ms = LINK_GRACE_S * 1000;
	x->grace_ms = f->grace_seconds.set ? (uint64_t)ceil(f->grace_seconds.v * 1000)
	                                   : EXEC_GRACE_DEFAULT_MS;
	if (timeout->set)
		x->timeout_ms = (uint64_t)ceil(timeout->v * 1000);
	else
		x->timeout_ms = detached ? 0 : EXEC_TIMEOUT_DEFAULT_S * 1000;
	x->stdin_open = f->stdin_open.v;
	q->stdin_open = x->stdin_open;
	q->base64 = f->output_encoding.v == 1;
	take_limits(q, &f->limits, &d->limits);
	if (take_stdin(q, f, e) < 0)
		return -1;
	if (take_env(q, d->env, f->env) < 0 || take_argv(q, f->argv) < 0 ||
	    take_capabilities(q, f->capabilities) < 0 || take_digest(q) < 0)
		return err_set(e, ERR_INTERNAL, "out of memory");
	take_id(q, &f->exec_id);
	x->keep_output = q->id_given || detached || f->on_disconnect.v == 1;
	cut_stdin(q);
	if (sandgate__exec__get_packed_size(x) > FRAME_MAX_TO_GUEST - KIB)
		return err_set(e, ERR_TOO_LARGE,
		               "the command and its environment are over %u bytes",
		               FRAME_MAX_TO_GUEST - KIB);
	return 0;
}

struct call_request *call_request_parse(const char *data, size_t len, json_t *defaults,
                                        bool detached, struct err *e)
{
	struct exec_fields own = {0}, fallback = {0};
	struct call_request *q = calloc(1, sizeof(*q));
	if (q == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	q->defaults = json_incref(defaults);
	q->doc = body_parse(data, len, exec_table, &own, e);
	if (q->doc != NULL && check(&own, e) == 0 &&
	    (defaults == NULL ||
	     body_read("exec_defaults.", defaults, defaults_table, &fallback, e) == 0) &&
	    build(q, &own, &fallback, detached, e) == 0)
		return q;
	call_request_free(q);
	return NULL;
}

void call_request_free(struct call_request *q)
{
	if (q == NULL)
		return;
	json_decref(q->doc);
	json_decref(q->defaults);
	free(q->stdin_decoded);
	free(q->keep);
	free(q->env);
	free(q->env_list);
	free(q->argv);
	free(q);
}
