/* The brackets around a snapshot that the owner of an attached VM takes by itself. */
#include "host-bridge/api/bracket_body.h"
#include "host-bridge/api/deferred.h"
#include "host-bridge/api/handlers.h"

static void on_prepared(struct sandbox *s, struct snapshot *n, const struct err *e, void *arg)
{
	(void)n;
	if (e != NULL)
		deferred_fail(arg, e);
	else
		deferred_reply(
		    arg, 200,
		    json_pack("{s:I}", "generation", (json_int_t)sandbox_generation(s)));
}

void api_sandbox_prepare(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	deferred_begin(r, sandbox_prepare, on_prepared);
}

static void on_resumed(struct sandbox *s, struct snapshot *n, const struct err *e, void *arg)
{
	(void)n;
	if (e != NULL)
		deferred_fail(arg, e);
	else
		deferred_reply(arg, 200, sandbox_resumed_json(s));
}

void api_sandbox_resumed(struct api_request *r, char *data, size_t len)
{
	struct err e = {0};
	struct bracket_body body;
	struct sandbox *s = api_sandbox(r);
	if (s == NULL)
		return;
	if (bracket_body_parse(r, data, len, &body, &e) < 0) {
		bracket_body_free(&body);
		api_fail(r, &e, NULL);
		return;
	}
	struct deferred *d = deferred_create(r);
	const struct endpoint *to = body.moves ? &body.endpoint : NULL;
	if (d != NULL &&
	    sandbox_resumed(s, body.generation, to, &body.resume, on_resumed, d, &e) < 0)
		deferred_fail(d, &e);
	bracket_body_free(&body);
}
