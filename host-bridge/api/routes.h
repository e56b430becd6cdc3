/*
 * The table of routes: the only list of what this API offers. api.c looks requests up in
 * it; a test holds it and openapi.json together. It calls no handler itself.
 */
#ifndef SANDGATE_ROUTES_H
#define SANDGATE_ROUTES_H

#include <stddef.h>

#include "host-bridge/http/http.h"

struct api_request;

enum route_auth { ROUTE_OPEN, ROUTE_MEMBER, ROUTE_ADMIN };
enum route_body { ROUTE_NO_BODY, ROUTE_JSON, ROUTE_OCTETS };

enum route_flags {
	ROUTE_NEW_WORK = 1, /* refused while the bridge drains */
	ROUTE_STREAMS = 2,  /* its reply has no length to tell a HEAD */
};

struct route {
	enum http_method method;
	const char *path; /* "{id}" and "{eid}" stand for one segment */
	const char *operation;
	enum route_auth auth;
	enum route_body body;
	unsigned flags;
	const char *query; /* names that may be given, space-separated, or "" */
	/* With ROUTE_OCTETS it is called at the head (data NULL) and streams the body. */
	void (*handler)(struct api_request *r, char *data, size_t len);
};

extern const struct route routes[];
extern const size_t routes_count;

#define ROUTE_PARAM_MAX 65

struct route_match {
	const struct route *route; /* NULL: not found, or the method is not allowed */
	char allow[64];            /* "GET, HEAD" when the path exists, else "" */
	char id[ROUTE_PARAM_MAX], eid[ROUTE_PARAM_MAX];
};

/* Find the route of a decoded path. HEAD is served by GET's, unless that streams. */
void routes_find(enum http_method method, const char *path, struct route_match *m);

/* Whether the route takes the query parameter `key`. */
int routes_takes_query(const struct route *route, const char *key);

#endif
