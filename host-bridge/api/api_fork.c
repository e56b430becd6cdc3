/* A fork: the sandbox is saved, and as many as were asked for start from that. */
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/handlers.h"
#include "host-bridge/api/metrics.h"
#include "host-bridge/api/quota.h"
#include "host-bridge/api/sandbox_body.h"
#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/snapshot.h"
#include "host-bridge/steady.h"

/* Lives until the last child is ready, whether the client still waits or not. */
struct fork {
	struct api_request *r; /* NULL: gone; the children go, too */
	struct api *api;
	double received;
	json_t *metadata;                   /* for the children; NULL: the parent's */
	struct sandbox *children[FORK_MAX]; /* held: one may end before the last is ready */
	unsigned count, made, waiting;
	char workspace[64];
	struct err failure; /* the first */
};

static void on_client_gone(struct api_request *r)
{
	((struct fork *)r->owner)->r = NULL;
}

static void let_go(struct fork *f, bool drop)
{
	for (unsigned i = 0; i < f->made; i++) {
		if (drop)
			sandbox_delete(f->children[i],
			               SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, NULL,
			               NULL);
		sandbox_unhold(f->children[i]);
	}
}

static char *children_text(const struct fork *f)
{
	json_t *items = json_array();
	for (unsigned i = 0; i < f->made; i++)
		doc_append(&items, sandbox_json(f->children[i]));
	return api_json_text(json_pack("{s:o}", "items", items));
}

/* The reply is made first: children that nobody is told of are of no use. */
static void finish(struct fork *f)
{
	bool failed = f->failure.code != ERR_NONE;
	char *text = !failed && f->r != NULL ? children_text(f) : NULL;
	if (!failed && f->r != NULL && text == NULL)
		failed = err_set(&f->failure, ERR_CAPACITY, "out of memory") < 0;
	if (!failed && f->r != NULL)
		failed = sandbox_confirm(f->children, f->made, &f->failure) < 0;
	if (f->r != NULL)
		f->r->on_gone = NULL;
	let_go(f, failed || f->r == NULL); /* they stay at least until this returns */
	if (f->r != NULL && failed) {
		struct api_details d = {0};
		quota_explain(f->r->api->quota, f->workspace, &f->failure, &d);
		free(text);
		api_fail(f->r, &f->failure, &d);
	} else if (f->r != NULL) {
		api_reply_text(f->r, 201, text);
	}
	json_decref(f->metadata);
	free(f);
}

static void on_ready(struct sandbox *s, const struct err *e, void *arg)
{
	struct fork *f = arg;
	(void)s;
	metrics_sandbox(f->api->metrics, e == NULL, steady_now() - f->received);
	if (e != NULL && f->failure.code == ERR_NONE)
		f->failure = *e;
	if (--f->waiting == 0)
		finish(f);
}

static void make_children(struct fork *f, struct sandbox *parent, const struct snapshot *n)
{
	struct sandbox_spec spec = *sandbox_spec(parent);
	strcpy(spec.snapshot, n->id);
	spec.idempotency_key[0] = '\0';
	spec.tentative = true;
	if (f->metadata != NULL)
		spec.metadata = f->metadata;
	f->waiting = 1; /* this loop */
	while (f->made < f->count && f->failure.code == ERR_NONE) {
		struct sandbox *s =
		    sandbox_create(f->api->sandboxes, &spec, on_ready, f, &f->failure);
		if (s == NULL)
			break;
		sandbox_hold(s);
		f->children[f->made++] = s;
		f->waiting++;
	}
	if (--f->waiting == 0)
		finish(f);
}

static void on_saved(struct sandbox *s, struct snapshot *n, const struct err *e, void *arg)
{
	struct fork *f = arg;
	struct sandbox_set *set = f->api->sandboxes;
	struct err ignored = {0};
	if (e != NULL) {
		f->failure = *e;
		finish(f);
		return;
	}
	make_children(f, s, n);            /* `f` may be gone */
	snapshot_delete(set, n, &ignored); /* once the last has its copy */
}

static void make_fork(struct api_request *r, char *data, size_t len, unsigned children)
{
	struct err e = {0};
	struct snapshot_body body;
	struct sandbox *s = api_sandbox(r);
	if (s == NULL)
		return;
	struct fork *f = calloc(1, sizeof(*f));
	if (f == NULL)
		err_set(&e, ERR_CAPACITY, "out of memory");
	if (f == NULL || sandbox_body_snapshot(data, len, true, &body, &e) < 0) {
		free(f);
		api_fail(r, &e, NULL);
		return;
	}
	f->r = r;
	f->api = r->api;
	f->received = r->received;
	f->count = body.count > 0 ? body.count : children;
	f->metadata = body.metadata;
	r->owner = f;
	r->on_gone = on_client_gone;
	strcpy(f->workspace, sandbox_spec(s)->workspace);
	if (quota_room(r->api->quota, sandbox_spec(s), f->count, &f->failure) < 0 ||
	    sandbox_check_fork(s, f->count, &f->failure) < 0 ||
	    sandbox_snapshot(s, NULL, SNAPSHOT_PASSING, on_saved, f, &f->failure) < 0)
		finish(f);
}

void api_sandbox_fork(struct api_request *r, char *data, size_t len)
{
	make_fork(r, data, len, 1);
}

/* PandaStack's name for a fork of several. */
void api_sandbox_fork_tree(struct api_request *r, char *data, size_t len)
{
	make_fork(r, data, len, 2);
}
