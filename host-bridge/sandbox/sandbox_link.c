/* A sandbox's links of its own: the first question to its agent, and the spare link that an
 * exec takes so as not to wait for a handshake. */
#include <stdio.h>
#include <string.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/limits.h"
#include "proto/log.h"

/* ---- who are you? ---- */

/* The guest's text as a JSON string: printable ASCII, at most 64 bytes. */
static json_t *guest_text(const char *in)
{
	char out[65];
	size_t n = 0;
	for (; in[n] != '\0' && n + 1 < sizeof(out); n++)
		out[n] = in[n] >= 0x20 && in[n] < 0x7f ? in[n] : '?';
	out[n] = '\0';
	return json_string(out);
}

static json_t *agent_json(const Sandgate__InfoReply *info)
{
	json_t *features = json_array();
	for (size_t i = 0; i < info->n_features && i < 64; i++)
		doc_append(&features, guest_text(info->features[i]));
	return json_pack("{s:o, s:I, s:o}", "version", guest_text(info->agent_version),
	                 "protocol", (json_int_t)info->protocol_version, "features", features);
}

static void on_info(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox *s = owner;
	struct err e = {0};
	s->asked = NULL;
	link_destroy(l, false);
	if (f->body_case != SANDGATE__GUEST_FRAME__BODY_INFO) {
		err_set(&e, ERR_PROTOCOL, "the agent answered another question");
		sandbox_failed(s, &e);
		return;
	}
	json_t *agent = agent_json(f->info);
	if (agent == NULL && s->agent == NULL) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		sandbox_failed(s, &e);
		return;
	}
	if (agent != NULL) { /* else it is the one that is known: the guest is */
		json_decref(s->agent);
		s->agent = agent;
	}
	s->generation = f->info->generation;
	if (s->launcher->external && f->info->prepared && sandbox_enter_bracket(s, &e) < 0)
		sandbox_failed(s, &e);
	else
		sandbox_answered(s);
}

static void on_info_closed(struct link *l, const struct err *why, bool sent,
                           const Sandgate__Refused *refused, void *owner)
{
	struct sandbox *s = owner;
	(void)l;
	(void)sent;
	(void)refused;
	s->asked = NULL;
	if (!sandbox_ask_agent_later(s, why))
		sandbox_failed(s, why);
}

void sandbox_ask_agent(struct sandbox *s)
{
	static const struct link_handlers handlers = {.on_frame = on_info,
	                                              .on_closed = on_info_closed};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Info info = SANDGATE__INFO__INIT;
	struct err e = {0};
	unsigned ms = (s->launcher->external ? ATTACH_DEADLINE_S : BOOT_DEADLINE_S) * 1000;
	open.op_case = SANDGATE__OPEN__OP_INFO;
	open.info = &info;
	s->asked = link_create(s->set->loop, &s->endpoint, ms, &e);
	if (s->asked != NULL)
		link_insist(s->asked);
	if (s->asked != NULL && link_open(s->asked, &open, ms, &handlers, s, &e) == 0)
		return;
	link_destroy(s->asked, false);
	s->asked = NULL;
	if (!sandbox_ask_agent_later(s, &e))
		sandbox_failed(s, &e);
}

bool sandbox_ask_agent_later(struct sandbox *s, const struct err *why)
{
	if (!s->recovers || why->code != ERR_CAPACITY)
		return false;
	ev_timer_set(&s->ask_timer, SHORTAGE_RETRY_S, 0.);
	ev_timer_start(s->set->loop, &s->ask_timer);
	return true;
}

static void on_ask_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	sandbox_ask_agent(w->data);
}

/* ---- the spare ---- */

static void on_spare_end(struct link *l, void *arg)
{
	struct sandbox *s = arg;
	s->spare = NULL;
	link_destroy(l, false);
	sandbox_want_spare(s, SPARE_RETRY_MS);
}

static void on_spare_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct sandbox *s = w->data;
	struct err e = {0};
	(void)revents;
	if (s->status != SANDBOX_RUNNING || s->spare != NULL || s->gate.closed)
		return;
	s->spare = link_create(loop, &s->endpoint, CONNECT_DEADLINE_MS, &e);
	if (s->spare != NULL)
		link_watch(s->spare, on_spare_end, s);
	else
		log_warn("sandbox", s->id, "no spare link: %s", e.msg);
}

void sandbox_init_links(struct sandbox *s)
{
	link_gate_init(&s->gate);
	ev_timer_init(&s->spare_timer, on_spare_timer, 0., 0.);
	ev_timer_init(&s->ask_timer, on_ask_timer, 0., 0.);
	s->spare_timer.data = s->ask_timer.data = s;
}

void sandbox_want_spare(struct sandbox *s, unsigned delay_ms)
{
	if (ev_is_active(&s->spare_timer))
		return;
	ev_timer_set(&s->spare_timer, delay_ms / 1e3, 0.);
	ev_timer_start(s->set->loop, &s->spare_timer);
}

struct link *sandbox_link(struct sandbox *s, bool urgent, struct err *e)
{
	switch (s->status) {
	case SANDBOX_RUNNING:
		break;
	case SANDBOX_DELETED:
		err_set(e, ERR_SANDBOX_GONE, "the sandbox was deleted");
		return NULL;
	case SANDBOX_FAILED:
		err_set(e, ERR_SANDBOX_LOST, "the sandbox is lost: %s", s->failure.msg);
		return NULL;
	default:
		err_set(e, ERR_INVALID_STATE, "the sandbox is not running");
		return NULL;
	}
	struct link *l = s->spare;
	if (l == NULL || !link_enter(l, &s->gate, urgent)) {
		sandbox_want_spare(s, SPARE_DELAY_MS);
		return link_create_behind(&s->gate, urgent, s->set->loop, &s->endpoint,
		                          CONNECT_DEADLINE_MS, e);
	}
	s->spare = NULL;
	sandbox_want_spare(s, SPARE_DELAY_MS);
	link_watch(l, NULL, NULL);
	return l;
}

void sandbox_drop_links(struct sandbox *s)
{
	ev_timer_stop(s->set->loop, &s->spare_timer);
	ev_timer_stop(s->set->loop, &s->ask_timer);
	link_destroy(s->asked, false);
	link_destroy(s->spare, false);
	s->asked = s->spare = NULL;
}
