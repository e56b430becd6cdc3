/* The node: health, versions, the document, metrics, capacity, draining. */
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/api.h"
#include "host-bridge/api/call.h"
#include "host-bridge/api/handlers.h"
#include "host-bridge/api/hub.h"
#include "host-bridge/api/metrics.h"
#include "host-bridge/api/openapi.h"
#include "host-bridge/api/quota.h"
#include "host-bridge/bridge.h"

void api_healthz(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	api_reply_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

void api_readyz(struct api_request *r, char *data, size_t len)
{
	struct err e;
	(void)data;
	(void)len;
	if (!r->api->draining) {
		api_reply_json(r, 200, json_pack("{s:s}", "status", "ready"));
		return;
	}
	err_set(&e, ERR_DRAINING, "this bridge drains: it takes no new work");
	api_fail(r, &e, NULL);
}

static json_t *versions(void)
{
	return json_pack("{s:s,s:i,s:i}", "version", BRIDGE_VERSION, "protocol_version",
	                 PROTOCOL_VERSION, "protocol_version_min", PROTOCOL_VERSION_MIN);
}

void api_version(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	api_reply_json(r, 200, versions());
}

void api_openapi(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	char *copy = malloc(openapi_json_len);
	if (copy != NULL)
		memcpy(copy, openapi_json, openapi_json_len);
	api_reply_take(r, 200, "application/json", copy, openapi_json_len);
}

void api_metrics(struct api_request *r, char *data, size_t len)
{
	struct api *api = r->api;
	const struct metrics_gauges g = {
	    .connections = http_server_connections(api->http),
	    .requests = http_server_exchanges(api->http),
	    .sandboxes = sandbox_count(api->sandboxes, NULL),
	    .calls = call_set_count(api->calls),
	    .buffered = api->buffered,
	    .watchers = hub_set_watchers(api->hubs),
	    .draining = api->draining,
	};
	size_t text_len = 0;
	(void)data;
	(void)len;
	char *text = metrics_text(api->metrics, &g, &text_len);
	api_reply_take(r, 200, "text/plain; version=0.0.4", text, text_len);
}

/* {node, draining, versions, launcher, launchers, capacity, allocated} */
static json_t *node_json(struct api *api)
{
	json_t *node = json_pack("{s:s,s:b,s:o}", "node", api->settings->node, "draining",
	                         api->draining, "versions", versions());
	json_t *set = sandbox_set_json(api->sandboxes);
	if (json_object_update(node, set) < 0) {
		json_decref(node);
		node = NULL;
	}
	json_decref(set);
	return node;
}

void api_node_get(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	api_reply_json(r, 200, node_json(r->api));
}

void api_node_drain(struct api_request *r, char *data, size_t len)
{
	(void)data;
	(void)len;
	r->api->draining = true;
	sandbox_set_drain(r->api->sandboxes);
	api_reply_json(r, 200, node_json(r->api));
}

/* ---- quota ---- */

/* Waits until the workspace's execs are counted. */
struct quota_reply {
	struct exec_count_waiter waiter; /* first: the reply is found by it */
	struct api_request *r;
	struct quota_use *use;
};

static void on_counted(struct exec_count_waiter *w)
{
	struct quota_reply q = *(struct quota_reply *)w;
	free(w);
	q.r->on_gone = NULL;
	api_reply_json(q.r, 200, quota_json(q.r->api->quota, q.use));
}

static void on_asker_gone(struct api_request *r)
{
	struct quota_reply *q = r->owner;
	exec_count_unask(&q->waiter);
	free(q);
}

void api_quota(struct api_request *r, char *data, size_t len)
{
	struct err e;
	struct quota_use *use = quota_use(r->api->quota, r->who.workspace);
	struct quota_reply *q = use != NULL ? calloc(1, sizeof(*q)) : NULL;
	(void)data;
	(void)len;
	if (q == NULL) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		api_fail(r, &e, NULL);
		return;
	}
	*q = (struct quota_reply){.waiter.on_counted = on_counted, .r = r, .use = use};
	r->owner = q;
	r->on_gone = on_asker_gone;
	exec_count_ask(&use->execs, &q->waiter);
}
