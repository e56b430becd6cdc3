#include "host-bridge/api/routes.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "host-bridge/api/handlers.h"

#define SANDBOX "/v1/sandboxes/{id}"
#define EXEC SANDBOX "/execs/{eid}"

/* clang-format off */
const struct route routes[] = {
    {HTTP_M_GET, "/healthz", "healthz", ROUTE_OPEN, ROUTE_NO_BODY, 0, "", api_healthz},
    {HTTP_M_GET, "/readyz", "readyz", ROUTE_OPEN, ROUTE_NO_BODY, 0, "", api_readyz},
    {HTTP_M_GET, "/version", "version", ROUTE_OPEN, ROUTE_NO_BODY, 0, "", api_version},
    {HTTP_M_GET, "/openapi.json", "openapi", ROUTE_OPEN, ROUTE_NO_BODY, 0, "", api_openapi},
    {HTTP_M_GET, "/metrics", "metrics", ROUTE_ADMIN, ROUTE_NO_BODY, 0, "", api_metrics},
    {HTTP_M_GET, "/v1/node", "node_get", ROUTE_ADMIN, ROUTE_NO_BODY, 0, "", api_node_get},
    {HTTP_M_POST, "/v1/node/drain", "node_drain", ROUTE_ADMIN, ROUTE_NO_BODY, 0, "", api_node_drain},
    {HTTP_M_GET, "/v1/quota", "quota_get", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_quota},

    {HTTP_M_GET, "/v1/templates", "template_list", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_template_list},
    {HTTP_M_POST, "/v1/sandboxes", "sandbox_create", ROUTE_MEMBER, ROUTE_JSON, ROUTE_NEW_WORK, "", api_sandbox_create},
    {HTTP_M_GET, "/v1/sandboxes", "sandbox_list", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "status metadata page_token limit", api_sandbox_list},
    {HTTP_M_GET, SANDBOX, "sandbox_get", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_sandbox_get},
    {HTTP_M_PATCH, SANDBOX, "sandbox_patch", ROUTE_MEMBER, ROUTE_JSON, 0, "", api_sandbox_patch},
    {HTTP_M_DELETE, SANDBOX, "sandbox_delete", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_sandbox_delete},

    {HTTP_M_GET, SANDBOX "/lifecycle", "lifecycle_get", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_sandbox_lifecycle},
    {HTTP_M_PATCH, SANDBOX "/lifecycle", "lifecycle_patch", ROUTE_MEMBER, ROUTE_JSON, 0, "", api_lifecycle_patch},
    {HTTP_M_GET, SANDBOX "/wait", "sandbox_wait", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "status timeout_seconds", api_sandbox_wait},
    {HTTP_M_POST, SANDBOX "/pause", "sandbox_pause", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_sandbox_pause},
    {HTTP_M_POST, SANDBOX "/resume", "sandbox_resume", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_sandbox_resume},
    {HTTP_M_POST, SANDBOX "/hibernate", "sandbox_hibernate", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_sandbox_hibernate},
    {HTTP_M_POST, SANDBOX "/wake", "sandbox_wake", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_sandbox_wake},
    {HTTP_M_POST, SANDBOX "/prepare", "sandbox_prepare", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_sandbox_prepare},
    {HTTP_M_POST, SANDBOX "/resumed", "sandbox_resumed", ROUTE_MEMBER, ROUTE_JSON, 0, "", api_sandbox_resumed},
    {HTTP_M_POST, SANDBOX "/fork", "sandbox_fork", ROUTE_MEMBER, ROUTE_JSON, ROUTE_NEW_WORK, "", api_sandbox_fork},
    {HTTP_M_POST, SANDBOX "/fork-tree", "sandbox_fork_tree", ROUTE_MEMBER, ROUTE_JSON, ROUTE_NEW_WORK, "", api_sandbox_fork_tree},
    {HTTP_M_POST, SANDBOX "/snapshots", "snapshot_create", ROUTE_MEMBER, ROUTE_JSON, ROUTE_NEW_WORK, "", api_snapshot_create},
    {HTTP_M_GET, SANDBOX "/metrics", "sandbox_metrics", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_sandbox_metrics},
    {HTTP_M_GET, SANDBOX "/events", "sandbox_events", ROUTE_MEMBER, ROUTE_NO_BODY, ROUTE_STREAMS, "", api_sandbox_events},
    {HTTP_M_GET, "/v1/events", "events", ROUTE_MEMBER, ROUTE_NO_BODY, ROUTE_STREAMS, "", api_events},
    {HTTP_M_GET, "/v1/snapshots", "snapshot_list", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "sandbox_id page_token limit", api_snapshot_list},
    {HTTP_M_GET, "/v1/snapshots/{id}", "snapshot_get", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_snapshot_get},
    {HTTP_M_DELETE, "/v1/snapshots/{id}", "snapshot_delete", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_snapshot_delete},

    {HTTP_M_POST, SANDBOX "/exec", "exec_run", ROUTE_MEMBER, ROUTE_JSON, ROUTE_NEW_WORK, "", api_exec_run},
    {HTTP_M_POST, SANDBOX "/exec/stream", "exec_stream", ROUTE_MEMBER, ROUTE_JSON, ROUTE_NEW_WORK, "", api_exec_stream},
    {HTTP_M_POST, SANDBOX "/execs", "exec_start", ROUTE_MEMBER, ROUTE_JSON, ROUTE_NEW_WORK, "", api_exec_start},
    {HTTP_M_GET, SANDBOX "/execs", "exec_list", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "page_token limit", api_exec_list},
    {HTTP_M_GET, EXEC, "exec_get", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "wait_seconds", api_exec_get},
    {HTTP_M_DELETE, EXEC, "exec_delete", ROUTE_MEMBER, ROUTE_NO_BODY, 0, "", api_exec_delete},
    {HTTP_M_GET, EXEC "/stream", "exec_watch", ROUTE_MEMBER, ROUTE_NO_BODY, ROUTE_STREAMS, "after output_encoding", api_exec_watch},
    {HTTP_M_GET, EXEC "/output", "exec_output", ROUTE_MEMBER, ROUTE_NO_BODY, ROUTE_STREAMS, "stream", api_exec_output},
    {HTTP_M_POST, EXEC "/stdin", "exec_stdin", ROUTE_MEMBER, ROUTE_OCTETS, 0, "offset close", api_exec_stdin},
    {HTTP_M_POST, EXEC "/kill", "exec_kill", ROUTE_MEMBER, ROUTE_JSON, 0, "", api_exec_kill},
    {HTTP_M_POST, EXEC "/signal", "exec_signal", ROUTE_MEMBER, ROUTE_JSON, 0, "", api_exec_signal},
};
/* clang-format on */
const size_t routes_count = sizeof(routes) / sizeof(routes[0]);

/* One segment of the pattern against one of the path; what {id} or {eid} caught is copied. */
static bool segment_matches(const char *pattern, size_t plen, const char *path, size_t len,
                            struct route_match *m)
{
	if (pattern[0] != '{')
		return plen == len && memcmp(pattern, path, len) == 0;
	char *to = plen == strlen("{id}") ? m->id : m->eid;
	if (len == 0 || len >= ROUTE_PARAM_MAX)
		return false;
	memcpy(to, path, len);
	to[len] = '\0';
	return true;
}

static bool path_matches(const char *pattern, const char *path, struct route_match *m)
{
	while (*pattern == '/' && *path == '/') {
		size_t plen = strcspn(++pattern, "/"), len = strcspn(++path, "/");
		if (!segment_matches(pattern, plen, path, len, m))
			return false;
		pattern += plen;
		path += len;
	}
	return *pattern == '\0' && *path == '\0';
}

static void allow(struct route_match *m, const struct route *r)
{
	static const char *const names[] = {
	    [HTTP_M_GET] = "GET",     [HTTP_M_POST] = "POST",     [HTTP_M_PUT] = "PUT",
	    [HTTP_M_PATCH] = "PATCH", [HTTP_M_DELETE] = "DELETE",
	};
	bool head = r->method == HTTP_M_GET && (r->flags & ROUTE_STREAMS) == 0;
	size_t n = strlen(m->allow);
	snprintf(m->allow + n, sizeof(m->allow) - n, "%s%s%s", n > 0 ? ", " : "",
	         names[r->method], head ? ", HEAD" : "");
}

static bool method_matches(const struct route *r, enum http_method method)
{
	if (method == HTTP_M_HEAD)
		return r->method == HTTP_M_GET && (r->flags & ROUTE_STREAMS) == 0;
	return r->method == method;
}

void routes_find(enum http_method method, const char *path, struct route_match *m)
{
	*m = (struct route_match){0};
	for (size_t i = 0; i < routes_count; i++) {
		if (!path_matches(routes[i].path, path, m))
			continue;
		allow(m, &routes[i]);
		if (method_matches(&routes[i], method)) {
			m->route = &routes[i];
			return;
		}
	}
}

int routes_takes_query(const struct route *route, const char *key)
{
	size_t len = strlen(key);
	const char *p = route->query;
	while (len > 0 && (p = strstr(p, key)) != NULL) {
		bool starts = p == route->query || p[-1] == ' ';
		if (starts && (p[len] == ' ' || p[len] == '\0'))
			return 1;
		p += len;
	}
	return 0;
}
