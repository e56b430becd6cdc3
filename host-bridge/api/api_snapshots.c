/* Snapshots of sandboxes, forks, pause and resume. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/ask.h"
#include "host-bridge/api/deferred.h"
#include "host-bridge/api/handlers.h"
#include "host-bridge/api/page.h"
#include "host-bridge/api/sandbox_body.h"
#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/snapshot.h"

/* ---- pause, resume, hibernate, wake ---- */

static void on_done(struct sandbox *s, struct snapshot *n, const struct err *e, void *arg)
{
	(void)n;
	if (e != NULL)
		deferred_fail(arg, e);
	else
		deferred_reply(arg, 200, sandbox_json(s));
}

void api_sandbox_pause(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	deferred_begin(r, sandbox_pause, on_done);
}

void api_sandbox_resume(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	deferred_begin(r, sandbox_resume, on_done);
}

void api_sandbox_hibernate(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	deferred_begin(r, sandbox_hibernate, on_done);
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
	struct deferred *d = arg;
	struct sandbox_set *set = sandbox_set_of(s);
	struct err mute, ignored;
	char location[160];
	char *text = e == NULL ? api_json_text(snapshot_json(set, n)) : NULL;
	if (e == NULL && text == NULL) { /* of no use to whom it cannot be named to */
		snapshot_delete(set, n, &ignored);
		err_set(&mute, ERR_CAPACITY, "out of memory");
		e = &mute;
	}
	struct api_request *r = deferred_end(d);
	if (r == NULL) {
		free(text);
	} else if (e != NULL) {
		api_fail(r, e, NULL);
	} else {
		snprintf(location, sizeof(location), "/v1/snapshots/%s", n->id);
		http_set_header(r->x, "Location", location);
		api_reply_text(r, 201, text);
	}
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
	struct deferred *d = deferred_create(r);
	if (d == NULL)
		json_decref(body.metadata);
	else if (sandbox_snapshot(s, body.metadata, SNAPSHOT_KEPT, on_snapshot, d, &e) < 0)
		deferred_fail(d, &e);
}

static bool may_see(const struct api_request *r, const struct snapshot *n)
{
	return r->who.admin || strcmp(n->workspace, r->who.workspace) == 0;
}

void api_snapshot_list(struct api_request *r, char *data, size_t len)
{
	struct err e;
	struct page_list list;
	struct snapshot *n = NULL;
	const char *of = http_query(r->x, "sandbox_id");
	(void)data;
	(void)len;
	if (page_list_begin(r, &list, &e) < 0) {
		api_fail(r, &e, NULL);
		return;
	}
	while (!list.more && (n = snapshot_next(r->api->sandboxes, n)) != NULL)
		if (may_see(r, n) && (of == NULL || strcmp(of, n->sandbox_id) == 0) &&
		    page_list_takes(&list, n->id))
			doc_append(&list.items, snapshot_json(r->api->sandboxes, n));
	page_list_reply(&list, r);
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
