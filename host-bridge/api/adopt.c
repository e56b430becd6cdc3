#include "host-bridge/api/adopt.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "host-bridge/api/dial.h"
#include "proto/log.h"

/* A sandbox that is asked for its execs, or one exec that was taken over. */
struct foster {
	LIST_ENTRY(foster) entry;
	struct adopt *adopt;
	struct sandbox *sandbox; /* while `waits` or the dial is open */
	struct dial dial;
	bool waits; /* for the sandbox to answer */
};

struct adopt {
	LIST_HEAD(, foster) fosters;
};

static const struct dial_handlers list_handlers, exec_handlers;

static struct foster *foster_create(struct adopt *a, struct sandbox *s)
{
	struct foster *f = calloc(1, sizeof(*f));
	if (f == NULL) {
		log_error("adopt", sandbox_id(s), "out of memory");
		return NULL;
	}
	f->adopt = a;
	f->sandbox = s;
	LIST_INSERT_HEAD(&a->fosters, f, entry);
	return f;
}

static void foster_destroy(struct foster *f)
{
	if (f->waits)
		sandbox_wait_cancel(f->sandbox, f);
	dial_close(&f->dial);
	LIST_REMOVE(f, entry);
	free(f);
}

static struct foster *foster_of(struct dial *d)
{
	return (struct foster *)((char *)d - offsetof(struct foster, dial));
}

static void on_end(struct dial *d, const struct dial_end *end)
{
	(void)end;
	foster_destroy(foster_of(d));
}

static void take_over(struct adopt *a, struct sandbox *s, const Sandgate__ExecState *x)
{
	struct err e;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Attach attach = SANDGATE__ATTACH__INIT;
	struct foster *f = foster_create(a, s);
	if (f == NULL)
		return;
	attach.exec_id = x->exec_id;
	attach.offset = x->end_sequence;
	attach.role = SANDGATE__ROLE__ROLE_OWNER;
	open.op_case = SANDGATE__OPEN__OP_ATTACH;
	open.attach = &attach;
	if (dial_open(&f->dial, s, &open, DIAL_FOLLOWS, &exec_handlers, &e) < 0) {
		log_warn("adopt", x->exec_id, "%s", e.msg);
		foster_destroy(f);
		return;
	}
	log_info("adopt", x->exec_id, "taken over in sandbox %s", sandbox_id(s));
}

static void on_list_frame(struct dial *d, const Sandgate__GuestFrame *g)
{
	struct foster *f = foster_of(d);
	if (g->body_case == SANDGATE__GUEST_FRAME__BODY_DONE)
		foster_destroy(f);
	if (g->body_case != SANDGATE__GUEST_FRAME__BODY_EXEC_LIST)
		return;
	for (size_t i = 0; i < g->exec_list->n_execs; i++) {
		const Sandgate__ExecState *x = g->exec_list->execs[i];
		if (x->phase != SANDGATE__EXEC_PHASE__PHASE_FINISHED && !x->detached)
			take_over(f->adopt, f->sandbox, x);
	}
}

static void on_exec_frame(struct dial *d, const Sandgate__GuestFrame *g)
{
	if (g->body_case == SANDGATE__GUEST_FRAME__BODY_EXIT)
		foster_destroy(foster_of(d));
}

static void on_going(struct dial *d, Sandgate__CancelReason reason)
{
	dial_cancel(d, reason, NULL);
}

static const struct dial_handlers list_handlers = {.on_frame = on_list_frame, .on_end = on_end};
static const struct dial_handlers exec_handlers = {
    .on_frame = on_exec_frame, .on_end = on_end, .on_going = on_going};

static void on_ready(struct sandbox *s, const struct err *why, void *arg)
{
	struct foster *f = arg;
	struct err e;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ListExecs list = SANDGATE__LIST_EXECS__INIT;
	f->waits = false;
	open.op_case = SANDGATE__OPEN__OP_LIST_EXECS;
	open.list_execs = &list;
	if (why != NULL || dial_open(&f->dial, s, &open, DIAL_ASKS, &list_handlers, &e) < 0)
		foster_destroy(f);
}

struct adopt *adopt_start(struct api *api, struct err *e)
{
	struct sandbox *s = NULL;
	struct adopt *a = calloc(1, sizeof(*a));
	if (a == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	LIST_INIT(&a->fosters);
	while ((s = sandbox_next(api->sandboxes, s)) != NULL) {
		if (sandbox_status(s) != SANDBOX_RUNNING &&
		    sandbox_status(s) != SANDBOX_CREATING)
			continue;
		struct foster *f = foster_create(a, s);
		if (f == NULL)
			continue;
		f->waits = true;
		if (sandbox_wait_ready(s, on_ready, f, e) < 0) {
			f->waits = false;
			foster_destroy(f);
		}
	}
	return a;
}

void adopt_stop(struct adopt *a)
{
	while (a != NULL && !LIST_EMPTY(&a->fosters))
		foster_destroy(LIST_FIRST(&a->fosters));
	free(a);
}
