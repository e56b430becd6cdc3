#include "host-bridge/api/vigil.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "host-bridge/exec/result_json.h"

struct vigil_waiter {
	LIST_ENTRY(vigil_waiter) entry;
	struct vigil *vigil;
	struct api_request *r;
	ev_timer timer;
	bool over; /* its time is */
};

struct vigil {
	LIST_ENTRY(vigil) entry;
	struct ev_loop *loop;
	struct sandbox *sandbox; /* kept by the open dial, or held while `again` runs */
	char exec_id[EXEC_ID_MAX + 1];
	struct dial dial;
	enum dial_kind kind;        /* of its questions */
	Sandgate__ExecState *state; /* the last one known; NULL: none yet */
	bool ended;                 /* `state` is made of the Exit */
	unsigned breaks;            /* of its link since then: `state` may be out of date */
	ev_timer again;             /* … until it is asked for anew */
	LIST_HEAD(, vigil_waiter) waiters;
};

struct vigil_set {
	LIST_HEAD(, vigil) vigils;
};

static const struct dial_handlers dial_handlers;

/* ---- life ---- */

static struct vigil *vigil_find(struct vigil_set *set, const struct sandbox *s, const char *id)
{
	struct vigil *v;
	LIST_FOREACH (v, &set->vigils, entry)
		if (v->sandbox == s && !v->ended && strcmp(v->exec_id, id) == 0)
			break;
	return v;
}

static void vigil_destroy(struct vigil *v)
{
	if (ev_is_active(&v->again)) {
		ev_timer_stop(v->loop, &v->again);
		sandbox_unhold(v->sandbox);
	}
	dial_close(&v->dial);
	sandgate__exec_state__free_unpacked(v->state, NULL);
	LIST_REMOVE(v, entry);
	free(v);
}

/* Give the request back, for its reply. */
static struct api_request *waiter_destroy(struct vigil_waiter *w)
{
	struct api_request *r = w->r;
	ev_timer_stop(r->api->loop, &w->timer);
	LIST_REMOVE(w, entry);
	r->on_gone = NULL;
	free(w);
	return r;
}

static void on_gone(struct api_request *r)
{
	struct vigil_waiter *w = r->owner;
	struct vigil *v = w->vigil;
	waiter_destroy(w);
	if (LIST_EMPTY(&v->waiters))
		vigil_destroy(v);
}

/* ---- replies ---- */

static void reply(struct api_request *r, const Sandgate__ExecState *s)
{
	struct json_out out = {0};
	size_t len;
	result_json_exec(&out, s);
	char *body = json_out_take(&out, &len);
	api_reply_take(r, 200, "application/json", body, len);
}

static void reply_all(struct vigil *v, const Sandgate__ExecState *s)
{
	while (!LIST_EMPTY(&v->waiters))
		reply(waiter_destroy(LIST_FIRST(&v->waiters)), s);
	vigil_destroy(v);
}

static void fail_all(struct vigil *v, const struct err *e)
{
	struct api_details d = {.exec_id = v->exec_id};
	while (!LIST_EMPTY(&v->waiters))
		api_fail(waiter_destroy(LIST_FIRST(&v->waiters)), e, &d);
	vigil_destroy(v);
}

/* There is no more to learn. Where the end is known already, or waiting alone has failed, what
 * was learnt is the reply. An exec that was known is lost with its link, whatever trying again
 * said. */
static void stop(struct vigil *v, const struct err *why)
{
	struct err e = *why;
	bool full = e.code == ERR_QUOTA_EXCEEDED;
	bool known = v->state != NULL, broken = v->breaks > 0;
	if (v->ended || (known && full && !broken)) {
		reply_all(v, v->state);
		return;
	}
	if (known && broken && !full && e.code != ERR_SANDBOX_GONE)
		err_set(&e, ERR_SANDBOX_LOST, "the connection to the sandbox was lost");
	fail_all(v, &e);
}

static void on_over(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct vigil_waiter *w = t->data;
	struct vigil *v = w->vigil;
	(void)loop;
	(void)revents;
	w->over = true;
	if (v->state == NULL || v->breaks > 0)
		return;
	reply(waiter_destroy(w), v->state);
	if (LIST_EMPTY(&v->waiters))
		vigil_destroy(v);
}

/* ---- the agent ---- */

static int keep_state(struct vigil *v, const Sandgate__ExecState *s)
{
	size_t len = sandgate__exec_state__get_packed_size(s);
	uint8_t *packed = malloc(len + 1);
	Sandgate__ExecState *copy = NULL;
	if (packed != NULL) {
		sandgate__exec_state__pack(s, packed);
		copy = sandgate__exec_state__unpack(NULL, len, packed);
	}
	free(packed);
	if (copy == NULL)
		return -1;
	sandgate__exec_state__free_unpacked(v->state, NULL);
	v->state = copy;
	return 0;
}

static void dial_out(struct vigil *v, Sandgate__Open *open, enum dial_kind kind)
{
	struct err e;
	dial_close(&v->dial);
	if (dial_open(&v->dial, v->sandbox, open, kind, &dial_handlers, &e) == 0)
		return;
	stop(v, &e);
}

static void look(struct vigil *v)
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ExecInfo info = SANDGATE__EXEC_INFO__INIT;
	info.exec_id = v->exec_id;
	open.op_case = SANDGATE__OPEN__OP_EXEC_INFO;
	open.exec_info = &info;
	dial_out(v, &open, v->kind);
}

/* As a watcher at the end of the output: its Exit says that the exec has ended. */
static void attach(struct vigil *v)
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Attach a = SANDGATE__ATTACH__INIT;
	a.exec_id = v->exec_id;
	a.role = SANDGATE__ROLE__ROLE_OUTPUT;
	a.offset = v->state->end_sequence;
	open.op_case = SANDGATE__OPEN__OP_ATTACH;
	open.attach = &a;
	dial_out(v, &open, DIAL_FOLLOWS);
}

static void on_state(struct vigil *v, const Sandgate__ExecState *s)
{
	struct vigil_waiter *w, *next;
	struct err e;
	if (s->phase == SANDGATE__EXEC_PHASE__PHASE_FINISHED || v->ended) {
		reply_all(v, s->phase == SANDGATE__EXEC_PHASE__PHASE_FINISHED ? s : v->state);
		return;
	}
	v->breaks = 0;
	if (keep_state(v, s) < 0) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		fail_all(v, &e);
		return;
	}
	for (w = LIST_FIRST(&v->waiters); w != NULL; w = next) {
		next = LIST_NEXT(w, entry);
		if (w->over)
			reply(waiter_destroy(w), s);
	}
	if (LIST_EMPTY(&v->waiters))
		vigil_destroy(v);
	else
		attach(v);
}

static void on_started(struct vigil *v, const Sandgate__Started *s)
{
	v->state->phase = SANDGATE__EXEC_PHASE__PHASE_RUNNING;
	v->state->started_at_ms = s->started_at_ms;
}

/* The agent knows more of a finished exec than Exit says, unless it was forgotten by then. */
static void on_ended(struct vigil *v, Sandgate__Result *result)
{
	Sandgate__ExecState s = *v->state;
	s.phase = SANDGATE__EXEC_PHASE__PHASE_FINISHED;
	s.result = result;
	s.finished_at_ms = result->finished_at_ms;
	v->ended = keep_state(v, &s) == 0;
	look(v);
}

static void on_frame(struct dial *d, const Sandgate__GuestFrame *f)
{
	struct vigil *v = (struct vigil *)((char *)d - offsetof(struct vigil, dial));
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE)
		on_state(v, f->exec_state);
	else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_STARTED && v->state != NULL)
		on_started(v, f->started);
	else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXIT && v->state != NULL)
		on_ended(v, f->exit->result);
}

static void on_again(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct vigil *v = t->data;
	struct sandbox *s = v->sandbox;
	(void)loop;
	(void)revents;
	look(v);
	sandbox_unhold(s);
}

/* A link may break though the guest is well: begin anew. The pause is for an agent that answers
 * and hangs up for ever, until its waiters' time is over. */
static void look_again(struct vigil *v)
{
	v->breaks++;
	sandbox_hold(v->sandbox);
	ev_timer_set(&v->again, REATTACH_PAUSE_MS / 1e3, 0.);
	ev_timer_start(v->loop, &v->again);
}

static void on_end(struct dial *d, const struct dial_end *end)
{
	struct vigil *v = (struct vigil *)((char *)d - offsetof(struct vigil, dial));
	if (end->suspended)
		v->breaks = 0;
	if (end->err.code == ERR_SANDBOX_LOST && !v->ended && v->breaks < REATTACH_TRIES)
		look_again(v);
	else
		stop(v, &end->err);
}

static const struct dial_handlers dial_handlers = {.on_frame = on_frame, .on_end = on_end};

/* ---- what handlers call ---- */

static void join(struct vigil *v, struct vigil_waiter *w, struct api_request *r, double seconds)
{
	w->vigil = v;
	w->r = r;
	LIST_INSERT_HEAD(&v->waiters, w, entry);
	r->owner = w;
	r->on_gone = on_gone;
	r->on_room = NULL;
	ev_timer_init(&w->timer, on_over, seconds, 0.);
	w->timer.data = w;
	ev_timer_start(r->api->loop, &w->timer);
}

static struct vigil *vigil_create(const struct api_request *r, struct sandbox *s,
                                  enum dial_kind kind)
{
	struct vigil *v = calloc(1, sizeof(*v));
	if (v == NULL)
		return NULL;
	v->loop = r->api->loop;
	v->sandbox = s;
	v->kind = kind;
	strcpy(v->exec_id, r->exec_id);
	ev_timer_init(&v->again, on_again, 0., 0.);
	v->again.data = v;
	LIST_INIT(&v->waiters);
	LIST_INSERT_HEAD(&r->api->vigils->vigils, v, entry);
	return v;
}

void vigil_wait(struct api_request *r, struct sandbox *s, enum dial_kind kind, double seconds)
{
	struct err e;
	struct vigil *v = vigil_find(r->api->vigils, s, r->exec_id), *made = NULL;
	struct vigil_waiter *w = calloc(1, sizeof(*w));
	if (w != NULL && v == NULL)
		v = made = vigil_create(r, s, kind);
	if (w == NULL || v == NULL) {
		free(w);
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return;
	}
	join(v, w, r, seconds);
	if (made != NULL)
		look(made);
}

struct vigil_set *vigil_set_create(void)
{
	return calloc(1, sizeof(struct vigil_set));
}

void vigil_set_destroy(struct vigil_set *set)
{
	free(set);
}
