#include "host-bridge/api/sandbox_body.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/attach_body.h"
#include "host-bridge/exec/exec_body.h"
#include "host-bridge/http/body.h"
#include "host-bridge/http/doc.h"

struct resource_fields {
	struct body_int vcpus, memory_mib, disk_mib;
};

struct create_fields {
	struct body_str template, from_snapshot;
	struct body_num ttl_seconds, max_lifetime_seconds;
	struct body_bool persistent;
	struct resource_fields resources;
	struct attach_fields attach;
	json_t *metadata, *exec_defaults;
};

#define AT(s, f, t) .name = #f, .type = t, .offset = offsetof(struct s, f)
static const struct body_field resource_table[] = {
    {AT(resource_fields, vcpus, BODY_INT), .min = 1, .max = VCPUS_MAX},
    {AT(resource_fields, memory_mib, BODY_INT), .min = MEMORY_MIN_MIB, .max = MEMORY_MAX_MIB},
    {AT(resource_fields, disk_mib, BODY_INT), .min = DISK_MIN_MIB, .max = DISK_MAX_MIB},
    {.name = NULL},
};

static const struct body_field create_table[] = {
    {AT(create_fields, template, BODY_STR)},
    {AT(create_fields, from_snapshot, BODY_STR)},
    {AT(create_fields, attach, BODY_GROUP), .fields = attach_body_fields},
    {AT(create_fields, ttl_seconds, BODY_NUM), .max = TTL_MAX_S, .above = true},
    {AT(create_fields, max_lifetime_seconds, BODY_NUM), .max = TTL_MAX_S, .above = true},
    {AT(create_fields, metadata, BODY_MAP)},
    {AT(create_fields, resources, BODY_GROUP), .fields = resource_table},
    {AT(create_fields, exec_defaults, BODY_JSON)},
    /* PandaStack's names */
    {AT(create_fields, persistent, BODY_BOOL)},
    {.name = "cpu",
     .type = BODY_INT,
     .offset = offsetof(struct create_fields, resources.vcpus),
     .min = 1,
     .max = VCPUS_MAX},
    {.name = "memory_mb",
     .type = BODY_INT,
     .offset = offsetof(struct create_fields, resources.memory_mib),
     .min = MEMORY_MIN_MIB,
     .max = MEMORY_MAX_MIB},
    {.name = NULL},
};

/* ---- metadata ---- */

static int check_metadata(json_t *metadata, struct err *e)
{
	size_t bytes = 0;
	const char *key;
	json_t *value;
	json_object_foreach (metadata, key, value) {
		size_t len = strlen(key);
		if (len == 0 || len > METADATA_KEY_MAX || strchr(key, ':') != NULL)
			return err_field(e, ERR_INVALID_FIELD, "metadata",
			                 "a metadata key has 1 to %d bytes and no colon",
			                 METADATA_KEY_MAX);
		bytes += len + json_string_length(value);
	}
	if (json_object_size(metadata) > METADATA_KEYS_MAX || bytes > METADATA_BYTES_MAX)
		return err_field(e, ERR_INVALID_FIELD, "metadata",
		                 "metadata holds at most %d keys and %u bytes",
		                 METADATA_KEYS_MAX, METADATA_BYTES_MAX);
	return 0;
}

/* ---- create ---- */

/* The hash of the body in canonical form: what an Idempotency-Key stands for. */
static int take_digest(json_t *doc, char hex[65], struct err *e)
{
	unsigned char hash[32];
	char *text = doc_text(doc, JSON_COMPACT | JSON_SORT_KEYS);
	if (text == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	crypto_generichash(hash, sizeof(hash), (unsigned char *)text, strlen(text), NULL, 0);
	sodium_bin2hex(hex, 65, hash, sizeof(hash));
	free(text);
	return 0;
}

static void take_times(const struct create_fields *f, struct sandbox_spec *spec)
{
	spec->persistent = f->persistent.v;
	spec->ttl_seconds = f->ttl_seconds.set ? f->ttl_seconds.v : TTL_DEFAULT_S;
	spec->max_lifetime_seconds =
	    f->max_lifetime_seconds.set ? f->max_lifetime_seconds.v : LIFETIME_DEFAULT_S;
	if (spec->persistent && !f->max_lifetime_seconds.set)
		spec->max_lifetime_seconds = 0;
}

/* It starts from a template, a snapshot (which may be given with its template) or a VM. */
static int take_source(const struct create_fields *f, struct sandbox_spec *spec, struct err *e)
{
	bool attach = f->attach.transport.set;
	const struct body_str *from = &f->from_snapshot;
	if (f->template.s == NULL && !attach && from->s == NULL)
		return err_field(e, ERR_MISSING_FIELD, "template",
		                 "template, from_snapshot or attach is required");
	if (attach && (f->template.s != NULL || from->s != NULL))
		return err_field(e, ERR_INVALID_FIELD, "attach",
		                 "attach excludes template and from_snapshot");
	if (from->s != NULL && (from->len == 0 || from->len >= sizeof(spec->snapshot)))
		return err_set(e, ERR_SNAPSHOT_NOT_FOUND, "there is no such snapshot");
	if (from->s != NULL)
		memcpy(spec->snapshot, from->s, from->len + 1);
	if (f->template.s == NULL)
		return 0;
	if (f->template.len == 0 || f->template.len >= sizeof(spec->template))
		return err_field(e, ERR_TEMPLATE_NOT_FOUND, "template",
		                 "there is no such template");
	memcpy(spec->template, f->template.s, f->template.len + 1);
	return 0;
}

static int fill(struct api_request *r, json_t *doc, const struct create_fields *f,
                struct sandbox_spec *spec, struct err *e)
{
	if (take_source(f, spec, e) < 0 || check_metadata(f->metadata, e) < 0)
		return -1;
	spec->exec_defaults = f->exec_defaults;
	struct exec_fields checked = {0}; /* and read again with each exec */
	if (f->exec_defaults != NULL &&
	    exec_body_read_defaults(f->exec_defaults, &checked, e) < 0)
		return -1;
	spec->attach = f->attach.transport.set;
	if (spec->attach && attach_body_take(r, &f->attach, &spec->endpoint, e) < 0)
		return -1;
	take_times(f, spec);
	strcpy(spec->workspace, r->who.workspace);
	spec->vcpus = (unsigned)f->resources.vcpus.v;
	spec->memory_mib = (unsigned)f->resources.memory_mib.v;
	spec->disk_mib = (unsigned)f->resources.disk_mib.v;
	spec->metadata = f->metadata;
	return take_digest(doc, spec->request_digest, e);
}

json_t *sandbox_body_parse(struct api_request *r, const char *data, size_t len,
                           struct sandbox_spec *spec, struct err *e)
{
	struct create_fields f = {0};
	json_t *doc = body_parse(data, len, create_table, &f, e);
	if (doc != NULL && fill(r, doc, &f, spec, e) == 0)
		return doc;
	json_decref(doc);
	return NULL;
}

/* ---- snapshots and forks ---- */

struct snapshot_fields {
	struct body_int count;
	json_t *metadata;
};

static const struct body_field snapshot_table[] = {
    {AT(snapshot_fields, metadata, BODY_MAP)},
    {.name = NULL},
};

static const struct body_field fork_table[] = {
    {AT(snapshot_fields, metadata, BODY_MAP)},
    {AT(snapshot_fields, count, BODY_INT), .min = 1, .max = FORK_MAX},
    {.name = NULL},
};

int sandbox_body_snapshot(const char *data, size_t len, bool fork, struct snapshot_body *out,
                          struct err *e)
{
	struct snapshot_fields f = {0};
	*out = (struct snapshot_body){0};
	if (len == 0)
		return 0;
	json_t *doc = body_parse(data, len, fork ? fork_table : snapshot_table, &f, e);
	int rc = doc != NULL ? check_metadata(f.metadata, e) : -1;
	if (rc == 0) {
		out->metadata = json_incref(f.metadata);
		out->count = (unsigned)f.count.v;
	}
	json_decref(doc);
	return rc;
}

/* ---- change ---- */

struct change_fields {
	struct body_num ttl_seconds, max_lifetime_seconds;
	struct body_bool persistent;
	json_t *metadata;
};

static const struct body_field change_table[] = {
    {AT(change_fields, ttl_seconds, BODY_NUM), .max = TTL_MAX_S, .above = true},
    {AT(change_fields, max_lifetime_seconds, BODY_NUM), .max = TTL_MAX_S, .above = true},
    {AT(change_fields, persistent, BODY_BOOL)},
    {AT(change_fields, metadata, BODY_PATCH)},
    {.name = NULL},
};

static json_t *merged(json_t *old, json_t *patch)
{
	const char *key;
	json_t *value, *result;
	if (doc_copy(&result, old, NULL) == 0 && result == NULL)
		result = json_object();
	json_object_foreach (patch, key, value) {
		if (json_is_null(value))
			json_object_del(result, key);
		else
			doc_set(&result, key, json_incref(value));
	}
	return result;
}

int sandbox_body_change(const char *data, size_t len, json_t *metadata,
                        struct sandbox_change *out, struct err *e)
{
	struct change_fields f = {0};
	json_t *doc = body_parse(data, len, change_table, &f, e);
	*out = (struct sandbox_change){.ttl_seconds = f.ttl_seconds.v,
	                               .max_lifetime_seconds = f.max_lifetime_seconds.v,
	                               .persistent = f.persistent.v};
	if (doc == NULL)
		return -1;
	if (f.ttl_seconds.set)
		out->patch.ttl_seconds = &out->ttl_seconds;
	if (f.max_lifetime_seconds.set)
		out->patch.max_lifetime_seconds = &out->max_lifetime_seconds;
	if (f.persistent.set)
		out->patch.persistent = &out->persistent;
	bool changes = f.metadata != NULL;
	if (changes)
		out->patch.metadata = merged(metadata, f.metadata);
	json_decref(doc);
	if (changes && out->patch.metadata == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	return changes ? check_metadata(out->patch.metadata, e) : 0;
}
