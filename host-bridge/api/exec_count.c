#include "host-bridge/api/exec_count.h"

#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/api.h"
#include "host-bridge/api/dial.h"

/* One sandbox's agent is asked how much it runs. */
struct exec_question {
	LIST_ENTRY(exec_question) entry;
	struct exec_count *count;
	struct dial dial;
};

/* ---- questions ---- */

static void end_round_in(struct exec_count *n, double seconds)
{
	ev_timer_stop(n->api->loop, &n->timer);
	ev_timer_set(&n->timer, seconds, 0.);
	ev_timer_start(n->api->loop, &n->timer);
}

static void question_destroy(struct exec_question *q)
{
	dial_close(&q->dial);
	LIST_REMOVE(q, entry);
	free(q);
}

static void answered(struct exec_question *q)
{
	struct exec_count *n = q->count;
	question_destroy(q);
	if (LIST_EMPTY(&n->questions))
		end_round_in(n, 0.);
}

static void on_frame(struct dial *d, const Sandgate__GuestFrame *f)
{
	struct exec_question *q =
	    (struct exec_question *)((char *)d - offsetof(struct exec_question, dial));
	if (f->body_case != SANDGATE__GUEST_FRAME__BODY_METRICS)
		return;
	size_t running = f->metrics->execs_running;
	q->count->sum += running < EXECS_RUNNING_MAX ? running : EXECS_RUNNING_MAX;
	answered(q);
}

static void on_end(struct dial *d, const struct dial_end *end)
{
	(void)end;
	answered((struct exec_question *)((char *)d - offsetof(struct exec_question, dial)));
}

static const struct dial_handlers handlers = {.on_frame = on_frame, .on_end = on_end};

static void ask(struct exec_count *n, struct sandbox *s)
{
	struct err e;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Metrics metrics = SANDGATE__METRICS__INIT;
	struct exec_question *q = calloc(1, sizeof(*q));
	if (q == NULL)
		return;
	q->count = n;
	LIST_INSERT_HEAD(&n->questions, q, entry);
	open.op_case = SANDGATE__OPEN__OP_METRICS;
	open.metrics = &metrics;
	if (dial_open(&q->dial, s, &open, DIAL_ENDS, &handlers, &e) < 0)
		question_destroy(q);
	else
		dial_yield(&q->dial);
}

static void begin_round(struct exec_count *n)
{
	struct sandbox *s = NULL;
	n->round++;
	n->sum = 0;
	while ((s = sandbox_next(n->api->sandboxes, s)) != NULL)
		if (sandbox_status(s) == SANDBOX_RUNNING &&
		    strcmp(sandbox_spec(s)->workspace, n->workspace) == 0)
			ask(n, s);
	end_round_in(n, LIST_EMPTY(&n->questions) ? 0. : QUOTA_COUNT_MS / 1e3);
}

static void drop_questions(struct exec_count *n)
{
	while (!LIST_EMPTY(&n->questions))
		question_destroy(LIST_FIRST(&n->questions));
}

/* Who came since it began waits for another: what they ask for may not be in the answers. */
static void tell(struct exec_count *n, unsigned round)
{
	struct exec_count_waiter *w = TAILQ_LAST(&n->waiters, exec_count_waiters);
	if (w != NULL && w->round > round)
		begin_round(n);
	while ((w = TAILQ_FIRST(&n->waiters)) != NULL && w->round <= round) {
		exec_count_unask(w);
		w->on_counted(w);
	}
}

/* The agents do not know yet of what is being opened. */
static void on_round_end(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct exec_count *n = w->data;
	(void)loop;
	(void)revents;
	drop_questions(n);
	n->running = n->sum + n->opening;
	if (n->running < n->claims)
		n->running = n->claims;
	n->counted = true;
	tell(n, n->round);
}

/* ---- the number ---- */

void exec_count_init(struct exec_count *n, struct api *api, const char *workspace)
{
	*n = (struct exec_count){.api = api, .workspace = workspace};
	LIST_INIT(&n->questions);
	TAILQ_INIT(&n->waiters);
	ev_timer_init(&n->timer, on_round_end, 0., 0.);
	n->timer.data = n;
}

void exec_count_stop(struct exec_count *n)
{
	drop_questions(n);
	ev_timer_stop(n->api->loop, &n->timer);
}

bool exec_count_is_doubtful(const struct exec_count *n)
{
	return !n->counted || n->running > n->claims;
}

void exec_count_ask(struct exec_count *n, struct exec_count_waiter *w)
{
	w->count = n;
	w->round = n->round + 1;
	TAILQ_INSERT_TAIL(&n->waiters, w, entry);
	if (!ev_is_active(&n->timer))
		begin_round(n);
}

void exec_count_unask(struct exec_count_waiter *w)
{
	if (w->count != NULL)
		TAILQ_REMOVE(&w->count->waiters, w, entry);
	w->count = NULL;
}

/* ---- claims ---- */

void exec_claim_take(struct exec_claim *c, struct exec_count *n)
{
	*c = (struct exec_claim){.count = n};
	if (n == NULL)
		return;
	n->claims++;
	n->opening++;
	n->running++;
}

static void give_back(struct exec_claim *c, bool ended)
{
	struct exec_count *n = c->count;
	if (n == NULL)
		return;
	n->claims--;
	if (!c->started)
		n->opening--;
	if (ended && n->running > n->claims)
		n->running--;
	c->count = NULL;
}

void exec_claim_started(struct exec_claim *c, bool existing)
{
	if (existing) { /* whoever started it was counted */
		give_back(c, true);
		return;
	}
	if (c->count != NULL && !c->started)
		c->count->opening--;
	c->started = true;
}

void exec_claim_end(struct exec_claim *c)
{
	give_back(c, true);
}

void exec_claim_leave(struct exec_claim *c)
{
	give_back(c, false);
}
