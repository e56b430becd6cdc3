/* Sandboxes: create, list, look, change, delete. */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/deferred.h"
#include "host-bridge/api/handlers.h"
#include "host-bridge/api/metrics.h"
#include "host-bridge/api/page.h"
#include "host-bridge/api/quota.h"
#include "host-bridge/api/sandbox_body.h"
#include "host-bridge/exec/result_json.h"
#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/snapshot.h"
#include "host-bridge/steady.h"

/* ---- create ---- */

/* Ties a request to the sandbox that it waits for. */
struct creation {
	struct api_request *r;
	struct sandbox *sandbox;
	bool replay; /* of an Idempotency-Key: somebody else made it */
};

static void reply_created(struct api_request *r, struct sandbox *s, char *text)
{
	char location[128];
	snprintf(location, sizeof(location), "/v1/sandboxes/%s", sandbox_id(s));
	http_set_header(r->x, "Location", location);
	snprintf(r->sandbox_id, sizeof(r->sandbox_id), "%s", sandbox_id(s));
	api_reply_text(r, 201, text);
}

/* A sandbox has no use for a client that was not told its id. */
static void on_ready(struct sandbox *s, const struct err *e, void *arg)
{
	struct creation c = *(struct creation *)arg;
	struct api_request *r = c.r;
	free(arg);
	r->on_gone = NULL;
	struct err mute;
	char *text = e == NULL ? api_json_text(sandbox_json(s)) : NULL;
	if (e == NULL && text == NULL) {
		err_set(&mute, ERR_CAPACITY, "out of memory");
		e = &mute;
	}
	if (!c.replay)
		metrics_sandbox(r->api->metrics, e == NULL, steady_now() - r->received);
	if (e == NULL) {
		reply_created(r, s, text);
		return;
	}
	if (!c.replay)
		sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, NULL, NULL);
	struct result_partial said;
	struct api_details d = {.started = "no", .status = "failed"};
	if (sandbox_said(s, &said))
		d.partial = &said;
	api_fail(r, e, &d);
}

static void on_creator_gone(struct api_request *r)
{
	struct creation *c = r->owner;
	if (c->replay)
		sandbox_wait_cancel(c->sandbox, c);
	else
		sandbox_creator_gone(c->sandbox);
	free(c);
}

static void replay(struct creation *c, struct sandbox *s, const char *digest)
{
	struct err e;
	struct api_request *r = c->r;
	c->sandbox = s;
	c->replay = true;
	if (strcmp(sandbox_spec(s)->request_digest, digest) != 0)
		err_set(&e, ERR_IDEMPOTENCY_CONFLICT,
		        "the Idempotency-Key was used with another request");
	else if (sandbox_wait_ready(s, on_ready, c, &e) == 0)
		return;
	r->on_gone = NULL;
	free(c);
	api_fail(r, &e, NULL);
}

static int take_key(struct api_request *r, struct sandbox_spec *spec, struct err *e)
{
	const char *key = http_header(r->x, "idempotency-key");
	if (key == NULL)
		return 0;
	if (*key == '\0' || strlen(key) >= sizeof(spec->idempotency_key))
		return err_field(e, ERR_INVALID_FIELD, "Idempotency-Key",
		                 "Idempotency-Key must have 1 to %zu bytes",
		                 sizeof(spec->idempotency_key) - 1);
	strcpy(spec->idempotency_key, key);
	return 0;
}

/* Whatever a token sees it may start from. */
static bool sees_source(struct api_request *r, const struct sandbox_spec *spec, struct err *e)
{
	return spec->snapshot[0] == '\0' ||
	       snapshot_find(r->api->sandboxes, spec->snapshot, api_workspace(r), e) != NULL;
}

static void create(struct creation *c, const struct sandbox_spec *spec)
{
	struct err e = {0};
	struct api_request *r = c->r;
	struct sandbox_set *set = r->api->sandboxes;
	struct sandbox *s;
	r->owner = c;
	r->on_gone = on_creator_gone;
	s = sandbox_find_key(set, spec->workspace, spec->idempotency_key, &e);
	if (s != NULL) {
		replay(c, s, spec->request_digest);
		return;
	}
	if (e.code == ERR_NONE && sees_source(r, spec, &e)) {
		c->sandbox = sandbox_create(set, spec, on_ready, c, &e);
		if (c->sandbox != NULL)
			return;
		if (err_http_status(e.code) >= 500)
			metrics_sandbox(r->api->metrics, false, 0);
	}
	struct api_details d = {.started = "no"};
	quota_explain(r->api->quota, spec->workspace, &e, &d);
	r->on_gone = NULL;
	free(c);
	api_fail(r, &e, &d);
}

void api_sandbox_create(struct api_request *r, char *data, size_t len)
{
	struct err e;
	struct sandbox_spec spec = {0};
	json_t *doc = sandbox_body_parse(r, data, len, &spec, &e);
	struct creation *c = doc != NULL ? calloc(1, sizeof(*c)) : NULL;
	if (doc != NULL && c == NULL)
		err_set(&e, ERR_CAPACITY, "out of memory");
	if (c != NULL && take_key(r, &spec, &e) == 0) {
		c->r = r;
		create(c, &spec);
	} else {
		free(c);
		api_fail(r, &e, NULL);
	}
	json_decref(doc);
}

/* ---- list and look ---- */

struct filter {
	int status; /* -1: any */
	char key[METADATA_KEY_MAX + 1];
	const char *value; /* NULL: any */
};

static int filter_of(const struct api_request *r, struct filter *f, struct err *e)
{
	const char *status = http_query(r->x, "status"),
	           *metadata = http_query(r->x, "metadata");
	*f = (struct filter){.status = -1};
	if (status != NULL && (f->status = sandbox_status_named(status, e)) < 0)
		return -1;
	if (metadata == NULL)
		return 0;
	size_t n = strcspn(metadata, ":");
	if (metadata[n] != ':' || n == 0 || n >= sizeof(f->key))
		return err_field(e, ERR_INVALID_FIELD, "metadata",
		                 "metadata must be key:value");
	memcpy(f->key, metadata, n);
	f->value = metadata + n + 1;
	return 0;
}

static bool passes(const struct api_request *r, const struct filter *f, struct sandbox *s)
{
	const struct sandbox_spec *spec = sandbox_spec(s);
	if (sandbox_status(s) == SANDBOX_DELETED ||
	    (!r->who.admin && strcmp(spec->workspace, r->who.workspace) != 0))
		return false;
	if (f->status >= 0 && (int)sandbox_status(s) != f->status)
		return false;
	if (f->value == NULL)
		return true;
	const char *value = json_string_value(json_object_get(spec->metadata, f->key));
	return value != NULL && strcmp(value, f->value) == 0;
}

void api_sandbox_list(struct api_request *r, char *data, size_t len)
{
	struct err e;
	struct filter f;
	struct page_list list;
	(void)data;
	(void)len;
	if (filter_of(r, &f, &e) < 0 || page_list_begin(r, &list, &e) < 0) {
		api_fail(r, &e, NULL);
		return;
	}
	struct sandbox *s = NULL;
	while (!list.more && (s = sandbox_next(r->api->sandboxes, s)) != NULL)
		if (passes(r, &f, s) && page_list_takes(&list, sandbox_id(s)))
			doc_append(&list.items, sandbox_json(s));
	page_list_reply(&list, r);
}

void api_sandbox_get(struct api_request *r, char *data, size_t len)
{
	struct sandbox *s = api_sandbox(r);
	(void)data;
	(void)len;
	if (s != NULL)
		api_reply_json(r, 200, sandbox_json(s));
}

void api_template_list(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	api_reply_json(r, 200,
	               json_pack("{s:o}", "items", sandbox_set_templates(r->api->sandboxes)));
}

/* ---- change and delete ---- */

static void patch(struct api_request *r, const char *data, size_t len,
                  json_t *(*shown)(const struct sandbox *s))
{
	struct err e;
	struct sandbox_change change;
	struct sandbox *s = api_sandbox(r);
	if (s == NULL)
		return;
	int rc = sandbox_body_change(data, len, sandbox_spec(s)->metadata, &change, &e);
	if (rc == 0)
		rc = sandbox_patch(s, &change.patch, &e);
	json_decref(change.patch.metadata);
	if (rc < 0)
		api_fail(r, &e, NULL);
	else
		api_reply_json(r, 200, shown(s));
}

void api_sandbox_patch(struct api_request *r, char *data, size_t len)
{
	patch(r, data, len, sandbox_json);
}

/* PandaStack's name for the same, and what it shows. */
void api_lifecycle_patch(struct api_request *r, char *data, size_t len)
{
	patch(r, data, len, sandbox_lifecycle_json);
}

void api_sandbox_lifecycle(struct api_request *r, char *data, size_t len)
{
	struct sandbox *s = api_sandbox(r);
	(void)data;
	(void)len;
	if (s != NULL)
		api_reply_json(r, 200, sandbox_lifecycle_json(s));
}

static void on_deleted(const struct err *e, void *arg)
{
	struct api_request *r = deferred_end(arg);
	if (r != NULL && e != NULL)
		api_fail(r, e, NULL);
	else if (r != NULL)
		api_reply_empty(r, 204);
}

void api_sandbox_delete(struct api_request *r, char *data, size_t len)
{
	struct err e;
	struct sandbox_set *set = r->api->sandboxes;
	struct sandbox *s = sandbox_find(set, r->sandbox_id, api_workspace(r), &e);
	(void)data;
	(void)len;
	if (s == NULL)
		s = sandbox_find_ending(set, r->sandbox_id, api_workspace(r));
	if (s == NULL && sandbox_was_deleted(set, r->sandbox_id, api_workspace(r))) {
		api_reply_empty(r, 204);
		return;
	}
	if (s == NULL) {
		api_fail(r, &e, NULL);
		return;
	}
	struct deferred *d = deferred_create(r);
	if (d != NULL && sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED,
	                                on_deleted, d) < 0) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		deferred_fail(d, &e);
	}
}
