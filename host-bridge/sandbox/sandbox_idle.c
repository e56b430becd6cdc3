/* The end of a sandbox's idle time. A running exec that has a deadline keeps its sandbox,
 * though nobody watches it: only the agent knows of such, so it is asked first. An agent that
 * does not answer keeps nothing; one that could not be asked is asked again. */
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/limits.h"

static void answered(struct sandbox *s)
{
	s->idle = NULL;
	if (s->busy)
		sandbox_touch(s);
	if (sandbox_is_due(s))
		sandbox_expire(s);
	else
		sandbox_update_timer(s);
}

static void on_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox *s = owner;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_LIST) {
		for (size_t i = 0; i < f->exec_list->n_execs; i++)
			s->busy = s->busy || f->exec_list->execs[i]->has_deadline;
		return;
	}
	link_destroy(l, false);
	answered(s);
}

/* For the whole answer. */
static void on_opened(struct link *l, const Sandgate__Opened *o, void *owner)
{
	(void)o;
	(void)owner;
	link_expect(l, ANSWER_DEADLINE_S * 1000);
}

static void on_closed(struct link *l, const struct err *why, bool sent,
                      const Sandgate__Refused *refused, void *owner)
{
	struct sandbox *s = owner;
	(void)l;
	(void)sent;
	(void)refused;
	if (why->code == ERR_CAPACITY) {
		s->idle = NULL;
		sandbox_timer_in(s, SHORTAGE_RETRY_S);
		return;
	}
	answered(s);
}

void sandbox_check_idle(struct sandbox *s)
{
	static const struct link_handlers handlers = {
	    .on_opened = on_opened, .on_frame = on_frame, .on_closed = on_closed};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ListExecs list = SANDGATE__LIST_EXECS__INIT;
	struct err e;
	open.op_case = SANDGATE__OPEN__OP_LIST_EXECS;
	open.list_execs = &list;
	if (s->idle != NULL)
		return;
	s->busy = false;
	s->idle = sandbox_link(s, true, &e);
	if (s->idle != NULL &&
	    link_open(s->idle, &open, OPEN_DEADLINE_S * 1000, &handlers, s, &e) == 0)
		return;
	link_destroy(s->idle, false);
	s->idle = NULL;
	sandbox_expire(s);
}

void sandbox_stop_idle(struct sandbox *s)
{
	link_destroy(s->idle, false);
	s->idle = NULL;
}
