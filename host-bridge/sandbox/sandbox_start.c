/* What a template runs in its first boot: `start`, an exec that stays, and `ready`, tried until
 * it succeeds. What starts from the template's snapshot has both behind it.
 *
 *   STARTING ─► TRYING ─► LOOKING ─► sandbox_started
 *                 ▲          └─ not ready ─► PAUSING ─┐
 *                 └───────────────────────────────────┘
 *
 * LOOKING asks whether `start` still runs; without `ready` the second look is the last. The end
 * of what both print is kept for the caller, should they fail; the log has nothing of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/exec/call_request.h"
#include "host-bridge/exec/result_json.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/vm/tail.h"
#include "proto/limits.h"

#define START_ID "start"

/* Of one stream: room for what start and ready said. */
struct said {
	char text[2 * START_SAID_MAX];
	size_t len;
	uint64_t bytes; /* … in all */
};

struct sandbox_start {
	struct sandbox *s;
	struct call_request *start, *ready; /* NULL: there is none */
	struct link *link, *watch; /* of the question; on what `start` prints, or NULL */
	ev_timer deadline, pause;
	unsigned tries, pause_ms;
	bool is_ready;
	bool ended;    /* `start` has, and its last words are awaited */
	char last[96]; /* how the last try ended, or `start` */
	struct said *start_said, ready_said[2]; /* stdout, stderr */
};

struct sandbox_start *sandbox_start_new(struct sandbox *s, struct template *t)
{
	struct sandbox_start *b = calloc(1, sizeof(*b));
	struct said *said = calloc(2, sizeof(*said));
	if (b == NULL || said == NULL) {
		free(b);
		free(said);
		return NULL;
	}
	b->s = s;
	b->start_said = said;
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
	link_destroy(b->watch, false);
	call_request_free(b->start);
	call_request_free(b->ready);
	free(b->start_said);
	free(b);
}

/* ---- what they print ---- */

static void hear(struct said said[2], const Sandgate__Output *o)
{
	struct said *to = &said[o->stream == SANDGATE__STREAM__STREAM_STDERR];
	tail_add(to->text, &to->len, START_SAID_MAX, o->data.data, o->data.len);
	to->bytes += o->data.len;
}

/* The sandbox keeps it, that of `ready` behind that of `start`. */
static void hand_over(struct sandbox_start *b)
{
	for (int i = 0; i < 2; i++) {
		struct said *to = &b->start_said[i], *from = &b->ready_said[i];
		tail_add(to->text, &to->len, sizeof(to->text), from->text, from->len);
		to->bytes += from->bytes;
	}
	free(b->s->said);
	b->s->said = b->start_said;
	b->start_said = NULL;
}

bool sandbox_said(const struct sandbox *s, struct result_partial *out)
{
	*out = (struct result_partial){0};
	for (int i = 0; s->said != NULL && i < 2; i++) {
		out->streams[i] = (struct result_stream){s->said[i].text, s->said[i].len};
		out->bytes[i] = s->said[i].bytes;
	}
	return out->bytes[0] + out->bytes[1] > 0;
}

/* ---- the end ---- */

/* `b` is gone afterwards. */
static void give_up(struct sandbox_start *b, const struct err *why)
{
	struct sandbox *s = b->s;
	hand_over(b);
	sandbox_start_free(s);
	sandbox_failed(s, why);
}

static void fail(struct sandbox_start *b, const char *what, const char *how)
{
	struct err e = {0};
	err_set(&e, ERR_LAUNCHER_FAILED, "template %s: %s: %s", b->s->spec.template, what, how);
	give_up(b, &e);
}

static void fail_ended(struct sandbox_start *b)
{
	char how[sizeof(b->last)];
	memcpy(how, b->last, sizeof(how));
	fail(b, "start ended before the sandbox was ready", how);
}

static void describe(const Sandgate__Result *r, char out[96])
{
	const char *outcome = r != NULL ? result_outcome_name(r->outcome) : NULL;
	if (outcome == NULL)
		snprintf(out, 96, "it ended, nobody knows how");
	else if (r->spawn_error != NULL)
		snprintf(out, 96, "%s (%.16s: %.32s), exit code %d", outcome,
		         r->spawn_error->stage, strerror(r->spawn_error->error_number),
		         r->exit_code);
	else
		snprintf(out, 96, "%s, exit code %d", outcome, r->exit_code);
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

static int dial(struct sandbox_start *b, struct link **at, Sandgate__Open *open,
                const struct link_handlers *h, struct err *e)
{
	unsigned ms = BOOT_DEADLINE_S * 1000;
	link_destroy(*at, false);
	*at = link_create(b->s->set->loop, &b->s->endpoint, ms, e);
	if (*at == NULL)
		return -1;
	link_insist(*at); /* none of them does harm when it arrives twice */
	return link_open(*at, open, ms, h, b, e);
}

static void ask(struct sandbox_start *b, Sandgate__Open *open, const struct link_handlers *h)
{
	struct err e = {0};
	if (dial(b, &b->link, open, h, &e) < 0)
		give_up(b, &e);
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

static void rest(struct sandbox_start *b, unsigned ms)
{
	ev_timer_set(&b->pause, ms / 1e3, 0.);
	ev_timer_start(b->s->set->loop, &b->pause);
}

/* ---- does start still run? ---- */

static void settled(struct sandbox_start *b)
{
	struct sandbox *s = b->s;
	if (!b->is_ready) {
		rest(b, b->pause_ms);
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
	link_destroy(l, false);
	b->link = NULL;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE &&
	    f->exec_state->phase != SANDGATE__EXEC_PHASE__PHASE_FINISHED) {
		settled(b);
		return;
	}
	describe(f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE ? f->exec_state->result
	                                                                : NULL,
	         b->last);
	if (b->watch == NULL) {
		fail_ended(b);
		return;
	}
	b->ended = true;
	ev_timer_stop(b->s->set->loop, &b->deadline);
	rest(b, START_SAID_WAIT_MS);
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
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_OUTPUT)
		hear(b->ready_said, f->output);
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
	struct sandbox_start *b = w->data;
	(void)loop;
	(void)revents;
	if (b->ended)
		fail_ended(b);
	else
		try(b);
}

/* ---- start ---- */

static void on_watch_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox_start *b = owner;
	(void)l;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_OUTPUT)
		hear(b->start_said, f->output);
	if (f->body_case != SANDGATE__GUEST_FRAME__BODY_EXIT)
		return;
	describe(f->exit->result, b->last);
	fail_ended(b);
}

static void on_watch_closed(struct link *l, const struct err *why, bool sent,
                            const Sandgate__Refused *refused, void *owner)
{
	struct sandbox_start *b = owner;
	(void)l;
	(void)why;
	(void)sent;
	(void)refused;
	b->watch = NULL;
	if (b->ended)
		fail_ended(b);
}

/* Without it a failure has less to tell. */
static void watch(struct sandbox_start *b)
{
	static const struct link_handlers handlers = {.on_frame = on_watch_frame,
	                                              .on_closed = on_watch_closed};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Attach attach = SANDGATE__ATTACH__INIT;
	struct err ignored;
	attach.exec_id = START_ID;
	attach.role = SANDGATE__ROLE__ROLE_OUTPUT;
	open.op_case = SANDGATE__OPEN__OP_ATTACH;
	open.attach = &attach;
	if (dial(b, &b->watch, &open, &handlers, &ignored) == 0)
		return;
	link_destroy(b->watch, false);
	b->watch = NULL;
}

static void on_start_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox_start *b = owner;
	char how[96];
	link_destroy(l, false);
	b->link = NULL;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_STARTED) {
		watch(b);
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
