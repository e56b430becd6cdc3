#include "host-bridge/api/call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "host-bridge/api/call_output.h"
#include "host-bridge/api/dial.h"
#include "host-bridge/api/metrics.h"
#include "host-bridge/api/quota.h"
#include "host-bridge/exec/result_json.h"
#include "host-bridge/steady.h"
#include "proto/log.h"

enum call_state { CALL_OPENING, CALL_RUNNING, CALL_ATTACHING };

struct call {
	LIST_ENTRY(call) entry;
	struct call_set *set;
	struct api_request *r; /* until it was answered */
	struct ev_loop *loop;
	struct metrics *metrics;
	struct sandbox *sandbox;
	enum call_kind kind;
	enum call_state state;
	struct call_request *q;
	struct call_output out;
	struct dial dial;
	struct exec_claim claim;  /* on the workspace's quota */
	struct sandbox_exec exec; /* for its events */
	ev_timer watchdog;        /* the guest is silent past the exec's own deadline */
	double still;             /* sandbox_still() that the watchdog takes account of */
	unsigned attach_tries;    /* in a row */
	double attached_at;
	bool replay; /* of a start that somebody has counted already */
	bool owner;  /* of the exec: it may drop the output. Else a repetition of the request,
	              * which stands by: it watches until the owner goes */
	bool going;  /* the sandbox is being ended; the Cancel is sent */
	bool paused; /* for a slow client */
	bool suspended; /* the session before was */
	/* Input that the first frame had no room for: */
	bool feeds;           /* there is more of it, or its end */
	size_t stdin_sent;    /* … of which so much waits for an answer */
	uint64_t stdin_taken; /* all input that the agent has answered for */
};

struct call_set {
	LIST_HEAD(, call) calls;
	size_t count;
};

static const struct dial_handlers dial_handlers;

/* ---- life ---- */

static void call_destroy(struct call *c)
{
	LIST_REMOVE(c, entry);
	c->set->count--;
	ev_timer_stop(c->loop, &c->watchdog);
	dial_close(&c->dial);
	exec_claim_leave(&c->claim);
	sandbox_exec_left(&c->exec);
	call_output_free(&c->out);
	call_request_free(c->q);
	free(c);
}

static void count_unseen(const struct call *c, enum metrics_unseen why)
{
	if (!c->replay)
		metrics_exec_unseen(c->metrics, why);
}

static void call_fail(struct call *c, const struct err *e, const char *started)
{
	struct api_request *r = c->r;
	struct api_details d = {.started = started, .exec_id = c->q->exec_id};
	/* Only the agent's refusal and a link that never carried the request leave nothing
	 * behind; an id of the client's own makes any repetition harmless. */
	if (err_http_status(e->code) >= 500) {
		d.retry_known = true;
		d.retry = c->q->id_given || strcmp(started, "no") == 0;
	}
	r->on_gone = NULL;
	r->on_room = NULL;
	if (strcmp(started, "no") != 0)
		count_unseen(c, UNSEEN_ERROR);
	r->outcome = "error";
	if (strcmp(started, "no") == 0) {
		exec_claim_end(&c->claim);
		sandbox_exec_drop(&c->exec);
	}
	call_output_fail(&c->out, e, &d);
	call_destroy(c);
}

static void call_finish(struct call *c, Sandgate__Result *result, uint64_t end)
{
	struct api_request *r = c->r;
	r->on_gone = NULL;
	r->on_room = NULL;
	r->outcome = result_outcome_name(result->outcome);
	exec_claim_end(&c->claim);
	sandbox_exec_ended(&c->exec, r->outcome);
	if (!c->replay)
		metrics_exec(c->metrics, result->outcome, steady_now() - r->received);
	if (!c->q->exec.keep_output && c->owner) {
		bool cut[2];
		call_output_cut(&c->out, result, cut);
		dial_release(&c->dial, cut);
	}
	call_output_finish(&c->out, result, end);
	call_destroy(c);
}

static const char *started(const struct call *c, bool sent)
{
	if (c->state == CALL_RUNNING)
		return "yes";
	return c->state == CALL_ATTACHING || sent ? "unknown" : "no";
}

/* What the guest stood still meanwhile, its exec's deadline stood, too. */
static double stood_still(struct call *c)
{
	double still = sandbox_still(c->sandbox), more = still - c->still;
	c->still = still;
	return more > 0 ? fmax(more, 1) : 0;
}

/* The end of an exec waits behind its output: time that the client takes is not counted. */
static void on_watchdog(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct call *c = w->data;
	struct err e;
	double more = stood_still(c);
	(void)revents;
	if (c->paused || more > 0) {
		ev_timer_set(w, c->paused ? EXEC_WATCHDOG_S : more, 0.);
		ev_timer_start(loop, w);
		return;
	}
	err_set(&e, ERR_TIMEOUT, "the guest did not report the end of the exec");
	call_fail(c, &e, started(c, true));
}

/* From Started on: before that the exec may have queued, and its deadline has not begun. */
static void arm_watchdog(struct call *c)
{
	const Sandgate__Exec *x = &c->q->exec;
	double after =
	    (double)(x->timeout_ms + x->grace_ms + DRAIN_MAX_MS + CLEANUP_WAIT_MS) / 1000;
	if (x->timeout_ms == 0 || ev_is_active(&c->watchdog))
		return;
	c->still = sandbox_still(c->sandbox);
	ev_timer_set(&c->watchdog, after + EXEC_WATCHDOG_S, 0.);
	ev_timer_start(c->loop, &c->watchdog);
}

/* ---- the client ---- */

static void on_gone(struct api_request *r)
{
	struct call *c = r->owner;
	if (c->state != CALL_OPENING)
		count_unseen(c, UNSEEN_CLIENT_GONE);
	if (c->kind != CALL_START)
		dial_cancel(&c->dial, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE, NULL);
	if (c->q->exec.on_disconnect == SANDGATE__ON_DISCONNECT__DISCONNECT_KILL && c->owner)
		exec_claim_end(&c->claim);
	call_destroy(c);
}

static void on_client_room(struct api_request *r)
{
	struct call *c = r->owner;
	c->paused = false;
	if (c->dial.link != NULL)
		link_resume(c->dial.link);
}

/* ---- the agent ---- */

/* Input that the first frame had no room for: one chunk an acknowledgement, so that the
 * process's own pace decides. What a session that ended has not answered is sent again in the
 * next: where it was suspended, that had no effect; else the offset says so. */
static void send_stdin(struct call *c, bool unsure)
{
	const struct call_request *q = c->q;
	if (q->stdin_rest_len > 0) {
		c->stdin_sent = q->stdin_rest_len < CHUNK_MAX ? q->stdin_rest_len : CHUNK_MAX;
		dial_stdin(&c->dial, unsure ? &c->stdin_taken : NULL, q->stdin_rest,
		           c->stdin_sent);
	} else if (!q->stdin_open) {
		dial_close_stdin(&c->dial);
	} else {
		c->feeds = false;
	}
}

static void on_stdin_ack(struct call *c, const Sandgate__StdinAck *ack)
{
	struct call_request *q = c->q;
	q->stdin_rest += c->stdin_sent;
	q->stdin_rest_len -= c->stdin_sent;
	c->stdin_sent = 0;
	c->stdin_taken = ack->offset;
	c->feeds = !ack->closed;
	if (c->feeds)
		send_stdin(c, false);
}

static void on_started(struct call *c, const Sandgate__Started *s)
{
	bool first = c->state == CALL_OPENING, attached = c->state == CALL_ATTACHING;
	c->state = CALL_RUNNING;
	c->owner = s->owner;
	c->attached_at = steady_now();
	if (first)
		c->replay = s->existing;
	if (first && s->existing)
		sandbox_exec_drop(&c->exec);
	else if (first)
		sandbox_exec_started(&c->exec);
	else if (attached)
		sandbox_exec_attached(&c->exec);
	exec_claim_started(&c->claim, s->existing);
	if (c->kind == CALL_START)
		c->r->on_gone = NULL;
	arm_watchdog(c);
	call_output_started(&c->out, s->started_at_ms);
	if (c->kind == CALL_START) {
		count_unseen(c, UNSEEN_DETACHED);
		call_destroy(c);
		return;
	}
	if (first && s->existing)
		c->feeds = false; /* whoever started it does */
	if (c->feeds && s->owner)
		send_stdin(c, !first && !c->suspended);
}

static void on_frame(struct dial *d, const Sandgate__GuestFrame *f)
{
	struct call *c = (struct call *)((char *)d - offsetof(struct call, dial));
	switch (f->body_case) {
	case SANDGATE__GUEST_FRAME__BODY_STARTED:
		on_started(c, f->started);
		break;
	case SANDGATE__GUEST_FRAME__BODY_OUTPUT:
		c->attach_tries = 0;
		c->paused = !call_output_chunk(&c->out, f->output);
		if (c->paused)
			link_pause(d->link);
		break;
	case SANDGATE__GUEST_FRAME__BODY_GAP:
		call_output_gap(&c->out, f->gap);
		break;
	case SANDGATE__GUEST_FRAME__BODY_STDIN_ACK:
		on_stdin_ack(c, f->stdin_ack);
		break;
	case SANDGATE__GUEST_FRAME__BODY_EXIT:
		if (f->exit->result != NULL)
			call_finish(c, f->exit->result, f->exit->sequence);
		break;
	default:
		break;
	}
}

static Sandgate__Role role_of(const struct call *c)
{
	if (c->kind == CALL_START)
		return SANDGATE__ROLE__ROLE_OUTPUT;
	return c->owner ? SANDGATE__ROLE__ROLE_OWNER : SANDGATE__ROLE__ROLE_STANDBY;
}

/* The session is over but the exec may run on: go on from where we are, by its id. */
static int reattach(struct call *c, struct err *e)
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Attach attach = SANDGATE__ATTACH__INIT;
	attach.exec_id = c->q->exec_id;
	attach.offset = call_output_next(&c->out);
	attach.role = role_of(c);
	open.op_case = SANDGATE__OPEN__OP_ATTACH;
	open.attach = &attach;
	if (c->state == CALL_OPENING)
		c->state = CALL_ATTACHING;
	return dial_open(&c->dial, c->sandbox, &open, DIAL_FOLLOWS, &dial_handlers, e);
}

static void on_end(struct dial *d, const struct dial_end *end)
{
	struct call *c = (struct call *)((char *)d - offsetof(struct call, dial));
	struct err e = end->err;
	bool lost = e.code == ERR_SANDBOX_LOST && end->sent && !c->going;
	/* Another connection has attached as the owner: the result is still due. */
	bool replaced = end->refused && end->opened && e.code == ERR_EXEC_ID_CONFLICT;
	if (replaced)
		c->owner = false;
	if (lost)
		log_info("call", c->r->id, "the link to %s is lost", c->q->exec_id);
	c->suspended = end->suspended;
	bool good = steady_now() - c->attached_at > REATTACH_GOOD_S;
	if ((end->suspended || (end->opened && good)) && !c->going)
		c->attach_tries = 0; /* the guest may be saved time and again */
	if ((replaced || lost) && c->attach_tries++ < REATTACH_TRIES && reattach(c, &e) == 0)
		return;
	/* Whatever else attaching said, the result is lost. */
	if (c->attach_tries > 0 && !c->going && e.code != ERR_SANDBOX_GONE)
		err_set(&e, ERR_SANDBOX_LOST, "the connection to the sandbox was lost");
	call_fail(c, &e,
	          end->refused && c->state == CALL_OPENING ? "no" : started(c, end->sent));
}

static void on_going(struct dial *d, Sandgate__CancelReason reason)
{
	struct call *c = (struct call *)((char *)d - offsetof(struct call, dial));
	c->going = true;
	link_resume(d->link);
	if (c->kind != CALL_START)
		dial_cancel(d, reason, NULL);
}

static const struct dial_handlers dial_handlers = {
    .on_frame = on_frame, .on_end = on_end, .on_going = on_going};

/* ---- start ---- */

void call_start(struct api_request *r, struct sandbox *s, enum call_kind kind,
                struct call_request *q)
{
	struct err e;
	struct call *c = calloc(1, sizeof(*c));
	struct quota_use *use = quota_use(r->api->quota, sandbox_spec(s)->workspace);
	if (c == NULL) {
		call_request_free(q);
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return;
	}
	c->set = r->api->calls;
	LIST_INSERT_HEAD(&c->set->calls, c, entry);
	c->set->count++;
	c->r = r;
	c->loop = r->api->loop;
	c->metrics = r->api->metrics;
	c->sandbox = s;
	c->kind = kind;
	c->owner = kind != CALL_START;
	c->q = q;
	c->feeds = q->stdin_rest_len > 0;
	c->stdin_taken = q->exec.stdin.len;
	exec_claim_take(&c->claim, use != NULL ? &use->execs : NULL);
	/* The last bytes may be lost on their way to a client that then comes for them. */
	if (kind == CALL_STREAM)
		q->exec.keep_output = true;
	call_output_init(&c->out, r, kind, q);
	memcpy(r->exec_id, c->q->exec_id, sizeof(r->exec_id));
	sandbox_exec_follow(s, &c->exec, c->q->exec_id);
	r->owner = c;
	r->on_gone = on_gone;
	r->on_room = on_client_room;
	ev_timer_init(&c->watchdog, on_watchdog, 0., 0.);
	c->watchdog.data = c;

	Sandgate__Open open = SANDGATE__OPEN__INIT;
	open.op_case = SANDGATE__OPEN__OP_EXEC;
	open.exec = &c->q->exec;
	if (dial_open(&c->dial, s, &open, DIAL_FOLLOWS, &dial_handlers, &e) < 0)
		call_fail(c, &e, "no");
}

/* ---- all of them ---- */

struct call_set *call_set_create(void)
{
	return calloc(1, sizeof(struct call_set));
}

size_t call_set_count(const struct call_set *set)
{
	return set->count;
}

void call_set_suspend(struct call_set *set)
{
	struct call *c, *next;
	struct err e;
	err_set(&e, ERR_DRAINING, "this bridge shut down; attach to the exec by its id");
	for (c = LIST_FIRST(&set->calls); c != NULL; c = next) {
		next = LIST_NEXT(c, entry);
		call_fail(c, &e, started(c, true));
	}
}

void call_set_destroy(struct call_set *set)
{
	free(set);
}
