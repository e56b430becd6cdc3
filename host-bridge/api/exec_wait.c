#include "host-bridge/api/exec_wait.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "host-bridge/exec/result_json.h"

struct exec_waiter {
	LIST_ENTRY(exec_waiter) entry;
	struct exec_wait *wait;
	struct api_request *r;
	ev_timer timer;
	bool over; /* its time is */
};

struct exec_wait {
	LIST_ENTRY(exec_wait) entry;
	struct ev_loop *loop;
	struct sandbox *sandbox; /* kept by the open dial, or held while `again` runs */
	char exec_id[EXEC_ID_MAX + 1];
	struct dial dial;
	enum dial_kind kind;        /* of its questions */
	Sandgate__ExecState *state; /* the last one known; NULL: none yet */
	bool ended;                 /* `state` is made of the Exit */
	unsigned breaks;            /* of its link since then: `state` may be out of date */
	ev_timer again;             /* … until it is asked for anew */
	LIST_HEAD(, exec_waiter) waiters;
};

struct exec_wait_set {
	LIST_HEAD(, exec_wait) waits;
};

static const struct dial_handlers dial_handlers;

/* ---- life ---- */

static struct exec_wait *exec_wait_find(struct exec_wait_set *set, const struct sandbox *s,
                                        const char *id)
{
	struct exec_wait *x;
	LIST_FOREACH (x, &set->waits, entry)
		if (x->sandbox == s && !x->ended && strcmp(x->exec_id, id) == 0)
			break;
	return x;
}

static void exec_wait_destroy(struct exec_wait *x)
{
	if (ev_is_active(&x->again)) {
		ev_timer_stop(x->loop, &x->again);
		sandbox_unhold(x->sandbox);
	}
	dial_close(&x->dial);
	sandgate__exec_state__free_unpacked(x->state, NULL);
	LIST_REMOVE(x, entry);
	free(x);
}

/* Give the request back, for its reply. */
static struct api_request *waiter_destroy(struct exec_waiter *w)
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
	struct exec_waiter *w = r->owner;
	struct exec_wait *x = w->wait;
	waiter_destroy(w);
	if (LIST_EMPTY(&x->waiters))
		exec_wait_destroy(x);
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

static void reply_all(struct exec_wait *x, const Sandgate__ExecState *s)
{
	while (!LIST_EMPTY(&x->waiters))
		reply(waiter_destroy(LIST_FIRST(&x->waiters)), s);
	exec_wait_destroy(x);
}

static void fail_all(struct exec_wait *x, const struct err *e)
{
	struct api_details d = {.exec_id = x->exec_id};
	while (!LIST_EMPTY(&x->waiters))
		api_fail(waiter_destroy(LIST_FIRST(&x->waiters)), e, &d);
	exec_wait_destroy(x);
}

/* There is no more to learn. Where the end is known already, or waiting alone has failed, what
 * was learnt is the reply. An exec that was known is lost with its link, whatever trying again
 * said. */
static void stop(struct exec_wait *x, const struct err *why)
{
	struct err e = *why;
	bool full = e.code == ERR_QUOTA_EXCEEDED;
	bool known = x->state != NULL, broken = x->breaks > 0;
	if (x->ended || (known && full && !broken)) {
		reply_all(x, x->state);
		return;
	}
	if (known && broken && !full && e.code != ERR_SANDBOX_GONE)
		err_set(&e, ERR_SANDBOX_LOST, "the connection to the sandbox was lost");
	fail_all(x, &e);
}

static void on_over(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct exec_waiter *w = t->data;
	struct exec_wait *x = w->wait;
	(void)loop;
	(void)revents;
	w->over = true;
	if (x->state == NULL || x->breaks > 0)
		return;
	reply(waiter_destroy(w), x->state);
	if (LIST_EMPTY(&x->waiters))
		exec_wait_destroy(x);
}

/* ---- the agent ---- */

static int keep_state(struct exec_wait *x, const Sandgate__ExecState *s)
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
	sandgate__exec_state__free_unpacked(x->state, NULL);
	x->state = copy;
	return 0;
}

static void dial_out(struct exec_wait *x, Sandgate__Open *open, enum dial_kind kind)
{
	struct err e;
	dial_close(&x->dial);
	if (dial_open(&x->dial, x->sandbox, open, kind, &dial_handlers, &e) == 0)
		return;
	stop(x, &e);
}

static void look(struct exec_wait *x)
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ExecInfo info = SANDGATE__EXEC_INFO__INIT;
	info.exec_id = x->exec_id;
	open.op_case = SANDGATE__OPEN__OP_EXEC_INFO;
	open.exec_info = &info;
	dial_out(x, &open, x->kind);
}

/* As a watcher at the end of the output: its Exit says that the exec has ended. */
static void attach(struct exec_wait *x)
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Attach a = SANDGATE__ATTACH__INIT;
	a.exec_id = x->exec_id;
	a.role = SANDGATE__ROLE__ROLE_OUTPUT;
	a.offset = x->state->end_sequence;
	open.op_case = SANDGATE__OPEN__OP_ATTACH;
	open.attach = &a;
	dial_out(x, &open, DIAL_FOLLOWS);
}

static void on_state(struct exec_wait *x, const Sandgate__ExecState *s)
{
	struct exec_waiter *w, *next;
	struct err e;
	if (s->phase == SANDGATE__EXEC_PHASE__PHASE_FINISHED || x->ended) {
		reply_all(x, s->phase == SANDGATE__EXEC_PHASE__PHASE_FINISHED ? s : x->state);
		return;
	}
	x->breaks = 0;
	if (keep_state(x, s) < 0) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		fail_all(x, &e);
		return;
	}
	for (w = LIST_FIRST(&x->waiters); w != NULL; w = next) {
		next = LIST_NEXT(w, entry);
		if (w->over)
			reply(waiter_destroy(w), s);
	}
	if (LIST_EMPTY(&x->waiters))
		exec_wait_destroy(x);
	else
		attach(x);
}

static void on_started(struct exec_wait *x, const Sandgate__Started *s)
{
	x->state->phase = SANDGATE__EXEC_PHASE__PHASE_RUNNING;
	x->state->started_at_ms = s->started_at_ms;
}

/* The agent knows more of a finished exec than Exit says, unless it was forgotten by then. */
static void on_ended(struct exec_wait *x, Sandgate__Result *result)
{
	Sandgate__ExecState s = *x->state;
	s.phase = SANDGATE__EXEC_PHASE__PHASE_FINISHED;
	s.result = result;
	s.finished_at_ms = result->finished_at_ms;
	x->ended = keep_state(x, &s) == 0;
	look(x);
}

static void on_frame(struct dial *d, const Sandgate__GuestFrame *f)
{
	struct exec_wait *x =
	    (struct exec_wait *)((char *)d - offsetof(struct exec_wait, dial));
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE)
		on_state(x, f->exec_state);
	else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_STARTED && x->state != NULL)
		on_started(x, f->started);
	else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXIT && x->state != NULL)
		on_ended(x, f->exit->result);
}

static void on_again(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct exec_wait *x = t->data;
	struct sandbox *s = x->sandbox;
	(void)loop;
	(void)revents;
	look(x);
	sandbox_unhold(s);
}

/* A link may break though the guest is well: begin anew. The pause is for an agent that answers
 * and hangs up for ever, until its waiters' time is over. */
static void look_again(struct exec_wait *x)
{
	x->breaks++;
	sandbox_hold(x->sandbox);
	ev_timer_set(&x->again, REATTACH_PAUSE_MS / 1e3, 0.);
	ev_timer_start(x->loop, &x->again);
}

static void on_end(struct dial *d, const struct dial_end *end)
{
	struct exec_wait *x =
	    (struct exec_wait *)((char *)d - offsetof(struct exec_wait, dial));
	if (end->suspended)
		x->breaks = 0;
	if (end->err.code == ERR_SANDBOX_LOST && !x->ended && x->breaks < REATTACH_TRIES)
		look_again(x);
	else
		stop(x, &end->err);
}

static const struct dial_handlers dial_handlers = {.on_frame = on_frame, .on_end = on_end};

/* ---- what handlers call ---- */

static void join(struct exec_wait *x, struct exec_waiter *w, struct api_request *r,
                 double seconds)
{
	w->wait = x;
	w->r = r;
	LIST_INSERT_HEAD(&x->waiters, w, entry);
	r->owner = w;
	r->on_gone = on_gone;
	r->on_room = NULL;
	ev_timer_init(&w->timer, on_over, seconds, 0.);
	w->timer.data = w;
	ev_timer_start(r->api->loop, &w->timer);
}

static struct exec_wait *exec_wait_create(const struct api_request *r, struct sandbox *s,
                                          enum dial_kind kind)
{
	struct exec_wait *x = calloc(1, sizeof(*x));
	if (x == NULL)
		return NULL;
	x->loop = r->api->loop;
	x->sandbox = s;
	x->kind = kind;
	strcpy(x->exec_id, r->exec_id);
	ev_timer_init(&x->again, on_again, 0., 0.);
	x->again.data = x;
	LIST_INIT(&x->waiters);
	LIST_INSERT_HEAD(&r->api->exec_waits->waits, x, entry);
	return x;
}

void exec_wait_start(struct api_request *r, struct sandbox *s, enum dial_kind kind,
                     double seconds)
{
	struct err e;
	struct exec_wait *x = exec_wait_find(r->api->exec_waits, s, r->exec_id), *made = NULL;
	struct exec_waiter *w = calloc(1, sizeof(*w));
	if (w != NULL && x == NULL)
		x = made = exec_wait_create(r, s, kind);
	if (w == NULL || x == NULL) {
		free(w);
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return;
	}
	join(x, w, r, seconds);
	if (made != NULL)
		look(made);
}

struct exec_wait_set *exec_wait_set_create(void)
{
	return calloc(1, sizeof(struct exec_wait_set));
}

void exec_wait_set_destroy(struct exec_wait_set *set)
{
	free(set);
}
