#include "host-bridge/api/exec_gate.h"

#include <stddef.h>
#include <stdlib.h>

#include "host-bridge/api/dial.h"
#include "host-bridge/api/quota.h"

/* An exec that waits for its turn to be judged. */
struct exec_gate {
	struct api_request *r;
	struct sandbox *sandbox; /* held */
	enum call_kind kind;
	struct call_request *q;
	struct quota_use *use;
	struct exec_count_waiter waiter;
	struct dial dial; /* asks for the exec that the client names */
};

/* ---- life ---- */

/* Give back what it holds, the call's request included. */
static struct call_request *gate_free(struct exec_gate *g)
{
	struct call_request *q = g->q;
	exec_count_unask(&g->waiter);
	dial_close(&g->dial);
	g->r->on_gone = NULL;
	sandbox_unhold(g->sandbox);
	free(g);
	return q;
}

static void on_gone(struct api_request *r)
{
	call_request_free(gate_free(r->owner));
}

static void let_through(struct exec_gate *g)
{
	struct api_request *r = g->r;
	struct sandbox *s = g->sandbox;
	enum call_kind kind = g->kind;
	sandbox_hold(s); /* until the call has its own hold on it */
	call_start(r, s, kind, gate_free(g));
	sandbox_unhold(s);
}

static void refuse(struct exec_gate *g)
{
	struct err e;
	struct api_request *r = g->r;
	struct quota *quota = r->api->quota;
	const char *workspace = g->use->workspace;
	struct api_details d = {.started = "no"};
	quota_refuse(LIMIT_EXECS, auth_limits(r->api->auth, workspace)->max[LIMIT_EXECS], &e);
	quota_explain(quota, workspace, &e, &d);
	call_request_free(gate_free(g));
	api_fail(r, &e, &d);
}

/* ---- the exec that is there already ---- */

static void on_state(struct dial *d, const Sandgate__GuestFrame *f)
{
	struct exec_gate *g =
	    (struct exec_gate *)((char *)d - offsetof(struct exec_gate, dial));
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE)
		let_through(g);
}

static void on_no_state(struct dial *d, const struct dial_end *end)
{
	(void)end;
	refuse((struct exec_gate *)((char *)d - offsetof(struct exec_gate, dial)));
}

static const struct dial_handlers handlers = {.on_frame = on_state, .on_end = on_no_state};

/* A request that is repeated starts nothing: the limit must not keep a client from the result
 * of its own exec. */
static void refuse_new(struct exec_gate *g)
{
	struct err e;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ExecInfo info = SANDGATE__EXEC_INFO__INIT;
	info.exec_id = g->q->exec_id;
	open.op_case = SANDGATE__OPEN__OP_EXEC_INFO;
	open.exec_info = &info;
	if (!g->q->id_given ||
	    dial_open(&g->dial, g->sandbox, &open, DIAL_ENDS, &handlers, &e) < 0)
		refuse(g);
}

/* ---- the limit ---- */

static bool is_room(const struct api *api, const struct quota_use *u)
{
	return u->execs.running < auth_limits(api->auth, u->workspace)->max[LIMIT_EXECS];
}

static void on_counted(struct exec_count_waiter *w)
{
	struct exec_gate *g =
	    (struct exec_gate *)((char *)w - offsetof(struct exec_gate, waiter));
	if (is_room(g->r->api, g->use))
		let_through(g);
	else
		refuse_new(g);
}

static bool is_limited(const struct api *api, const struct quota_use *u)
{
	return auth_limits(api->auth, u->workspace)->max[LIMIT_EXECS] != LIMIT_NONE;
}

void exec_gate_start(struct api_request *r, struct sandbox *s, enum call_kind kind,
                     struct call_request *q)
{
	struct err e;
	struct quota_use *u = quota_use(r->api->quota, sandbox_spec(s)->workspace);
	if (u != NULL && (!is_limited(r->api, u) || (u->execs.counted && is_room(r->api, u)))) {
		call_start(r, s, kind, q);
		return;
	}
	struct exec_gate *g = u != NULL ? calloc(1, sizeof(*g)) : NULL;
	if (g == NULL) {
		call_request_free(q);
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return;
	}
	*g = (struct exec_gate){.r = r, .sandbox = s, .kind = kind, .q = q, .use = u};
	g->waiter.on_counted = on_counted;
	sandbox_hold(s);
	r->owner = g;
	r->on_gone = on_gone;
	r->on_room = NULL;
	if (exec_count_is_doubtful(&u->execs))
		exec_count_ask(&u->execs, &g->waiter);
	else
		refuse_new(g);
}
