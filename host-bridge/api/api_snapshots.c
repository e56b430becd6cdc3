/* Snapshots of sandboxes, forks, pause and resume. */
#include <stdio.h>
#include <string.h>

#include "host-bridge/api/ask.h"
#include "host-bridge/api/handlers.h"
#include "host-bridge/api/page.h"
#include "host-bridge/api/sandbox_body.h"
#include "host-bridge/api/turn.h"
#include "host-bridge/sandbox/snapshot.h"

/* ---- pause, resume, hibernate, wake ---- */

static void on_turned(struct sandbox *s, struct snapshot *n, const struct err *e, void *arg)
{
	(void)n;
	if (e != NULL)
		turn_fail(arg, e);
	else
		turn_reply(arg, 200, sandbox_json(s));
}

void api_sandbox_pause(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	turn_begin(r, sandbox_pause, on_turned);
}

void api_sandbox_resume(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	turn_begin(r, sandbox_resume, on_turned);
}

void api_sandbox_hibernate(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	turn_begin(r, sandbox_hibernate, on_turned);
}

static void on_woken(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	(void)data;
	(void)len;
	api_reply_json(r, 200, sandbox_json(s));
}

void api_sandbox_wake(struct api_request *r, char *data, size_t len)
{
	ask_running(r, on_woken, data, len);
}

/* ---- snapshots ---- */

static void on_snapshot(struct sandbox *s, struct snapshot *n, const struct err *e, void *arg)
{
	struct turn *t = arg;
	char location[160];
	if (e != NULL) {
		turn_fail(t, e);
		return;
	}
	if (t->r != NULL) {
		snprintf(location, sizeof(location), "/v1/snapshots/%s", n->id);
		http_set_header(t->r->x, "Location", location);
	}
	turn_reply(t, 201, snapshot_json(sandbox_set_of(s), n));
}

void api_snapshot_create(struct api_request *r, char *data, size_t len)
{
	struct err e = {0};
	struct snapshot_body body;
	struct sandbox *s = api_sandbox(r);
	if (s == NULL)
		return;
	if (sandbox_body_snapshot(data, len, false, &body, &e) < 0) {
		api_fail(r, &e, NULL);
		return;
	}
	struct turn *t = turn_create(r);
	if (t == NULL)
		json_decref(body.metadata);
	else if (sandbox_snapshot(s, body.metadata, SNAPSHOT_KEPT, on_snapshot, t, &e) < 0)
		turn_fail(t, &e);
}

static bool may_see(const struct api_request *r, const struct snapshot *n)
{
	return r->who.admin || strcmp(n->workspace, r->who.workspace) == 0;
}

void api_snapshot_list(struct api_request *r, char *data, size_t len)
{
	struct err e;
	struct page page;
	const char *of = http_query(r->x, "sandbox_id"), *last = "";
	(void)data;
	(void)len;
	if (page_of(r, &page, &e) < 0) {
		api_fail(r, &e, NULL);
		return;
	}
	json_t *items = json_array(), *next_page = json_null();
	for (struct snapshot *n = NULL; (n = snapshot_next(r->api->sandboxes, n)) != NULL;) {
		if (strcmp(n->id, page.after) <= 0 || !may_see(r, n) ||
		    (of != NULL && strcmp(of, n->sandbox_id) != 0))
			continue;
		if (json_array_size(items) == page.limit) {
			char token[PAGE_TOKEN_MAX];
			page_token(last, token);
			next_page = json_string(token);
			break;
		}
		json_array_append_new(items, snapshot_json(r->api->sandboxes, n));
		last = n->id;
	}
	api_reply_json(r, 200, json_pack("{s:o,s:o}", "items", items, "next_page", next_page));
}

/* The path's {id} is a snapshot's here. NULL: the request has been answered. */
static struct snapshot *named(struct api_request *r)
{
	struct err e;
	struct snapshot *n =
	    snapshot_find(r->api->sandboxes, r->sandbox_id, api_workspace(r), &e);
	if (n == NULL)
		api_fail(r, &e, NULL);
	return n;
}

void api_snapshot_get(struct api_request *r, char *data, size_t len)
{
	struct snapshot *n = named(r);
	(void)data;
	(void)len;
	if (n != NULL)
		api_reply_json(r, 200, snapshot_json(r->api->sandboxes, n));
}

void api_snapshot_delete(struct api_request *r, char *data, size_t len)
{
	struct err e = {0};
	struct snapshot *n = named(r);
	(void)data;
	(void)len;
	if (n == NULL)
		return;
	if (snapshot_delete(r->api->sandboxes, n, &e) < 0)
		api_fail(r, &e, NULL);
	else
		api_reply_empty(r, 204);
}
