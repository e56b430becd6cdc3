/* Around a snapshot that the owner of an attached VM takes. The agent is prepared and nobody
 * gets a link, until the owner says how the guest goes on: as the same one or as a clone, where
 * it was or at another endpoint. Where the owner says nothing, the agent goes on by itself
 * after SELF_RESUME_S. That is the guest's time, which stands still while the VM is paused: so
 * from then on the agent is asked whether it did. */
#include <stddef.h>
#include <stdlib.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/steady.h"
#include "proto/limits.h"
#include "proto/log.h"

struct bracket {
	double since;             /* monotonic */
	ev_timer look;            /* asks the agent whether it goes on */
	struct endpoint endpoint; /* while a Resume is being asked: where */
	bool leaving, mute;       /* to be deleted: its agent is told to go on; it did not */
};

static void on_look(struct ev_loop *loop, ev_timer *w, int revents);

static void look_in(struct sandbox *s, double seconds)
{
	struct bracket *b = s->bracket;
	ev_timer_stop(s->set->loop, &b->look);
	ev_timer_set(&b->look, seconds, 0.);
	ev_timer_start(s->set->loop, &b->look);
}

static int open_bracket(struct sandbox *s, struct err *e)
{
	struct bracket *b = calloc(1, sizeof(*b));
	if (b == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	b->since = steady_now();
	ev_timer_init(&b->look, on_look, 0., 0.);
	b->look.data = s;
	s->bracket = b;
	s->frozen = true;
	return 0;
}

int sandbox_enter_bracket(struct sandbox *s, struct err *e)
{
	if (open_bracket(s, e) < 0)
		return -1;
	link_gate_close(&s->gate, NULL);
	look_in(s, BRACKET_LOOK_S);
	return 0;
}

void sandbox_drop_bracket(struct sandbox *s)
{
	if (s->bracket == NULL)
		return;
	ev_timer_stop(s->set->loop, &s->bracket->look);
	free(s->bracket);
	s->bracket = NULL;
	s->frozen = s->operation != NULL;
}

/* ---- the agent may have gone on by itself ---- */

static void went_on(struct sandbox *s, const char *how)
{
	struct err ignored = {0}; /* the next bridge asks the agent again */
	sandbox_drop_bracket(s);
	sandbox_save(s, &ignored);
	sandbox_event(s, "resumed", NULL, how);
	sandbox_reopen(s);
}

static void look_again(struct sandbox *s)
{
	if (steady_now() - s->bracket->since < BRACKET_MAX_S) {
		look_in(s, BRACKET_LOOK_S);
		return;
	}
	log_warn("sandbox", s->id, "it was prepared, and does not answer any more");
	went_on(s, "self");
}

static void on_info(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct sandbox *s = owner;
	s->asked = NULL;
	link_destroy(l, false);
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_INFO && !f->info->prepared)
		went_on(s, "self");
	else
		look_again(s);
}

static void on_info_closed(struct link *l, const struct err *why, bool sent,
                           const Sandgate__Refused *refused, void *owner)
{
	struct sandbox *s = owner;
	(void)l;
	(void)why;
	(void)sent;
	(void)refused;
	s->asked = NULL;
	look_again(s);
}

static void on_look(struct ev_loop *loop, ev_timer *w, int revents)
{
	static const struct link_handlers handlers = {.on_frame = on_info,
	                                              .on_closed = on_info_closed};
	struct sandbox *s = w->data;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Info info = SANDGATE__INFO__INIT;
	struct err e = {0};
	(void)revents;
	open.op_case = SANDGATE__OPEN__OP_INFO;
	open.info = &info;
	s->asked = link_create(loop, &s->endpoint, BRACKET_ANSWER_S * 1000, &e);
	if (s->asked != NULL &&
	    link_open(s->asked, &open, BRACKET_ANSWER_S * 1000, &handlers, s, &e) == 0)
		return;
	link_destroy(s->asked, false);
	s->asked = NULL;
	look_again(s);
}

static void stop_looking(struct sandbox *s)
{
	ev_timer_stop(s->set->loop, &s->bracket->look);
	link_destroy(s->asked, false);
	s->asked = NULL;
}

/* ---- prepare ---- */

static void on_prepared(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	struct err e = r->not_saved;
	s->freeze = NULL;
	s->generation = r->generation;
	if (e.code == ERR_NONE)
		open_bracket(s, &e);
	if (e.code != ERR_NONE) {
		sandbox_reopen(s);
		sandbox_operation_end(s, NULL, &e);
		return;
	}
	look_in(s, SELF_RESUME_S);
	sandbox_event(s, "prepared", NULL, NULL);
	sandbox_operation_end(s, NULL, NULL);
}

static void on_quiet(struct link_gate *g)
{
	struct sandbox *s = (struct sandbox *)((char *)g - offsetof(struct sandbox, gate));
	struct freeze_target t = sandbox_freeze_target(s);
	struct freeze_result r = {.generation = s->generation};
	s->freeze = freeze_prepare(&t, on_prepared, s, &r.not_saved);
	if (s->freeze == NULL)
		on_prepared(&r, s);
}

static int check_external(const struct sandbox *s, struct err *e)
{
	if (s->launcher->external)
		return 0;
	return err_set(e, ERR_LIMIT_UNSUPPORTED,
	               "only an attached sandbox is saved by somebody else");
}

int sandbox_prepare(struct sandbox *s, sandbox_done *on_done, void *arg, struct err *e)
{
	if (check_external(s, e) < 0)
		return -1;
	if (s->bracket != NULL)
		return err_limit(e, ERR_INVALID_STATE, "generation", s->generation,
		                 "the sandbox is prepared already");
	if (sandbox_operation_begin(s, SANDBOX_RUNNING, on_done, arg, e) < 0)
		return -1;
	sandbox_quiesce(s);
	link_gate_close(&s->gate, on_quiet);
	return 0;
}

uint64_t sandbox_generation(const struct sandbox *s)
{
	return s->generation;
}

/* ---- resumed ---- */

static void move(struct sandbox *s, const struct endpoint *to)
{
	s->endpoint = s->spec.endpoint = *to;
	vm_move(s->vm, to);
}

static void on_resumed(const struct freeze_result *r, void *arg, const char *role)
{
	struct sandbox *s = arg;
	s->freeze = NULL;
	if (r->lost.code != ERR_NONE) {
		look_in(s, BRACKET_LOOK_S);
		sandbox_operation_end(s, NULL, &r->lost);
		return;
	}
	s->generation = r->generation;
	s->not_renewed = r->failed;
	move(s, &s->bracket->endpoint);
	went_on(s, role);
	sandbox_operation_end(s, NULL, NULL);
}

static void on_same(const struct freeze_result *r, void *arg)
{
	on_resumed(r, arg, "same");
}

static void on_clone(const struct freeze_result *r, void *arg)
{
	on_resumed(r, arg, "clone");
}

static int check_bracket(const struct sandbox *s, uint64_t generation, struct err *e)
{
	if (check_external(s, e) < 0)
		return -1;
	if (s->bracket == NULL)
		return err_set(e, ERR_INVALID_STATE,
		               "the sandbox is not prepared, or went on by itself");
	if (generation != s->generation)
		return err_limit(e, ERR_INVALID_STATE, "generation", s->generation,
		                 "the sandbox was prepared as generation %ju",
		                 (uintmax_t)s->generation);
	return 0;
}

int sandbox_resumed(struct sandbox *s, uint64_t generation, const struct endpoint *endpoint,
                    const Sandgate__Resume *how, sandbox_done *on_done, void *arg,
                    struct err *e)
{
	bool same = how->role == SANDGATE__RESUME_ROLE__RESUME_SAME;
	if (check_bracket(s, generation, e) < 0 ||
	    sandbox_operation_begin(s, SANDBOX_RUNNING, on_done, arg, e) < 0)
		return -1;
	struct freeze_target t = sandbox_freeze_target(s);
	if (endpoint != NULL)
		t.endpoint = *endpoint;
	s->bracket->endpoint = t.endpoint;
	stop_looking(s);
	s->freeze = freeze_renew(&t, how, same ? on_same : on_clone, s, e);
	if (s->freeze != NULL)
		return 0;
	look_in(s, BRACKET_LOOK_S);
	sandbox_operation_forget(s);
	return -1;
}

json_t *sandbox_resumed_json(const struct sandbox *s)
{
	json_t *failed = json_array();
	for (unsigned n = 0; freeze_step(n) != NULL; n++)
		if (s->not_renewed & 1u << n)
			doc_append(&failed, json_string(freeze_step(n)));
	return json_pack("{s:I, s:o}", "generation", (json_int_t)s->generation, "failed",
	                 failed);
}

/* ---- it is deleted meanwhile ---- */

static void on_left(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	s->freeze = NULL;
	s->bracket->leaving = false;
	s->bracket->mute = r->lost.code != ERR_NONE;
	if (!s->bracket->mute) {
		sandbox_drop_bracket(s);
		link_gate_open(&s->gate);
	}
	sandbox_timer_in(s, 0.);
}

bool sandbox_leave_bracket(struct sandbox *s)
{
	const Sandgate__Resume same = SANDGATE__RESUME__INIT;
	struct err ignored = {0};
	if (s->bracket == NULL || s->bracket->mute)
		return false;
	if (s->bracket->leaving)
		return true;
	struct freeze_target t = sandbox_freeze_target(s);
	sandbox_operation_cancel(s);
	stop_looking(s);
	s->freeze = freeze_renew(&t, &same, on_left, s, &ignored);
	s->bracket->leaving = s->freeze != NULL;
	s->bracket->mute = s->freeze == NULL;
	return s->bracket->leaving;
}
