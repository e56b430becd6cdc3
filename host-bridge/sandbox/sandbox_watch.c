/* Execs and the events of their starts and ends. While a call follows an exec, it tells. Of
 * those that are left to run on (detached, their client gone, or older than this bridge) the
 * agent tells the ends: one link a sandbox, open while there are such, that lists what is and
 * then follows. What ended while it was not open is in the list. */
#include <stdlib.h>
#include <string.h>

#include "host-bridge/exec/result_json.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/limits.h"
#include "proto/log.h"

/* An exec that was left. */
struct watched {
	LIST_ENTRY(watched) entry;
	char id[EXEC_ID_MAX + 1];
	bool started;  /* that was told */
	bool deadline; /* its end is activity */
	bool seen;     /* the agent knows it */
};

static void watch_in(struct sandbox *s, double seconds)
{
	ev_timer_stop(s->set->loop, &s->watch_timer);
	ev_timer_set(&s->watch_timer, seconds, 0.);
	ev_timer_start(s->set->loop, &s->watch_timer);
}

static struct watched *find(struct sandbox *s, const char *id)
{
	struct watched *w;
	LIST_FOREACH (w, &s->watched, entry)
		if (strcmp(w->id, id) == 0)
			break;
	return w;
}

static struct sandbox_exec *find_followed(struct sandbox *s, const char *id)
{
	struct sandbox_exec *x;
	LIST_FOREACH (x, &s->followed, entry)
		if (strcmp(x->id, id) == 0)
			break;
	return x;
}

static bool has_work(const struct sandbox *s)
{
	return s->watch_all || !LIST_EMPTY(&s->watched);
}

static bool agent_tells(const struct sandbox *s)
{
	return sandbox_agent_has(s, "follow");
}

/* NULL: too many, or no memory; its end will not be told. */
static struct watched *add(struct sandbox *s, const char *id, bool started)
{
	struct watched *w = s->watched_count < WATCHED_MAX ? calloc(1, sizeof(*w)) : NULL;
	if (w == NULL)
		return NULL;
	snprintf(w->id, sizeof(w->id), "%s", id);
	w->started = started;
	w->seen = s->watch != NULL; /* its list may have come by; its end has not */
	LIST_INSERT_HEAD(&s->watched, w, entry);
	s->watched_count++;
	return w;
}

static void drop(struct sandbox *s, struct watched *w)
{
	LIST_REMOVE(w, entry);
	s->watched_count--;
	free(w);
}

static void ended(struct sandbox *s, struct watched *w, const char *outcome)
{
	if (w->started)
		sandbox_event(s, "exec_ended", w->id, outcome);
	if (w->deadline)
		sandbox_touch(s);
	drop(s, w);
}

/* ---- what the agent tells ---- */

static void note(struct sandbox *s, const Sandgate__ExecState *state)
{
	bool finished = state->phase == SANDGATE__EXEC_PHASE__PHASE_FINISHED;
	const char *outcome =
	    state->result != NULL ? result_outcome_name(state->result->outcome) : NULL;
	struct sandbox_exec *x = find_followed(s, state->exec_id);
	struct watched *w = find(s, state->exec_id);
	if (x != NULL && finished)
		x->outcome = outcome;
	if (w == NULL && x == NULL && s->watch_all && !finished)
		w = add(s, state->exec_id, true);
	if (w == NULL)
		return;
	w->seen = true;
	if (finished) {
		ended(s, w, outcome);
		return;
	}
	w->deadline = state->has_deadline;
	if (!w->started) {
		w->started = true;
		sandbox_event(s, "exec_started", w->id, NULL);
	}
}

/* What is not in the list was forgotten, or never came to be. */
static void end_of_list(struct sandbox *s)
{
	struct watched *w, *next;
	s->watch_all = false;
	for (w = LIST_FIRST(&s->watched); w != NULL; w = next) {
		next = LIST_NEXT(w, entry);
		if (!w->seen)
			ended(s, w, NULL);
	}
	link_expect(s->watch, 0);
}

static void on_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox *s = owner;
	(void)l;
	switch (f->body_case) {
	case SANDGATE__GUEST_FRAME__BODY_EXEC_LIST:
		for (size_t i = 0; i < f->exec_list->n_execs; i++)
			note(s, f->exec_list->execs[i]);
		break;
	case SANDGATE__GUEST_FRAME__BODY_DONE:
		end_of_list(s);
		break;
	case SANDGATE__GUEST_FRAME__BODY_EXEC_STATE:
		note(s, f->exec_state);
		break;
	default:
		break;
	}
	if (!has_work(s) && !ev_is_active(&s->watch_timer))
		watch_in(s, WATCH_LINGER_S);
}

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
	(void)why;
	(void)sent;
	(void)refused;
	s->watch = NULL;
	watch_in(s, WATCH_RETRY_S);
}

/* ---- the link ---- */

static void open_watch(struct sandbox *s)
{
	static const struct link_handlers handlers = {
	    .on_opened = on_opened, .on_frame = on_frame, .on_closed = on_closed};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ListExecs list = SANDGATE__LIST_EXECS__INIT;
	struct err e = {0};
	struct watched *w;
	LIST_FOREACH (w, &s->watched, entry)
		w->seen = false;
	list.follow = true;
	open.op_case = SANDGATE__OPEN__OP_LIST_EXECS;
	open.list_execs = &list;
	s->watch = link_create_behind(&s->gate, true, s->set->loop, &s->endpoint,
	                              CONNECT_DEADLINE_MS, &e);
	if (s->watch != NULL &&
	    link_open(s->watch, &open, OPEN_DEADLINE_S * 1000, &handlers, s, &e) == 0)
		return;
	sandbox_stop_watch(s);
	watch_in(s, WATCH_RETRY_S);
}

static void on_timer(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct sandbox *s = t->data;
	(void)loop;
	(void)revents;
	if (!has_work(s))
		sandbox_stop_watch(s);
	else if (s->watch == NULL && s->status == SANDBOX_RUNNING && !s->gate.closed)
		open_watch(s);
}

void sandbox_init_watch(struct sandbox *s)
{
	LIST_INIT(&s->followed);
	LIST_INIT(&s->watched);
	ev_timer_init(&s->watch_timer, on_timer, 0., 0.);
	s->watch_timer.data = s;
}

void sandbox_start_watch(struct sandbox *s, bool all)
{
	if (!agent_tells(s))
		return;
	s->watch_all = s->watch_all || all;
	if (has_work(s) && s->watch == NULL)
		watch_in(s, all ? 0. : WATCH_DELAY_S);
}

void sandbox_stop_watch(struct sandbox *s)
{
	ev_timer_stop(s->set->loop, &s->watch_timer);
	link_destroy(s->watch, false);
	s->watch = NULL;
}

void sandbox_free_watch(struct sandbox *s)
{
	sandbox_stop_watch(s);
	while (!LIST_EMPTY(&s->watched))
		drop(s, LIST_FIRST(&s->watched));
}

/* ---- what calls tell ---- */

void sandbox_exec_follow(struct sandbox *s, struct sandbox_exec *x, const char *id)
{
	*x = (struct sandbox_exec){.sandbox = s, .id = id};
	LIST_INSERT_HEAD(&s->followed, x, entry);
}

void sandbox_exec_started(struct sandbox_exec *x)
{
	x->started = true;
	sandbox_event(x->sandbox, "exec_started", x->id, NULL);
}

void sandbox_exec_attached(struct sandbox_exec *x)
{
	const struct sandbox_exec *other;
	bool told = find(x->sandbox, x->id) != NULL;
	LIST_FOREACH (other, &x->sandbox->followed, entry)
		told = told || (other != x && strcmp(other->id, x->id) == 0);
	if (told)
		sandbox_exec_drop(x);
	else
		sandbox_exec_started(x);
}

void sandbox_exec_drop(struct sandbox_exec *x)
{
	if (x->sandbox != NULL)
		LIST_REMOVE(x, entry);
	x->sandbox = NULL;
}

void sandbox_exec_ended(struct sandbox_exec *x, const char *outcome)
{
	struct sandbox *s = x->sandbox;
	sandbox_exec_drop(x);
	if (s != NULL)
		sandbox_event(s, "exec_ended", x->id, outcome);
}

/* One that was not seen to start may be somebody else's, who tells of it; or the agent knows.
 */
void sandbox_exec_left(struct sandbox_exec *x)
{
	struct sandbox *s = x->sandbox;
	if (s == NULL)
		return;
	if (x->outcome != NULL && x->started) {
		sandbox_exec_ended(x, x->outcome);
		return;
	}
	sandbox_exec_drop(x);
	struct watched *w = find(s, x->id);
	bool told = x->outcome != NULL || (!x->started && find_followed(s, x->id) != NULL);
	if (w != NULL)
		w->started = w->started || x->started;
	if (w != NULL || told || s->status != SANDBOX_RUNNING || !agent_tells(s))
		return;
	if (!x->started)
		sandbox_stop_watch(s); /* the next list says whether it ever was */
	add(s, x->id, x->started);
	sandbox_start_watch(s, false);
}
