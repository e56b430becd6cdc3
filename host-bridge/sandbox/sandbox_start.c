/* What a template runs in its first boot: `start`, an exec that stays, and `ready`, tried until
 * it succeeds. What starts from the template's snapshot has both behind it.
 *
 *   STARTING ─► TRYING ─► LOOKING ─► sandbox_started
 *                 ▲          └─ not ready ─► PAUSING ─┐
 *                 └───────────────────────────────────┘
 *
 * LOOKING asks whether `start` still runs; without `ready` the second look is the last. */
#include <stdio.h>
#include <stdlib.h>

#include "host-bridge/exec/call_request.h"
#include "host-bridge/exec/result_json.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/limits.h"

#define START_ID "start"

struct sandbox_start {
	struct sandbox *s;
	struct call_request *start, *ready; /* NULL: there is none */
	struct link *link;
	ev_timer deadline, pause;
	unsigned tries, pause_ms;
	bool is_ready;
	char last[96]; /* how the last try ended */
};

struct sandbox_start *sandbox_start_new(struct sandbox *s, struct template *t)
{
	struct sandbox_start *b = calloc(1, sizeof(*b));
	if (b == NULL)
		return NULL;
	b->s = s;
	b->start = t->start;
	b->ready = t->ready;
	t->start = t->ready = NULL;
	return b;
}

void sandbox_start_free(struct sandbox *s)
{
	struct sandbox_start *b = s->start;
	s->start = NULL;
	if (b == NULL)
		return;
	ev_timer_stop(s->set->loop, &b->deadline);
	ev_timer_stop(s->set->loop, &b->pause);
	link_destroy(b->link, false);
	call_request_free(b->start);
	call_request_free(b->ready);
	free(b);
}

/* ---- the end ---- */

/* `b` is gone afterwards. */
static void fail(struct sandbox_start *b, const char *what, const char *how)
{
	struct sandbox *s = b->s;
	struct err e = {0};
	err_set(&e, ERR_LAUNCHER_FAILED, "template %s: %s: %s", s->spec.template, what, how);
	sandbox_start_free(s);
	sandbox_failed(s, &e);
}

static void describe(const Sandgate__Result *r, char out[96])
{
	if (r == NULL)
		snprintf(out, 96, "it ended, nobody knows how");
	else
		snprintf(out, 96, "%s, exit code %d", result_outcome_name(r->outcome),
		         r->exit_code);
}

static void on_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct sandbox_start *b = w->data;
	char what[64];
	(void)loop;
	(void)revents;
	snprintf(what, sizeof(what), "ready did not succeed within %u s",
	         (unsigned)(b->ready->exec.timeout_ms / 1000));
	fail(b, what, b->last);
}

/* ---- one question after the other ---- */

static void try(struct sandbox_start *b);
static void look(struct sandbox_start *b);

static void ask(struct sandbox_start *b, Sandgate__Open *open, const struct link_handlers *h)
{
	struct sandbox *s = b->s;
	struct err e = {0};
	unsigned ms = BOOT_DEADLINE_S * 1000;
	link_destroy(b->link, false);
	b->link = link_create(s->set->loop, &s->endpoint, ms, &e);
	if (b->link != NULL)
		link_insist(b->link); /* none of them does harm when it arrives twice */
	if (b->link != NULL && link_open(b->link, open, ms, h, b, &e) == 0)
		return;
	sandbox_start_free(s);
	sandbox_failed(s, &e);
}

static void run(struct sandbox_start *b, struct call_request *q, const struct link_handlers *h)
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	open.op_case = SANDGATE__OPEN__OP_EXEC;
	open.exec = &q->exec;
	ask(b, &open, h);
}

/* A guest that hangs; a try of `ready` may take as long as that has. */
static void on_opened(struct link *l, const Sandgate__Opened *o, void *owner)
{
	(void)o;
	(void)owner;
	link_expect(l, STARTED_DEADLINE_S * 1000);
}

/* ---- does start still run? ---- */

static void settled(struct sandbox_start *b)
{
	struct sandbox *s = b->s;
	if (!b->is_ready) {
		ev_timer_set(&b->pause, b->pause_ms / 1e3, 0.);
		ev_timer_start(s->set->loop, &b->pause);
		b->pause_ms *= 2;
		if (b->pause_ms > READY_PAUSE_MAX_MS)
			b->pause_ms = READY_PAUSE_MAX_MS;
		return;
	}
	sandbox_start_free(s);
	sandbox_started(s);
}

static void on_state(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox_start *b = owner;
	char how[96];
	link_destroy(l, false);
	b->link = NULL;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE &&
	    f->exec_state->phase != SANDGATE__EXEC_PHASE__PHASE_FINISHED) {
		settled(b);
		return;
	}
	describe(f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE ? f->exec_state->result
	                                                                : NULL,
	         how);
	fail(b, "start ended before the sandbox was ready", how);
}

static void on_no_state(struct link *l, const struct err *why, bool sent,
                        const Sandgate__Refused *refused, void *owner)
{
	struct sandbox_start *b = owner;
	(void)l;
	(void)sent;
	(void)refused;
	b->link = NULL;
	fail(b, "start", why->msg);
}

static void look(struct sandbox_start *b)
{
	static const struct link_handlers handlers = {
	    .on_opened = on_opened, .on_frame = on_state, .on_closed = on_no_state};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ExecInfo info = SANDGATE__EXEC_INFO__INIT;
	if (b->start == NULL) {
		settled(b);
		return;
	}
	info.exec_id = START_ID;
	open.op_case = SANDGATE__OPEN__OP_EXEC_INFO;
	open.exec_info = &info;
	ask(b, &open, &handlers);
}

/* ---- ready? ---- */

static void on_try_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox_start *b = owner;
	const Sandgate__Result *r;
	if (f->body_case != SANDGATE__GUEST_FRAME__BODY_EXIT)
		return;
	r = f->exit->result;
	b->is_ready =
	    r != NULL && r->outcome == SANDGATE__OUTCOME__OUTCOME_EXITED && r->exit_code == 0;
	describe(r, b->last);
	link_destroy(l, false);
	b->link = NULL;
	look(b);
}

static void on_try_closed(struct link *l, const struct err *why, bool sent,
                          const Sandgate__Refused *refused, void *owner)
{
	struct sandbox_start *b = owner;
	(void)l;
	(void)sent;
	(void)refused;
	b->link = NULL;
	snprintf(b->last, sizeof(b->last), "%.90s", why->msg);
	look(b);
}

static void try(struct sandbox_start *b)
{
	static const struct link_handlers handlers = {.on_frame = on_try_frame,
	                                              .on_closed = on_try_closed};
	if (b->ready == NULL) { /* it is when `start` has lived for a while */
		b->is_ready = b->tries++ > 0;
		look(b);
		return;
	}
	snprintf(b->ready->exec_id, sizeof(b->ready->exec_id), "ready-%u", ++b->tries);
	run(b, b->ready, &handlers);
}

static void on_pause(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	try(w->data);
}

/* ---- start ---- */

static void on_start_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox_start *b = owner;
	char how[96];
	link_destroy(l, false);
	b->link = NULL;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_STARTED) {
		try(b);
		return;
	}
	describe(f->body_case == SANDGATE__GUEST_FRAME__BODY_EXIT ? f->exit->result : NULL,
	         how);
	fail(b, "start", how);
}

void sandbox_start(struct sandbox *s)
{
	static const struct link_handlers handlers = {
	    .on_opened = on_opened, .on_frame = on_start_frame, .on_closed = on_no_state};
	struct sandbox_start *b = s->start;
	snprintf(b->last, sizeof(b->last), "its first try has not ended");
	ev_timer_init(&b->pause, on_pause, 0., 0.);
	b->pause.data = b;
	b->pause_ms = b->ready != NULL ? READY_PAUSE_MIN_MS : READY_PAUSE_MAX_MS;
	if (b->ready != NULL) {
		ev_timer_init(&b->deadline, on_deadline,
		              (double)b->ready->exec.timeout_ms / 1e3, 0.);
		b->deadline.data = b;
		ev_timer_start(s->set->loop, &b->deadline);
	}
	if (b->start == NULL) {
		try(b);
		return;
	}
	snprintf(b->start->exec_id, sizeof(b->start->exec_id), START_ID);
	run(b, b->start, &handlers);
}
