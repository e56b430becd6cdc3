#include "guest-agent/renewal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest-agent/exec_request.h"

static int parse_hostname(struct renewal *r, ProtobufCBinaryData name, struct err *e)
{
	static const char allowed[] =
	    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-";

	for (size_t i = 0; i < name.len; i++)
		if (i == HOSTNAME_MAX || name.data[i] == '\0' ||
		    strchr(allowed, name.data[i]) == NULL)
			return err_field(e, ERR_INVALID_FIELD, "hostname",
			                 "hostname is not up to %d of A-Z a-z 0-9 . -",
			                 HOSTNAME_MAX);
	if (name.len > 0)
		memcpy(r->hostname, name.data, name.len);
	return 0;
}

/* Only random bytes, and marked as such (RFC 9562, version 4). */
static void make_uuid(uint8_t id[RENEW_ID_SIZE])
{
	id[6] = (uint8_t)((id[6] & 0x0f) | 0x40);
	id[8] = (uint8_t)((id[8] & 0x3f) | 0x80);
}

/* The names take bytes that the generator never gets: it could be asked to tell them. */
static void take_names(struct renewal *r, ProtobufCBinaryData machine_id)
{
	_Static_assert(3 * RENEW_ID_SIZE == RESUME_ENTROPY_NAMES, "three names");
	memcpy(r->instance, r->entropy, RENEW_ID_SIZE);
	memcpy(r->machine_id, r->entropy + RENEW_ID_SIZE, RENEW_ID_SIZE);
	memcpy(r->boot_id, r->entropy + 2 * RENEW_ID_SIZE, RENEW_ID_SIZE);
	make_uuid(r->machine_id);
	make_uuid(r->boot_id);
	if (machine_id.len > 0)
		memcpy(r->machine_id, machine_id.data, RENEW_ID_SIZE);
	r->entropy_len -= RESUME_ENTROPY_NAMES;
	memmove(r->entropy, r->entropy + RESUME_ENTROPY_NAMES, r->entropy_len);
}

/* Dropping what only a clone can do would leave its caller believing that it was done. */
static int check_same(const Sandgate__Resume *m, struct err *e)
{
	const char *field = m->hostname.len > 0     ? "hostname"
	                    : m->machine_id.len > 0 ? "machine_id"
	                    : m->network != NULL    ? "network"
	                    : m->n_env > 0          ? "env"
	                                            : NULL;
	if (field != NULL)
		return err_field(e, ERR_INVALID_FIELD, field, "%s is for clones", field);
	return 0;
}

static int copy_env(struct renewal *r, const Sandgate__Resume *m, struct err *e)
{
	if (m->n_env == 0)
		return 0;
	if (exec_request_check_env(m->env, m->n_env, e) < 0)
		return -1;
	if ((r->env = calloc(m->n_env, sizeof(char *))) == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	for (; r->env_count < m->n_env; r->env_count++) {
		const Sandgate__EnvVar *v = m->env[r->env_count];
		char *s = malloc(v->name.len + v->value.len + 2);
		if (s == NULL)
			return err_set(e, ERR_INTERNAL, "out of memory");
		sprintf(s, "%.*s=%.*s", (int)v->name.len, (const char *)v->name.data,
		        (int)v->value.len, (const char *)v->value.data);
		r->env[r->env_count] = s;
	}
	return 0;
}

static int parse_clone(struct renewal *r, const Sandgate__Resume *m, struct err *e)
{
	if (m->entropy.len < RESUME_ENTROPY_MIN)
		return err_field(e, ERR_MISSING_FIELD, "entropy", "a clone needs %d bytes",
		                 RESUME_ENTROPY_MIN);
	if (m->machine_id.len != 0 && m->machine_id.len != RENEW_ID_SIZE)
		return err_field(e, ERR_INVALID_FIELD, "machine_id", "not %d bytes",
		                 RENEW_ID_SIZE);
	take_names(r, m->machine_id);
	if (parse_hostname(r, m->hostname, e) < 0 ||
	    network_parse(&r->network, m->network, e) < 0)
		return -1;
	return copy_env(r, m, e);
}

static int parse(struct renewal *r, const Sandgate__Resume *m, struct err *e)
{
	if (m->role > SANDGATE__RESUME_ROLE__RESUME_CLONE)
		return err_field(e, ERR_INVALID_FIELD, "role", "unknown role");
	if (m->entropy.len > RESUME_ENTROPY_MAX)
		return err_field(e, ERR_INVALID_FIELD, "entropy", "over %d bytes",
		                 RESUME_ENTROPY_MAX);
	r->clone = m->role == SANDGATE__RESUME_ROLE__RESUME_CLONE;
	r->wall_clock_ms = m->wall_clock_ms;
	r->entropy_len = m->entropy.len;
	if (m->entropy.len > 0)
		memcpy(r->entropy, m->entropy.data, m->entropy.len);
	return r->clone ? parse_clone(r, m, e) : check_same(m, e);
}

struct renewal *renewal_parse(const Sandgate__Resume *m, struct err *e)
{
	struct renewal *r = calloc(1, sizeof(*r));

	if (r == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	if (parse(r, m, e) == 0)
		return r;
	renewal_free(r);
	return NULL;
}

void renewal_free(struct renewal *r)
{
	if (r == NULL)
		return;
	for (size_t i = 0; i < r->env_count; i++)
		free(r->env[i]);
	free(r->env);
	explicit_bzero(r->entropy, sizeof(r->entropy)); /* the next snapshot holds no seed */
	free(r);
}
