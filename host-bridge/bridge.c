#include "host-bridge/bridge.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "host-bridge/api/adopt.h"
#include "host-bridge/api/api.h"
#include "host-bridge/api/audit.h"
#include "host-bridge/api/call.h"
#include "host-bridge/api/exec_wait.h"
#include "host-bridge/api/hub.h"
#include "host-bridge/api/metrics.h"
#include "host-bridge/api/quota.h"
#include "host-bridge/sandbox/event_log.h"
#include "host-bridge/sockets.h"
#include "host-bridge/steady.h"

#define DRAIN_POLL_S 0.05 /* how often draining looks whether it is over */
#define FLUSH_S 2         /* what the last replies may take to leave */

struct bridge {
	struct api api;
	struct adopt *adopt;
	ev_signal term, interrupt;
	ev_timer drain;
	struct steady steady;
	ev_tstamp deadline; /* of the current stage of draining */
	bool inherited, ending, suspended;
};

/* ---- the end ---- */

/* Calls first: their execs are left for the successor, their clients are told. */
static void suspend(struct bridge *b)
{
	log_info("bridge", NULL, "%zu calls and %zu watchers are suspended",
	         call_set_count(b->api.calls), hub_set_watchers(b->api.hubs));
	call_set_suspend(b->api.calls);
	hub_set_suspend(b->api.hubs);
	event_log_end(sandbox_set_events(b->api.sandboxes));
	http_server_drain(b->api.http);
	b->suspended = true;
	b->deadline = steady_now() + FLUSH_S;
}

static void on_drain(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct bridge *b = w->data;
	bool idle = b->suspended ? http_server_connections(b->api.http) == 0
	                         : http_server_exchanges(b->api.http) == 0;
	(void)revents;
	if (b->suspended && (idle || steady_now() >= b->deadline))
		ev_break(loop, EVBREAK_ALL);
	else if (!b->suspended && (idle || steady_now() >= b->deadline))
		suspend(b);
}

/* A socket of our own goes on being served, so that clients hear of the draining; one that
 * was inherited is left to the successor at once. */
static void on_signal(struct ev_loop *loop, ev_signal *w, int revents)
{
	struct bridge *b = w->data;
	(void)revents;
	if (b->ending) {
		suspend(b);
		return;
	}
	log_info("bridge", NULL, "draining for up to %g s", b->api.settings->drain_seconds);
	b->ending = true;
	b->api.draining = true;
	sandbox_set_drain(b->api.sandboxes);
	b->deadline = steady_now() + b->api.settings->drain_seconds;
	if (b->inherited)
		http_server_drain(b->api.http);
	ev_timer_start(loop, &b->drain);
}

/* ---- the beginning ---- */

/* A watcher costs a descriptor, an exec another. */
static void raise_descriptors(void)
{
	struct rlimit l;
	if (getrlimit(RLIMIT_NOFILE, &l) < 0)
		return;
	l.rlim_cur = l.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &l) < 0)
		log_warn("bridge", NULL, "RLIMIT_NOFILE: %s", strerror(errno));
}

static void watch_signals(struct bridge *b)
{
	signal(SIGPIPE, SIG_IGN);
	ev_signal_init(&b->term, on_signal, SIGTERM);
	ev_signal_init(&b->interrupt, on_signal, SIGINT);
	b->term.data = b->interrupt.data = b;
	ev_signal_start(b->api.loop, &b->term);
	ev_signal_start(b->api.loop, &b->interrupt);
	ev_timer_init(&b->drain, on_drain, 0., DRAIN_POLL_S);
	b->drain.data = b;
}

static int serve_sockets(struct bridge *b, struct err *e)
{
	int fds[SOCKETS_MAX], inherited;
	struct http_handlers handlers = api_handlers;
	handlers.arg = &b->api;
	b->api.http = http_server_create(b->api.loop, &handlers, e);
	if (b->api.http == NULL)
		return -1;
	int n = sockets_open(b->api.settings, fds, &inherited, e);
	for (int i = 0; i < n; i++) {
		char name[128];
		if (http_server_listen(b->api.http, fds[i], e) < 0)
			return -1;
		sockets_name(fds[i], name, sizeof(name));
		log_info("bridge", NULL, "listening on %s", name);
	}
	b->inherited = inherited != 0;
	return n < 0 ? -1 : 0;
}

static int open_parts(struct bridge *b, struct err *e)
{
	struct api *api = &b->api;
	const struct settings *c = api->settings;
	const struct sandbox_set_config set = {.state_dir = c->state_dir,
	                                       .rootfs_dir = c->rootfs_dir,
	                                       .node = c->node,
	                                       .launcher = c->launcher,
	                                       .agent_path = c->agent_path,
	                                       .vm_uids = c->vm_uids,
	                                       .warm_pool = c->warm_pool};
	api->loop = ev_loop_new(EVFLAG_AUTO);
	api->metrics = metrics_create();
	api->calls = call_set_create();
	api->hubs = hub_set_create();
	api->exec_waits = exec_wait_set_create();
	if (api->loop == NULL || api->metrics == NULL || api->calls == NULL ||
	    api->hubs == NULL || api->exec_waits == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	api->auth = auth_create(api->loop, c->token_file, c->token, e);
	api->audit = api->auth != NULL ? audit_open(c->audit_log, e) : NULL;
	api->sandboxes = api->audit != NULL ? sandbox_set_create(api->loop, &set, e) : NULL;
	api->quota = api->sandboxes != NULL ? quota_create(api, e) : NULL;
	if (api->quota == NULL || sandbox_set_adopt(api->sandboxes, e) < 0)
		return -1;
	b->adopt = adopt_start(api, e);
	return b->adopt != NULL ? serve_sockets(b, e) : -1;
}

static void on_patience_over(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)w;
	(void)revents;
	ev_break(loop, EVBREAK_ALL);
}

/* Last words to agents may still be on their way: turn the loop until nothing is left. */
static void flush_links(struct bridge *b)
{
	ev_timer_init(&b->drain, on_patience_over, FLUSH_S, 0.);
	ev_timer_start(b->api.loop, &b->drain);
	ev_unref(b->api.loop);
	ev_run(b->api.loop, 0);
	ev_ref(b->api.loop);
	ev_timer_stop(b->api.loop, &b->drain);
}

static void tell_what_stays(const struct api *api)
{
	size_t n = sandbox_count(api->sandboxes, NULL);
	if (n > 0)
		log_info("bridge", NULL,
		         "sandboxes that go on: %zu; the next bridge on %s takes them over", n,
		         api->settings->state_dir);
}

static void close_parts(struct bridge *b)
{
	struct api *api = &b->api;
	http_server_destroy(api->http);
	adopt_stop(b->adopt);
	call_set_destroy(api->calls);
	hub_set_destroy(api->hubs);
	exec_wait_set_destroy(api->exec_waits);
	quota_destroy(api->quota);
	sandbox_set_destroy(api->sandboxes);
	audit_close(api->audit);
	auth_destroy(api->auth);
	metrics_destroy(api->metrics);
	ev_signal_stop(api->loop, &b->term);
	ev_signal_stop(api->loop, &b->interrupt);
	ev_timer_stop(api->loop, &b->drain);
	flush_links(b);
	ev_loop_destroy(api->loop);
}

int bridge_serve(const struct settings *c)
{
	struct bridge b = {.api.settings = c};
	struct err e;
	log_setup(c->log_level, c->log_json);
	raise_descriptors();
	if (open_parts(&b, &e) < 0)
		fatal("bridge", "%s", e.msg);
	watch_signals(&b);
	steady_watch(&b.steady, b.api.loop);
	ev_run(b.api.loop, 0);
	tell_what_stays(&b.api);
	close_parts(&b);
	log_info("bridge", NULL, "ended");
	return 0;
}
