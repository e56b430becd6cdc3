#include "host-bridge/api/bracket_body.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host-bridge/api/attach_body.h"
#include "host-bridge/http/body.h"
#include "proto/limits.h"

struct network_fields {
	struct body_str interface, mac;
	json_t *addresses, *gateways, *name_servers;
};

struct bracket_fields {
	struct body_int generation, role;
	struct attach_fields attach;
	struct body_str wall_clock, hostname;
	struct network_fields network;
	json_t *env;
};

static const char *const role_names[] = {"same", "clone", NULL}; /* Sandgate__ResumeRole */

#define AT(s, f, t) .name = #f, .type = t, .offset = offsetof(struct s, f)
static const struct body_field network_table[] = {
    {AT(network_fields, interface, BODY_STR)},     {AT(network_fields, mac, BODY_STR)},
    {AT(network_fields, addresses, BODY_LIST)},    {AT(network_fields, gateways, BODY_LIST)},
    {AT(network_fields, name_servers, BODY_LIST)}, {.name = NULL},
};

static const struct body_field bracket_table[] = {
    {AT(bracket_fields, generation, BODY_INT), .min = 1, .max = 1e15, .required = true},
    {AT(bracket_fields, role, BODY_ENUM), .names = role_names, .required = true},
    {AT(bracket_fields, attach, BODY_GROUP), .fields = attach_body_fields},
    {AT(bracket_fields, wall_clock, BODY_STR)},
    {AT(bracket_fields, hostname, BODY_STR)},
    {AT(bracket_fields, network, BODY_GROUP), .fields = network_table},
    {AT(bracket_fields, env, BODY_MAP)},
    {.name = NULL},
};

static ProtobufCBinaryData bytes(const struct body_str *s)
{
	return (ProtobufCBinaryData){s->len, (uint8_t *)(uintptr_t)s->s};
}

/* ---- instants ---- */

/* Minutes east of UTC from "Z" or "+01:30"; what follows is in `*end`. */
static int zone(const char *s, const char **end, int *minutes)
{
	int hours, rest, used = 0;
	*minutes = 0;
	*end = s + 1;
	if (*s == 'Z' || *s == 'z')
		return 0;
	if ((*s != '+' && *s != '-') || sscanf(s + 1, "%2d:%2d%n", &hours, &rest, &used) != 2 ||
	    used != 5 || hours > 23 || rest > 59)
		return -1;
	*minutes = (hours * 60 + rest) * (*s == '-' ? -1 : 1);
	*end = s + 6;
	return 0;
}

/* RFC 3339, section 5.6. */
static int take_instant(const struct body_str *in, uint64_t *ms, struct err *e)
{
	struct tm tm = {0};
	int minutes, fraction = 0, unit = 100;
	if (in->s == NULL)
		return 0;
	const char *s = strptime(in->s, "%Y-%m-%dT%H:%M:%S", &tm);
	if (s != NULL && *s == '.' && isdigit((unsigned char)s[1]))
		for (s++; isdigit((unsigned char)*s); s++, unit /= 10)
			fraction += (*s - '0') * unit;
	if (s == NULL || zone(s, &s, &minutes) < 0 || *s != '\0' || tm.tm_year < 71)
		return err_field(e, ERR_INVALID_FIELD, "wall_clock",
		                 "wall_clock must be an instant like 2026-12-01T08:09:46.725Z");
	*ms = (uint64_t)(timegm(&tm) - minutes * 60) * 1000 + (uint64_t)fraction;
	return 0;
}

/* ---- the network ---- */

/* An address in text, with a prefix where `prefix` is not NULL. */
static int take_ip(struct bracket_body *b, const char *text, ProtobufCBinaryData *ip,
                   uint32_t *prefix)
{
	char plain[INET6_ADDRSTRLEN + 4], *slash;
	uint8_t *to = b->ips[b->ip_count++];
	if (strlen(text) >= sizeof(plain))
		return -1;
	strcpy(plain, text);
	slash = strchr(plain, '/');
	if ((slash != NULL) != (prefix != NULL))
		return -1;
	if (slash != NULL) {
		size_t n = strspn(slash + 1, "0123456789");
		if (n == 0 || n > 3 || slash[1 + n] != '\0')
			return -1;
		*prefix = (uint32_t)strtoul(slash + 1, NULL, 10);
		*slash = '\0';
	}
	if (inet_pton(AF_INET, plain, to) == 1)
		*ip = (ProtobufCBinaryData){4, to};
	else if (inet_pton(AF_INET6, plain, to) == 1)
		*ip = (ProtobufCBinaryData){16, to};
	else
		return -1;
	return 0;
}

static int check_count(json_t *list, const char *field, struct err *e)
{
	if (json_array_size(list) <= NETWORK_ADDRESSES_MAX)
		return 0;
	return err_limit(e, ERR_INVALID_FIELD, field, NETWORK_ADDRESSES_MAX,
	                 "%s holds at most %d", field, NETWORK_ADDRESSES_MAX);
}

static int take_addresses(struct bracket_body *b, json_t *list, struct err *e)
{
	size_t i;
	json_t *item;
	if (check_count(list, "network.addresses", e) < 0)
		return -1;
	json_array_foreach (list, i, item) {
		Sandgate__Address *a = b->addresses[i] = &b->address[i];
		sandgate__address__init(a);
		if (take_ip(b, json_string_value(item), &a->ip, &a->prefix_length) < 0)
			return err_field(e, ERR_INVALID_FIELD, "network.addresses",
			                 "network.addresses must be like 10.0.0.2/24 or "
			                 "fd00::2/64");
	}
	b->network.addresses = b->addresses;
	b->network.n_addresses = json_array_size(list);
	return 0;
}

static int take_ips(struct bracket_body *b, json_t *list, const char *field,
                    ProtobufCBinaryData *out, size_t *count, struct err *e)
{
	size_t i;
	json_t *item;
	if (check_count(list, field, e) < 0)
		return -1;
	json_array_foreach (list, i, item)
		if (take_ip(b, json_string_value(item), &out[i], NULL) < 0)
			return err_field(e, ERR_INVALID_FIELD, field,
			                 "%s must be like 10.0.0.1 or fd00::1", field);
	*count = json_array_size(list);
	return 0;
}

static int take_mac(struct bracket_body *b, const struct body_str *in, struct err *e)
{
	int used = 0;
	uint8_t *m = b->mac;
	if (in->s == NULL)
		return 0;
	if (in->len != strlen("02:00:00:00:00:01") ||
	    sscanf(in->s, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx%n", &m[0], &m[1], &m[2], &m[3],
	           &m[4], &m[5], &used) != 6 ||
	    (size_t)used != in->len)
		return err_field(e, ERR_INVALID_FIELD, "network.mac",
		                 "network.mac must be like 02:00:00:00:00:01");
	b->network.mac = (ProtobufCBinaryData){sizeof(b->mac), b->mac};
	return 0;
}

static int take_network(struct bracket_body *b, const struct network_fields *f, struct err *e)
{
	Sandgate__Network *n = &b->network;
	sandgate__network__init(n);
	b->resume.network = n;
	n->interface = bytes(&f->interface);
	n->gateways = b->gateways;
	n->name_servers = b->name_servers;
	if (take_mac(b, &f->mac, e) < 0 || take_addresses(b, f->addresses, e) < 0 ||
	    take_ips(b, f->gateways, "network.gateways", b->gateways, &n->n_gateways, e) < 0)
		return -1;
	return take_ips(b, f->name_servers, "network.name_servers", b->name_servers,
	                &n->n_name_servers, e);
}

static int take_env(struct bracket_body *b, json_t *env, struct err *e)
{
	size_t n = 0, room = json_object_size(env);
	const char *key;
	json_t *value;
	if (room == 0)
		return 0;
	b->env = calloc(room, sizeof(*b->env));
	b->env_list = calloc(room, sizeof(Sandgate__EnvVar *));
	if (b->env == NULL || b->env_list == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	json_object_foreach (env, key, value) {
		Sandgate__EnvVar *v = b->env_list[n] = &b->env[n];
		const struct body_str name = {key, strlen(key)},
		                      text = {json_string_value(value),
		                              json_string_length(value)};
		sandgate__env_var__init(v);
		v->name = bytes(&name);
		v->value = bytes(&text);
		n++;
	}
	b->resume.n_env = n;
	b->resume.env = b->env_list;
	return 0;
}

/* ---- all of it ---- */

static bool has_network(const struct network_fields *f)
{
	return f->interface.s != NULL || f->mac.s != NULL || f->addresses != NULL ||
	       f->gateways != NULL || f->name_servers != NULL;
}

/* What names a machine is for clones: the same one keeps its own. */
static int check_role(const struct bracket_fields *f, struct err *e)
{
	const char *field = f->hostname.s != NULL      ? "hostname"
	                    : has_network(&f->network) ? "network"
	                    : f->env != NULL           ? "env"
	                                               : NULL;
	if (field == NULL || f->role.v == SANDGATE__RESUME_ROLE__RESUME_CLONE)
		return 0;
	return err_field(e, ERR_INVALID_FIELD, field, "%s is for clones", field);
}

static int fill(struct api_request *r, const struct bracket_fields *f, struct bracket_body *b,
                struct err *e)
{
	b->generation = (uint64_t)f->generation.v;
	b->resume.role = (Sandgate__ResumeRole)f->role.v;
	b->resume.hostname = bytes(&f->hostname);
	b->moves = f->attach.transport.set;
	if (check_role(f, e) < 0 ||
	    take_instant(&f->wall_clock, &b->resume.wall_clock_ms, e) < 0)
		return -1;
	if (has_network(&f->network) && take_network(b, &f->network, e) < 0)
		return -1;
	if (take_env(b, f->env, e) < 0)
		return -1;
	return b->moves ? attach_body_take(r, &f->attach, &b->endpoint, e) : 0;
}

int bracket_body_parse(struct api_request *r, const char *data, size_t len,
                       struct bracket_body *out, struct err *e)
{
	struct bracket_fields f = {0};
	*out = (struct bracket_body){0};
	sandgate__resume__init(&out->resume);
	out->doc = body_parse(data, len, bracket_table, &f, e);
	return out->doc != NULL ? fill(r, &f, out, e) : -1;
}

void bracket_body_free(struct bracket_body *b)
{
	json_decref(b->doc);
	free(b->env);
	free(b->env_list);
}
