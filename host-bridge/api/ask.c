#include "host-bridge/api/ask.h"

#include <stdlib.h>

/* ---- a question ---- */

static void ask_free(struct ask *a)
{
	dial_close(&a->dial);
	if (a->on_free != NULL)
		a->on_free(a);
	free(a);
}

static void on_gone(struct api_request *r)
{
	ask_free(r->owner);
}

void *ask_create(struct api_request *r, struct sandbox *s, size_t size)
{
	struct err e;
	struct ask *a = calloc(1, size);
	if (a == NULL) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return NULL;
	}
	a->r = r;
	a->sandbox = s;
	a->kind = DIAL_ASKS;
	r->owner = a;
	r->on_gone = on_gone;
	r->on_room = NULL;
	return a;
}

struct api_request *ask_done(struct ask *a)
{
	struct api_request *r = a->r;
	r->on_gone = NULL;
	r->on_room = NULL;
	ask_free(a);
	return r;
}

static void fail(struct ask *a, const struct err *e, const struct dial_end *end)
{
	struct api_request *r = ask_done(a);
	struct api_details d = {.exec_id = r->exec_id[0] != '\0' ? r->exec_id : NULL};
	if (end != NULL && end->has_offset) {
		d.has_limit = true;
		d.limit = end->offset;
	}
	if (http_begun(r->x))
		api_abort(r);
	else
		api_fail(r, e, &d);
}

void ask_fail(struct ask *a, const struct err *e)
{
	fail(a, e, NULL);
}

static void on_frame(struct dial *d, const Sandgate__GuestFrame *f)
{
	struct ask *a = (struct ask *)((char *)d - offsetof(struct ask, dial));
	a->on_frame(a, f);
}

static void on_end(struct dial *d, const struct dial_end *end)
{
	struct ask *a = (struct ask *)((char *)d - offsetof(struct ask, dial));
	struct err e = end->err;
	if (end->suspended) /* it has answered what it has done */
		err_set(&e, ERR_UNREACHABLE, "the sandbox is being saved: ask again");
	fail(a, &e, end);
}

static const struct dial_handlers dial_handlers = {.on_frame = on_frame, .on_end = on_end};

void ask_open(struct ask *a, Sandgate__Open *open,
              void (*next)(struct ask *a, const Sandgate__GuestFrame *f))
{
	struct err e;
	dial_close(&a->dial);
	a->on_frame = next;
	if (dial_open(&a->dial, a->sandbox, open, a->kind, &dial_handlers, &e) < 0)
		ask_fail(a, &e);
}

void ask_exec_info(struct ask *a, void (*next)(struct ask *a, const Sandgate__GuestFrame *f))
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ExecInfo info = SANDGATE__EXEC_INFO__INIT;
	info.exec_id = a->r->exec_id;
	open.op_case = SANDGATE__OPEN__OP_EXEC_INFO;
	open.exec_info = &info;
	ask_open(a, &open, next);
}

void ask_attach(struct ask *a, Sandgate__Role role, uint64_t offset,
                void (*next)(struct ask *a, const Sandgate__GuestFrame *f))
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Attach attach = SANDGATE__ATTACH__INIT;
	attach.exec_id = a->r->exec_id;
	attach.role = role;
	attach.offset = offset;
	open.op_case = SANDGATE__OPEN__OP_ATTACH;
	open.attach = &attach;
	ask_open(a, &open, next);
}

/* ---- a sandbox that runs ---- */

struct waiter {
	struct api_request *r;
	struct sandbox *sandbox;
	void (*go)(struct api_request *r, struct sandbox *s, char *data, size_t len);
	char *data;
	size_t len;
};

static void on_waiter_gone(struct api_request *r)
{
	struct waiter *w = r->owner;
	sandbox_wait_cancel(w->sandbox, w);
	free(w);
}

static void on_ready(struct sandbox *s, const struct err *e, void *arg)
{
	struct waiter w = *(struct waiter *)arg;
	free(arg);
	w.r->owner = NULL;
	w.r->on_gone = NULL;
	if (e == NULL) {
		w.go(w.r, s, w.data, w.len);
		return;
	}
	const struct api_details d = {.started = "no"};
	api_fail(w.r, e, &d);
}

static void wait_ready(const struct waiter *what)
{
	struct err e;
	struct waiter *w = malloc(sizeof(*w));
	if (w == NULL) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(what->r, &e, NULL);
		return;
	}
	*w = *what;
	w->r->owner = w;
	w->r->on_gone = on_waiter_gone;
	if (sandbox_wait_ready(w->sandbox, on_ready, w, &e) == 0)
		return;
	w->r->on_gone = NULL;
	free(w);
	api_fail(what->r, &e, NULL);
}

void ask_running(struct api_request *r,
                 void (*go)(struct api_request *r, struct sandbox *s, char *data, size_t len),
                 char *data, size_t len)
{
	struct err e;
	struct api_details d = {.started = "no"};
	struct sandbox *s = api_sandbox(r);
	if (s == NULL)
		return;
	switch (sandbox_status(s)) {
	case SANDBOX_RUNNING:
		go(r, s, data, len);
		return;
	case SANDBOX_CREATING:
	case SANDBOX_HIBERNATED:
		wait_ready(&(struct waiter){r, s, go, data, len});
		return;
	case SANDBOX_PAUSED:
		d.status = "paused";
		break;
	case SANDBOX_FAILED:
		err_set(&e, ERR_SANDBOX_GONE, "the sandbox has failed: %s", sandbox_failure(s));
		d.status = "failed";
		api_fail(r, &e, &d);
		return;
	case SANDBOX_DELETED:
		err_set(&e, ERR_SANDBOX_GONE, "the sandbox was deleted");
		api_fail(r, &e, &d);
		return;
	}
	err_set(&e, ERR_INVALID_STATE, "the sandbox is %s", d.status);
	api_fail(r, &e, &d);
}
