/* Whether the agent of a sandbox with calls in progress is alive: when none of them has heard
 * from it for a while, it is asked, over a link of the question's own. An agent that does not
 * answer may come back (its VM was stopped, say): the calls end, the sandbox does not. */
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/limits.h"
#include "proto/log.h"

void sandbox_heard(struct sandbox *s)
{
	s->silent = 0;
}

static bool is_silent(const struct sandbox *s, unsigned seconds)
{
	return s->silent * PULSE_S >= seconds;
}

static void tell_mute(struct sandbox *s)
{
	log_warn("sandbox", s->id, "its agent does not answer");
	sandbox_tell_mute(s, false);
}

static void on_opened(struct link *l, const Sandgate__Opened *o, void *owner)
{
	(void)o;
	(void)owner;
	link_expect(l, PING_DEADLINE_S * 1000);
}

static void on_answer(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox *s = owner;
	(void)f;
	s->ping = NULL;
	sandbox_heard(s);
	link_destroy(l, false);
}

/* Who hangs up is asked again, for as long as one who says nothing is waited for; and who could
 * not be asked, for want of descriptors. */
static void on_no_answer(struct link *l, const struct err *why, bool sent,
                         const Sandgate__Refused *refused, void *owner)
{
	struct sandbox *s = owner;
	(void)l;
	(void)sent;
	s->ping = NULL;
	unsigned patience = SILENCE_DEADLINE_S;
	if (why->code == ERR_SANDBOX_LOST)
		patience += PING_DEADLINE_S;
	if (refused == NULL && why->code != ERR_CAPACITY && is_silent(s, patience))
		tell_mute(s);
}

static void ping(struct sandbox *s)
{
	static const struct link_handlers handlers = {
	    .on_opened = on_opened, .on_frame = on_answer, .on_closed = on_no_answer};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Ping what = SANDGATE__PING__INIT;
	struct err e;
	open.op_case = SANDGATE__OPEN__OP_PING;
	open.ping = &what;
	s->ping = sandbox_link(s, true, &e);
	if (s->ping == NULL ||
	    link_open(s->ping, &open, PING_DEADLINE_S * 1000, &handlers, s, &e) == 0)
		return;
	link_destroy(s->ping, false);
	s->ping = NULL;
}

/* Runs on for one turn after the last call, so that many short calls do not each move it. */
static void on_pulse(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct sandbox *s = w->data;
	(void)revents;
	s->silent++;
	if (LIST_EMPTY(&s->listeners))
		ev_timer_stop(loop, w);
	else if (is_silent(s, SILENCE_DEADLINE_S) && s->ping == NULL)
		ping(s);
}

void sandbox_init_pulse(struct sandbox *s)
{
	ev_timer_init(&s->pulse, on_pulse, PULSE_S, PULSE_S);
	s->pulse.data = s;
}

void sandbox_start_pulse(struct sandbox *s)
{
	if (ev_is_active(&s->pulse))
		return;
	s->silent = 0;
	ev_timer_again(s->set->loop, &s->pulse);
}

void sandbox_stop_pulse(struct sandbox *s)
{
	ev_timer_stop(s->set->loop, &s->pulse);
	link_destroy(s->ping, false);
	s->ping = NULL;
}
