/* A sandbox as a row of the registry, and back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/clock.h"
#include "proto/log.h"

static const char *const status_names[] = {
    [SANDBOX_CREATING] = "creating", [SANDBOX_RUNNING] = "running",
    [SANDBOX_PAUSED] = "paused",     [SANDBOX_HIBERNATED] = "hibernated",
    [SANDBOX_FAILED] = "failed",     [SANDBOX_DELETED] = "deleted",
};

const char *sandbox_status_name(enum sandbox_status status)
{
	return status_names[status];
}

const char *sandbox_failure(const struct sandbox *s)
{
	return s->failure.msg;
}

int sandbox_status_named(const char *name, struct err *e)
{
	for (unsigned i = 0; i < sizeof(status_names) / sizeof(*status_names); i++)
		if (strcmp(status_names[i], name) == 0)
			return (int)i;
	return err_field(e, ERR_INVALID_FIELD, "status",
	                 "status must be one of creating, running, paused, hibernated, failed, "
	                 "deleted");
}

int sandbox_copy_spec(struct sandbox_spec *to, const struct sandbox_spec *from)
{
	*to = *from;
	to->metadata = to->exec_defaults = NULL;
	if (doc_copy(&to->metadata, from->metadata, NULL) < 0)
		return -1;
	if (to->metadata == NULL && (to->metadata = json_object()) == NULL)
		return -1;
	return doc_copy(&to->exec_defaults, from->exec_defaults, NULL);
}

void sandbox_free_spec(struct sandbox_spec *spec)
{
	json_decref(spec->metadata);
	json_decref(spec->exec_defaults);
	spec->metadata = spec->exec_defaults = NULL;
}

static json_t *spec_json(const struct sandbox_spec *spec)
{
	return json_pack("{s:s, s:s, s:b, s:f, s:f, s:i, s:i, s:i, s:s, s:O?, s:O?, s:s}",
	                 "template", spec->template, "snapshot", spec->snapshot, "persistent",
	                 spec->persistent, "ttl_seconds", spec->ttl_seconds,
	                 "max_lifetime_seconds", spec->max_lifetime_seconds, "vcpus",
	                 (int)spec->vcpus, "memory_mib", (int)spec->memory_mib, "disk_mib",
	                 (int)spec->disk_mib, "image", spec->image, "metadata", spec->metadata,
	                 "exec_defaults", spec->exec_defaults, "agent_token",
	                 spec->endpoint.token);
}

/* What a later bridge must know of the VM; "" when nothing of it is left. */
static char *state_text(const struct sandbox *s)
{
	if (s->vm == NULL && s->status != SANDBOX_HIBERNATED)
		return strdup("");
	json_t *state =
	    json_pack("{s:o, s:I, s:I, s:s, s:b, s:b, s:i, s:i, s:O?}", "vm",
	              s->vm != NULL ? vm_state(s->vm) : json_null(), "uid", (json_int_t)s->uid,
	              "generation", (json_int_t)s->generation, "isolation", s->isolation,
	              "restored", s->restored, "frozen", s->frozen, "launch_ms",
	              (int)s->launch_ms, "agent_ms", (int)s->agent_ms, "agent", s->agent);
	char *text = doc_text(state, JSON_COMPACT);
	json_decref(state);
	return text;
}

int sandbox_save(struct sandbox *s, struct err *e)
{
	if (s->warm)
		return 0;
	json_t *spec = spec_json(&s->spec);
	char *spec_text = doc_text(spec, JSON_COMPACT), *state = state_text(s);
	int rc;
	if (spec_text == NULL || state == NULL) {
		rc = err_set(e, ERR_CAPACITY, "out of memory");
	} else {
		struct registry_row row = {
		    .id = s->id,
		    .workspace = s->spec.workspace,
		    .launcher = s->launcher->name,
		    .status = status_names[s->spec.tentative && !s->deleted ? SANDBOX_CREATING
		                                                            : s->status],
		    .spec = spec_text,
		    .state = state,
		    .idempotency_key = s->spec.idempotency_key,
		    .request_digest = s->spec.request_digest,
		    .created_ms = s->created_ms,
		    .deleted_ms = s->deleted ? clock_wall_ms() : 0,
		};
		rc = registry_put(s->set->registry, &row, e);
	}
	json_decref(spec);
	free(spec_text);
	free(state);
	return rc;
}

void sandbox_save_end(struct sandbox *s)
{
	struct err e = {0};
	s->unsaved = sandbox_save(s, &e) < 0;
	if (s->unsaved)
		log_error("sandbox", s->id, "%s", e.msg);
}

static int confirm_each(struct sandbox *const *all, unsigned count, bool tentative,
                        struct err *e)
{
	for (unsigned i = 0; i < count; i++) {
		all[i]->spec.tentative = tentative;
		if (!tentative && sandbox_save(all[i], e) < 0)
			return -1;
	}
	return 0;
}

int sandbox_confirm(struct sandbox *const *all, unsigned count, struct err *e)
{
	struct registry *r = all[0]->set->registry;
	if (registry_begin(r, e) < 0)
		return -1;
	bool saved = confirm_each(all, count, false, e) == 0;
	if (registry_end(r, saved, e) == 0 && saved)
		return 0;
	confirm_each(all, count, true, e);
	return -1;
}

static json_t *load_json(const char *text, struct err *e)
{
	json_error_t why;
	json_t *json = doc_parse(text, strlen(text), 0, &why);
	if (json == NULL && doc_no_memory(&why))
		err_set(e, ERR_CAPACITY, "out of memory");
	return json;
}

static int load_spec(struct sandbox_spec *spec, const struct registry_row *row, struct err *e)
{
	const char *template, *token, *snapshot = "", *image = "";
	json_t *metadata, *defaults, *json = load_json(row->spec, e);
	int vcpus, memory, disk, persistent = 0;
	if (json_unpack(json, "{s:s, s?s, s?b, s:F, s:F, s:i, s:i, s:i, s?s, s:o, s:o, s:s}",
	                "template", &template, "snapshot", &snapshot, "persistent", &persistent,
	                "ttl_seconds", &spec->ttl_seconds, "max_lifetime_seconds",
	                &spec->max_lifetime_seconds, "vcpus", &vcpus, "memory_mib", &memory,
	                "disk_mib", &disk, "image", &image, "metadata", &metadata,
	                "exec_defaults", &defaults, "agent_token", &token) < 0) {
		json_decref(json);
		return -1;
	}
	snprintf(spec->template, sizeof(spec->template), "%s", template);
	snprintf(spec->snapshot, sizeof(spec->snapshot), "%s", snapshot);
	snprintf(spec->image, sizeof(spec->image), "%s", image);
	spec->persistent = persistent;
	snprintf(spec->endpoint.token, sizeof(spec->endpoint.token), "%s", token);
	snprintf(spec->workspace, sizeof(spec->workspace), "%s", row->workspace);
	snprintf(spec->idempotency_key, sizeof(spec->idempotency_key), "%s",
	         row->idempotency_key);
	snprintf(spec->request_digest, sizeof(spec->request_digest), "%s", row->request_digest);
	spec->vcpus = (unsigned)vcpus;
	spec->memory_mib = (unsigned)memory;
	spec->disk_mib = (unsigned)disk;
	spec->metadata = json_is_object(metadata) ? json_incref(metadata) : json_object();
	spec->exec_defaults = json_is_object(defaults) ? json_incref(defaults) : NULL;
	json_decref(json);
	return spec->metadata != NULL ? 0 : err_set(e, ERR_CAPACITY, "out of memory");
}

/* Isolation as a literal that outlives the JSON. */
static const char *load_isolation(const json_t *state)
{
	static const char *const known[] = {"kvm", "tcg", "uml", "none"};
	const char *text = json_string_value(json_object_get(state, "isolation"));
	for (size_t i = 0; text != NULL && i < sizeof(known) / sizeof(*known); i++)
		if (strcmp(known[i], text) == 0)
			return known[i];
	return "none";
}

struct sandbox *sandbox_load(struct sandbox_set *set, const struct registry_row *row,
                             json_t **vm_state, struct err *e)
{
	struct sandbox *s = sandbox_new(set, row->id);
	*vm_state = NULL;
	if (s == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	err_set(e, ERR_INTERNAL, "its row in the registry cannot be read");
	s->launcher = launcher_find(row->launcher);
	if (s->launcher == NULL || load_spec(&s->spec, row, e) < 0) {
		sandbox_free(s);
		return NULL;
	}
	json_t *state = load_json(row->state, e);
	if (e->code == ERR_CAPACITY) {
		sandbox_free(s);
		return NULL;
	}
	json_t *agent = json_object_get(state, "agent");
	struct err unknown;
	int status = sandbox_status_named(row->status, &unknown);
	s->status = status >= 0 ? (enum sandbox_status)status : SANDBOX_FAILED;
	s->created_ms = row->created_ms;
	s->made -= fmax((double)(clock_wall_ms() - s->created_ms), 0) / 1e3;
	if (s->status == SANDBOX_FAILED)
		err_set(&s->failure, ERR_SANDBOX_LOST, "it failed before the bridge restarted");
	s->spec.attach = s->launcher->external;
	s->uid = (uid_t)json_integer_value(json_object_get(state, "uid"));
	s->generation = (uint64_t)json_integer_value(json_object_get(state, "generation"));
	s->isolation = load_isolation(state);
	s->restored = json_is_true(json_object_get(state, "restored"));
	s->frozen = json_is_true(json_object_get(state, "frozen"));
	s->launch_ms = (unsigned)json_integer_value(json_object_get(state, "launch_ms"));
	s->agent_ms = (unsigned)json_integer_value(json_object_get(state, "agent_ms"));
	s->agent = json_is_object(agent) ? json_incref(agent) : NULL;
	if (json_is_object(json_object_get(state, "vm")))
		*vm_state = json_incref(json_object_get(state, "vm"));
	json_decref(state);
	return s;
}
