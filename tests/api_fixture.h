/*
 * For check_hub.c, check_exec_wait.c, check_call.c, check_idle.c, check_quota.c and
 * check_exec_calls.c: the API over its real HTTP server, links and sandboxes, with an agent and
 * clients in the same thread. A client lives as long as the test, or until it is closed.
 */
#ifndef SANDGATE_API_FIXTURE_H
#define SANDGATE_API_FIXTURE_H

#include <sodium.h>
#include <stdio.h>
#include <sys/un.h>

#include "host-bridge/api/api.h"
#include "host-bridge/api/audit.h"
#include "host-bridge/api/call.h"
#include "host-bridge/api/exec_wait.h"
#include "host-bridge/api/hub.h"
#include "host-bridge/api/metrics.h"
#include "host-bridge/api/quota.h"
#include "proto/log.h"
#include "tests/api_agent_fixture.h"
#include "tests/suite_fixture.h"

#define CLIENTS_MAX 128
#define PATIENCE_S 20.0

static struct {
	struct ev_loop *loop;
	struct api api;
	struct settings settings;
	char dir[64], id[128];
	struct peer clients[CLIENTS_MAX];
	size_t client_count;
} fx;

/* ---- the whole ---- */

static inline int listen_at(const char *name)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s/%s", fx.dir, name);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(fd, 512), 0);
	return fd;
}

/* Turn the loop and the clients once. */
static inline void turn(void)
{
	ev_run(fx.loop, EVRUN_ONCE);
	for (size_t i = 0; i < fx.client_count; i++)
		peer_pump(&fx.clients[i]);
}

#define UNTIL(condition)                                                               \
	do {                                                                           \
		ev_tstamp deadline_ = ev_time() + PATIENCE_S;                          \
		while (!(condition)) {                                                 \
			ck_assert_msg(ev_time() < deadline_, "never: %s", #condition); \
			turn();                                                        \
		}                                                                      \
	} while (0)

static inline void on_created(struct sandbox *s, const struct err *e, void *arg)
{
	(void)s;
	(void)arg;
	ck_assert_msg(e == NULL, "%s", e != NULL ? e->msg : "");
}

static inline void fixture_setup(void)
{
	struct err e;
	memset(&fx, 0, sizeof(fx));
	log_setup(LOG_ERROR, false);
	strcpy(fx.dir, "/tmp/check_api.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(fx.dir));
	ck_assert_int_ge(sodium_init(), 0);
	fx.loop = ev_loop_new(EVFLAG_AUTO);
	agent_start(fx.loop, listen_at("agent"));

	struct sandbox_set_config set = {.state_dir = fx.dir,
	                                 .rootfs_dir = fx.dir,
	                                 .node = "test",
	                                 .launcher = "local",
	                                 .agent_path = "/bin/true"};
	struct http_handlers handlers = api_handlers;
	fx.api = (struct api){.loop = fx.loop, .settings = &fx.settings};
	fx.api.metrics = metrics_create();
	fx.api.calls = call_set_create();
	fx.api.hubs = hub_set_create();
	fx.api.exec_waits = exec_wait_set_create();
	fx.api.auth = auth_create(fx.loop, "", "t", &e);
	fx.api.audit = audit_open("", &e);
	fx.api.sandboxes = sandbox_set_create(fx.loop, &set, &e);
	ck_assert_msg(fx.api.sandboxes != NULL, "%s", e.msg);
	fx.api.quota = quota_create(&fx.api, &e);
	handlers.arg = &fx.api;
	fx.api.http = http_server_create(fx.loop, &handlers, &e);
	ck_assert_int_eq(http_server_listen(fx.api.http, listen_at("http"), &e), 0);

	struct sandbox_spec spec = {.workspace = "default", .attach = true};
	spec.metadata = json_object();
	spec.endpoint.kind = TRANSPORT_UNIX;
	snprintf(spec.endpoint.path, sizeof(spec.endpoint.path), "%s/agent", fx.dir);
	struct sandbox *s = sandbox_create(fx.api.sandboxes, &spec, on_created, NULL, &e);
	json_decref(spec.metadata);
	ck_assert_msg(s != NULL, "%s", e.msg);
	strcpy(fx.id, sandbox_id(s));
	UNTIL(sandbox_status(s) == SANDBOX_RUNNING);
}

static inline void fixture_teardown(void)
{
	for (size_t i = 0; i < fx.client_count; i++)
		peer_close(&fx.clients[i]);
	http_server_destroy(fx.api.http);
	call_set_destroy(fx.api.calls);
	hub_set_destroy(fx.api.hubs);
	exec_wait_set_destroy(fx.api.exec_waits);
	quota_destroy(fx.api.quota);
	sandbox_set_destroy(fx.api.sandboxes);
	audit_close(fx.api.audit);
	auth_destroy(fx.api.auth);
	metrics_destroy(fx.api.metrics);
	agent_stop(fx.loop);
	ev_run(fx.loop, 0); /* links that linger for their last word */
	ev_loop_destroy(fx.loop);
	remove_tree(fx.dir);
}

/* ---- clients ---- */

/* Send a request as a client of its own; `path` is what follows the sandbox's own. */
static inline struct peer *request(const char *method, const char *path, const char *headers,
                                   const char *body)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char head[1024];
	ck_assert_uint_lt(fx.client_count, CLIENTS_MAX);
	struct peer *c = &fx.clients[fx.client_count++];
	snprintf(a.sun_path, sizeof(a.sun_path), "%s/http", fx.dir);
	*c = (struct peer){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	ck_assert_int_eq(connect(c->fd, (struct sockaddr *)&a, sizeof(a)), 0);
	int n = snprintf(head, sizeof(head),
	                 "%s /v1/sandboxes/%s%s HTTP/1.1\r\nHost: x\r\n"
	                 "Authorization: Bearer t\r\nContent-Length: %zu\r\n%s\r\n",
	                 method, fx.id, path, strlen(body), headers);
	bytes_add(&c->out, head, (size_t)n);
	bytes_add(&c->out, body, strlen(body));
	peer_pump(c);
	return c;
}

static inline bool has(const struct peer *c, const char *text)
{
	return c->in.len > 0 && memmem(c->in.data, c->in.len, text, strlen(text)) != NULL;
}

/* Every client that is there and reads has got it. */
static inline bool all_have(const char *text)
{
	for (size_t i = 0; i < fx.client_count; i++)
		if (fx.clients[i].fd >= 0 && !fx.clients[i].deaf && !has(&fx.clients[i], text))
			return false;
	return true;
}

#endif
