#include "host-bridge/api/deferred.h"

#include <stdlib.h>

static void on_client_gone(struct api_request *r)
{
	((struct deferred *)r->owner)->r = NULL;
}

struct deferred *deferred_create(struct api_request *r)
{
	struct err e = {0};
	struct deferred *d = malloc(sizeof(*d));
	if (d == NULL) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return NULL;
	}
	d->r = r;
	r->owner = d;
	r->on_gone = on_client_gone;
	return d;
}

struct api_request *deferred_end(struct deferred *d)
{
	struct api_request *r = d->r;
	if (r != NULL)
		r->on_gone = NULL;
	free(d);
	return r;
}

void deferred_fail(struct deferred *d, const struct err *e)
{
	struct api_request *r = deferred_end(d);
	if (r != NULL)
		api_fail(r, e, NULL);
}

void deferred_reply(struct deferred *d, int status, json_t *doc)
{
	struct api_request *r = deferred_end(d);
	if (r != NULL)
		api_reply_json(r, status, doc);
	else
		json_decref(doc);
}

void deferred_begin(struct api_request *r,
                    int (*begin)(struct sandbox *s, sandbox_done *on_done, void *arg,
                                 struct err *e),
                    sandbox_done *on_done)
{
	struct err e = {0};
	struct sandbox *s = api_sandbox(r);
	struct deferred *d = s != NULL ? deferred_create(r) : NULL;
	if (d != NULL && begin(s, on_done, d, &e) < 0)
		deferred_fail(d, &e);
}
