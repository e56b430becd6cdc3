#include "host-bridge/sandbox/cancel_all.h"

#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"

struct cancel_all {
	struct ev_loop *loop;
	struct endpoint to;
	Sandgate__CancelReason reason;
	struct link *link;
	char *ids[EXECS_RUNNING_MAX]; /* execs that run, the next to cancel last */
	size_t count;
	ev_timer deadline;
	void (*on_done)(void *arg);
	void *arg;
};

static void next(struct cancel_all *f);

void cancel_all_stop(struct cancel_all *f)
{
	if (f == NULL)
		return;
	ev_timer_stop(f->loop, &f->deadline);
	link_destroy(f->link, true);
	while (f->count > 0)
		free(f->ids[--f->count]);
	free(f);
}

static void done(struct cancel_all *f)
{
	void (*on_done)(void *) = f->on_done;
	void *arg = f->arg;
	cancel_all_stop(f);
	on_done(arg);
}

static void on_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	done(w->data);
}

static void on_closed(struct link *l, const struct err *why, bool sent,
                      const Sandgate__Refused *refused, void *owner)
{
	struct cancel_all *f = owner;
	(void)l;
	(void)why;
	(void)sent;
	(void)refused;
	f->link = NULL;
	next(f);
}

/* An exec that ended meanwhile refuses the attach, or answers with no more than its state:
 * either way this link's work is over when it closes or is answered. */
static void on_cancel_frame(struct link *l, const Sandgate__GuestFrame *g, void *owner)
{
	struct cancel_all *f = owner;
	if (g->body_case != SANDGATE__GUEST_FRAME__BODY_DONE)
		return;
	link_destroy(l, false);
	f->link = NULL;
	next(f);
}

static void on_cancel_opened(struct link *l, const Sandgate__Opened *o, void *owner)
{
	struct cancel_all *f = owner;
	Sandgate__Cancel cancel = SANDGATE__CANCEL__INIT;
	Sandgate__HostFrame frame = SANDGATE__HOST_FRAME__INIT;
	(void)o;
	cancel.reason = f->reason;
	frame.body_case = SANDGATE__HOST_FRAME__BODY_CANCEL;
	frame.cancel = &cancel;
	link_send(l, &frame);
}

static void remember_running(struct cancel_all *f, const Sandgate__ExecList *list)
{
	for (size_t i = 0; i < list->n_execs && f->count < EXECS_RUNNING_MAX; i++) {
		const Sandgate__ExecState *s = list->execs[i];
		char *id = s->phase != SANDGATE__EXEC_PHASE__PHASE_FINISHED ? strdup(s->exec_id)
		                                                            : NULL;
		if (id != NULL)
			f->ids[f->count++] = id;
	}
}

/* The list comes in as many frames as it needs, then Done. */
static void on_list_frame(struct link *l, const Sandgate__GuestFrame *g, void *owner)
{
	struct cancel_all *f = owner;
	if (g->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_LIST) {
		remember_running(f, g->exec_list);
	} else if (g->body_case == SANDGATE__GUEST_FRAME__BODY_DONE) {
		link_destroy(l, false);
		f->link = NULL;
		next(f);
	}
}

static int ask(struct cancel_all *f, Sandgate__Open *open, const struct link_handlers *h)
{
	f->link = link_create(f->loop, &f->to, CONNECT_DEADLINE_MS, NULL);
	if (f->link == NULL)
		return -1;
	return link_open(f->link, open, CONNECT_DEADLINE_MS, h, f, NULL);
}

/* Cancel the last of the list. */
static void next(struct cancel_all *f)
{
	static const struct link_handlers handlers = {
	    .on_opened = on_cancel_opened,
	    .on_frame = on_cancel_frame,
	    .on_closed = on_closed,
	};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Attach attach = SANDGATE__ATTACH__INIT;
	if (f->count == 0) {
		done(f);
		return;
	}
	char *id = f->ids[--f->count];
	attach.exec_id = id;
	attach.role = SANDGATE__ROLE__ROLE_CONTROL;
	open.op_case = SANDGATE__OPEN__OP_ATTACH;
	open.attach = &attach;
	int rc = ask(f, &open, &handlers);
	free(id);
	if (rc < 0)
		done(f);
}

struct cancel_all *cancel_all_start(struct ev_loop *loop, const struct endpoint *to,
                                    Sandgate__CancelReason reason, void (*on_done)(void *arg),
                                    void *arg)
{
	static const struct link_handlers handlers = {.on_frame = on_list_frame,
	                                              .on_closed = on_closed};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ListExecs list = SANDGATE__LIST_EXECS__INIT;
	struct cancel_all *f = calloc(1, sizeof(*f));
	if (f == NULL)
		return NULL;
	f->loop = loop;
	f->to = *to;
	f->reason = reason;
	f->on_done = on_done;
	f->arg = arg;
	ev_timer_init(&f->deadline, on_deadline, CONNECT_DEADLINE_MS / 1e3, 0.);
	f->deadline.data = f;
	ev_timer_start(loop, &f->deadline);
	open.op_case = SANDGATE__OPEN__OP_LIST_EXECS;
	open.list_execs = &list;
	if (ask(f, &open, &handlers) < 0) {
		cancel_all_stop(f);
		return NULL;
	}
	return f;
}
