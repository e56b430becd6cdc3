/* Wait until a sandbox has a status: it is looked at whenever something happens on the node. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/api.h"
#include "host-bridge/api/handlers.h"
#include "host-bridge/sandbox/event_log.h"

struct wait {
	struct event_listener listener;
	struct api_request *r;
	ev_timer due, look; /* the end; soon after an event, not inside it */
	int status;         /* enum sandbox_status */
};

static struct api_request *wait_done(struct wait *w)
{
	struct api_request *r = w->r;
	r->on_gone = NULL;
	event_log_unlisten(&w->listener);
	ev_timer_stop(r->api->loop, &w->due);
	ev_timer_stop(r->api->loop, &w->look);
	free(w);
	return r;
}

static void on_gone(struct api_request *r)
{
	wait_done(r->owner);
}

/* Its end is an answer, too: what was waited for will not come. */
static void look(struct wait *w, bool late)
{
	struct err e = {0};
	struct api_request *r = w->r;
	struct sandbox *s =
	    sandbox_find(r->api->sandboxes, r->sandbox_id, api_workspace(r), &e);
	if (s == NULL) {
		api_fail(wait_done(w), &e, NULL);
		return;
	}
	bool ended = sandbox_status(s) == SANDBOX_FAILED;
	if (late || ended || (int)sandbox_status(s) == w->status)
		api_reply_json(wait_done(w), 200, sandbox_json(s));
}

static void on_due(struct ev_loop *loop, ev_timer *t, int revents)
{
	(void)loop;
	(void)revents;
	look(t->data, true);
}

static void on_look(struct ev_loop *loop, ev_timer *t, int revents)
{
	(void)loop;
	(void)revents;
	look(t->data, false);
}

static void on_event(struct event_listener *l)
{
	struct wait *w = (struct wait *)((char *)l - offsetof(struct wait, listener));
	if (!ev_is_active(&w->look)) {
		ev_timer_set(&w->look, 0., 0.);
		ev_timer_start(w->r->api->loop, &w->look);
	}
}

static void on_end(struct event_listener *l)
{
	look((struct wait *)((char *)l - offsetof(struct wait, listener)), true);
}

void api_sandbox_wait(struct api_request *r, char *data, size_t len)
{
	struct err e = {0};
	const char *status = http_query(r->x, "status");
	double seconds = WAIT_DEFAULT_S;
	bool set;
	(void)data;
	(void)len;
	if (api_sandbox(r) == NULL)
		return;
	int wanted = sandbox_status_named(status != NULL ? status : "running", &e);
	if (wanted < 0 ||
	    api_query_number(r, "timeout_seconds", WAIT_MAX_S, &set, &seconds, &e) < 0) {
		api_fail(r, &e, NULL);
		return;
	}
	struct wait *w = calloc(1, sizeof(*w));
	if (w == NULL) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return;
	}
	w->r = r;
	w->status = wanted;
	w->listener.on_event = on_event;
	w->listener.on_end = on_end;
	ev_timer_init(&w->due, on_due, seconds, 0.);
	ev_timer_init(&w->look, on_look, 0., 0.);
	w->due.data = w->look.data = w;
	r->owner = w;
	r->on_gone = on_gone;
	event_log_listen(sandbox_set_events(r->api->sandboxes), &w->listener);
	ev_timer_start(r->api->loop, &w->due);
	look(w, false);
}
