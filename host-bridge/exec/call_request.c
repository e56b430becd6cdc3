#include "host-bridge/exec/call_request.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/exec/exec_body.h"
#include "proto/frame.h"

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
		return err_set(e, ERR_CAPACITY, "out of memory");
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

/* A call feeds the rest, and of a detached exec none is left to do so. */
static int cut_stdin(struct call_request *q, struct err *e)
{
	ProtobufCBinaryData *in = &q->exec.stdin;
	if (in->len <= STDIN_INLINE_MAX)
		return 0;
	if (q->exec.detached)
		return err_limit(e, ERR_TOO_LARGE, "stdin", STDIN_INLINE_MAX,
		                 "a detached exec starts with at most %u bytes of input:"
		                 " send more to its stdin",
		                 STDIN_INLINE_MAX);
	q->stdin_rest = in->data + STDIN_INLINE_MAX;
	q->stdin_rest_len = in->len - STDIN_INLINE_MAX;
	in->len = STDIN_INLINE_MAX;
	q->exec.stdin_open = true;
	return 0;
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
		return err_set(e, ERR_CAPACITY, "out of memory");
	take_id(q, &f->exec_id);
	x->keep_output = q->id_given || detached || f->on_disconnect.v == 1;
	if (cut_stdin(q, e) < 0)
		return -1;
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
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	q->defaults = json_incref(defaults);
	q->doc = exec_body_parse(data, len, &own, e);
	if (q->doc != NULL &&
	    (defaults == NULL || exec_body_read_defaults(defaults, &fallback, e) == 0) &&
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
