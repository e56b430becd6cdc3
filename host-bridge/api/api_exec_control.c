/* One exec that exists already: look, wait, kill, signal, forget. */
#include "host-bridge/api/ask.h"
#include "host-bridge/api/exec_wait.h"
#include "host-bridge/api/handlers.h"
#include "host-bridge/exec/result_json.h"
#include "host-bridge/http/body.h"

#define KILL_WAIT_DEFAULT_S 10

/* What these requests remember between the agent's answers. */
struct control {
	struct ask ask;
	double wait_seconds;
	bool has_grace;
	uint64_t grace_ms;
	uint32_t signal;
	bool all;
};

/* ---- get ---- */

static void on_state(struct ask *a, const Sandgate__GuestFrame *f)
{
	struct json_out out = {0};
	size_t len;
	if (f->body_case != SANDGATE__GUEST_FRAME__BODY_EXEC_STATE)
		return;
	result_json_exec(&out, f->exec_state);
	char *body = json_out_take(&out, &len);
	api_reply_take(ask_done(a), 200, "application/json", body, len);
}

static void get(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct err e;
	bool set;
	double wait = 0;
	(void)data;
	(void)len;
	if (api_query_number(r, "wait_seconds", WAIT_MAX_S, &set, &wait, &e) < 0) {
		api_fail(r, &e, NULL);
		return;
	}
	if (wait > 0) {
		exec_wait_start(r, s, DIAL_ASKS, wait);
		return;
	}
	struct ask *a = ask_create(r, s, sizeof(*a));
	if (a != NULL)
		ask_exec_info(a, on_state);
}

void api_exec_get(struct api_request *r, char *data, size_t len)
{
	ask_running(r, get, data, len);
}

/* ---- kill ---- */

static void await_end(struct control *c)
{
	struct sandbox *s = c->ask.sandbox;
	double seconds = c->wait_seconds;
	if (seconds <= 0) {
		ask_exec_info(&c->ask, on_state);
		return;
	}
	sandbox_hold(s); /* the question's own hold on it ends */
	exec_wait_start(ask_done(&c->ask), s, DIAL_ENDS, seconds);
	sandbox_unhold(s);
}

static void on_kill(struct ask *a, const Sandgate__GuestFrame *f)
{
	struct control *c = (struct control *)a;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE)
		dial_cancel(&a->dial, SANDGATE__CANCEL_REASON__CANCEL_KILLED,
		            c->has_grace ? &c->grace_ms : NULL);
	else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_DONE)
		await_end(c);
}

static void kill_exec(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct fields {
		struct body_num grace_seconds, wait_seconds;
	} f = {0};
	static const struct body_field table[] = {
	    {.name = "grace_seconds",
	     .type = BODY_NUM,
	     .offset = offsetof(struct fields, grace_seconds),
	     .max = EXEC_GRACE_MAX_S},
	    {.name = "wait_seconds",
	     .type = BODY_NUM,
	     .offset = offsetof(struct fields, wait_seconds),
	     .max = WAIT_MAX_S},
	    {.name = NULL},
	};
	struct err e;
	json_t *doc = body_parse(data, len, table, &f, &e);
	if (doc == NULL) {
		api_fail(r, &e, NULL);
		return;
	}
	json_decref(doc);
	struct control *c = ask_create(r, s, sizeof(*c));
	if (c == NULL)
		return;
	c->ask.kind = DIAL_ENDS;
	c->has_grace = f.grace_seconds.set;
	c->grace_ms = (uint64_t)(f.grace_seconds.v * 1000);
	c->wait_seconds = f.wait_seconds.set ? f.wait_seconds.v : KILL_WAIT_DEFAULT_S;
	ask_attach(&c->ask, SANDGATE__ROLE__ROLE_CONTROL, 0, on_kill);
}

void api_exec_kill(struct api_request *r, char *data, size_t len)
{
	ask_running(r, kill_exec, data, len);
}

/* ---- signal ---- */

static void on_signal(struct ask *a, const Sandgate__GuestFrame *f)
{
	struct control *c = (struct control *)a;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_STATE)
		dial_signal(&a->dial, c->signal, c->all);
	else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_DONE)
		ask_exec_info(a, on_state);
}

static const char *const target_names[] = {"leader", "all", NULL};

static void signal_exec(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct fields {
		struct body_str signal;
		struct body_int target;
	} f = {0};
	static const struct body_field table[] = {
	    {.name = "signal",
	     .type = BODY_STR,
	     .offset = offsetof(struct fields, signal),
	     .required = true},
	    {.name = "target",
	     .type = BODY_ENUM,
	     .offset = offsetof(struct fields, target),
	     .names = target_names},
	    {.name = NULL},
	};
	struct err e;
	json_t *doc = body_parse(data, len, table, &f, &e);
	uint32_t number = doc != NULL ? result_signal_number(f.signal.s) : 0;
	if (doc != NULL && number == 0)
		err_field(&e, ERR_INVALID_FIELD, "signal",
		          "signal must be a name such as SIGTERM");
	json_decref(doc);
	if (number == 0) {
		api_fail(r, &e, NULL);
		return;
	}
	struct control *c = ask_create(r, s, sizeof(*c));
	if (c == NULL)
		return;
	c->ask.kind = DIAL_ENDS;
	c->signal = number;
	c->all = f.target.v == 1;
	ask_attach(&c->ask, SANDGATE__ROLE__ROLE_CONTROL, 0, on_signal);
}

void api_exec_signal(struct api_request *r, char *data, size_t len)
{
	ask_running(r, signal_exec, data, len);
}

/* ---- delete ---- */

static void on_forgotten(struct ask *a, const Sandgate__GuestFrame *f)
{
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_DONE)
		api_reply_empty(ask_done(a), 204);
}

static void delete_exec(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ForgetExec forget = SANDGATE__FORGET_EXEC__INIT;
	struct control *c = ask_create(r, s, sizeof(*c));
	(void)data;
	(void)len;
	if (c == NULL)
		return;
	c->ask.kind = DIAL_ENDS;
	forget.exec_id = r->exec_id;
	open.op_case = SANDGATE__OPEN__OP_FORGET_EXEC;
	open.forget_exec = &forget;
	ask_open(&c->ask, &open, on_forgotten);
}

void api_exec_delete(struct api_request *r, char *data, size_t len)
{
	ask_running(r, delete_exec, data, len);
}
