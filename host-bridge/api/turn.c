#include "host-bridge/api/turn.h"

#include <stdlib.h>

static void on_client_gone(struct api_request *r)
{
	((struct turn *)r->owner)->r = NULL;
}

struct turn *turn_create(struct api_request *r)
{
	struct err e = {0};
	struct turn *t = malloc(sizeof(*t));
	if (t == NULL) {
		err_set(&e, ERR_INTERNAL, "out of memory");
		api_fail(r, &e, NULL);
		return NULL;
	}
	t->r = r;
	r->owner = t;
	r->on_gone = on_client_gone;
	return t;
}

void turn_fail(struct turn *t, const struct err *e)
{
	if (t->r != NULL) {
		t->r->on_gone = NULL;
		api_fail(t->r, e, NULL);
	}
	free(t);
}

void turn_reply(struct turn *t, int status, json_t *doc)
{
	if (t->r != NULL) {
		t->r->on_gone = NULL;
		api_reply_json(t->r, status, doc);
	} else {
		json_decref(doc);
	}
	free(t);
}

void turn_begin(struct api_request *r,
                int (*begin)(struct sandbox *s, sandbox_changed *on_done, void *arg,
                             struct err *e),
                sandbox_changed *on_done)
{
	struct err e = {0};
	struct sandbox *s = api_sandbox(r);
	struct turn *t = s != NULL ? turn_create(r) : NULL;
	if (t != NULL && begin(s, on_done, t, &e) < 0)
		turn_fail(t, &e);
}
