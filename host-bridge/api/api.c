#include "host-bridge/api/api.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "host-bridge/api/api_error.h"
#include "host-bridge/api/audit.h"
#include "host-bridge/api/metrics.h"
#include "host-bridge/api/routes.h"
#include "host-bridge/http/body.h"
#include "host-bridge/http/doc.h"
#include "host-bridge/steady.h"

#define JSON_TYPE "application/json"
#define FORM_TYPE "application/x-www-form-urlencoded"

/* ---- the end of a request ---- */

/* Account for the request while its exchange is still there, free it, and give the exchange
 * back for its last call. */
static struct http_exchange *finish(struct api_request *r, int status)
{
	struct http_exchange *x = r->x;
	metrics_request(r->api->metrics, status);
	audit_request(r->api->audit, r, status);
	free(r);
	return x;
}

void api_reply_take(struct api_request *r, int status, const char *type, char *body, size_t len)
{
	struct err e;
	if (body == NULL) { /* what was asked for is done: not ERR_CAPACITY */
		err_set(&e, ERR_INTERNAL, "the reply could not be made");
		api_fail(r, &e, NULL);
		return;
	}
	http_reply_take(finish(r, status), status, type, body, len);
}

char *api_json_text(json_t *doc)
{
	char *text = doc_text(doc, JSON_COMPACT | JSON_REAL_PRECISION(DBL_DIG));
	json_decref(doc);
	return text;
}

void api_reply_text(struct api_request *r, int status, char *text)
{
	api_reply_take(r, status, JSON_TYPE, text, text != NULL ? strlen(text) : 0);
}

void api_reply_json(struct api_request *r, int status, json_t *doc)
{
	api_reply_text(r, status, api_json_text(doc));
}

void api_reply_empty(struct api_request *r, int status)
{
	http_reply(finish(r, status), status, NULL, NULL, 0);
}

void api_fail(struct api_request *r, const struct err *e, const struct api_details *d)
{
	struct api_details known = d != NULL ? *d : (struct api_details){0};
	int status = err_http_status(e->code);
	if (known.retry_after == 0 && (status == 429 || status == 503))
		known.retry_after = 1;
	if (known.retry_after > 0) {
		char seconds[16];
		snprintf(seconds, sizeof(seconds), "%d", known.retry_after);
		http_set_header(r->x, "Retry-After", seconds);
	}
	if (status == 401)
		http_set_header(r->x, "WWW-Authenticate",
		                e->code == ERR_INVALID_TOKEN
		                    ? "Bearer realm=\"sandgate\", error=\"invalid_token\""
		                    : "Bearer realm=\"sandgate\"");
	struct json_out out = {0};
	size_t len;
	api_error_envelope(&out, r->id, e, &known);
	char *body = json_out_take(&out, &len);
	struct http_exchange *x = finish(r, status);
	if (body == NULL) /* no reply says less than one that is no error of ours */
		http_abort(x);
	else
		http_reply_take(x, status, JSON_TYPE, body, len);
}

void api_end(struct api_request *r)
{
	http_end(finish(r, 200));
}

void api_abort(struct api_request *r)
{
	http_abort(finish(r, 200));
}

static void on_gone(struct http_exchange *x, void *owner)
{
	struct api_request *r = owner;
	(void)x;
	if (r->on_gone != NULL)
		r->on_gone(r);
	finish(r, r->refused != 0 ? r->refused : 499);
}

static void on_room(struct http_exchange *x, void *owner)
{
	struct api_request *r = owner;
	(void)x;
	if (r->on_room != NULL)
		r->on_room(r);
}

/* ---- its beginning ---- */

static void make_request_id(char id[REQUEST_ID_MAX + 1])
{
	unsigned char random[12];
	randombytes_buf(random, sizeof(random));
	memcpy(id, "req_", 4);
	sodium_bin2hex(id + 4, REQUEST_ID_MAX + 1 - 4, random, sizeof(random));
}

/* A client's own id is echoed when it is short and printable, else one is made. */
static void take_request_id(struct api_request *r)
{
	const char *given = http_header(r->x, "x-request-id");
	size_t n = given != NULL ? strlen(given) : 0;
	bool good = n > 0 && n <= REQUEST_ID_MAX;
	for (size_t i = 0; good && i < n; i++)
		good = isgraph((unsigned char)given[i]) != 0;
	if (good)
		memcpy(r->id, given, n + 1);
	else
		make_request_id(r->id);
	http_set_header(r->x, "X-Request-Id", r->id);
	const char *trace = http_header(r->x, "traceparent");
	if (trace != NULL && strlen(trace) <= REQUEST_ID_MAX)
		http_set_header(r->x, "traceparent", trace);
}

static bool is_type(const char *given, const char *type)
{
	size_t n = strcspn(given, "; \t");
	return n == strlen(type) && strncasecmp(given, type, n) == 0;
}

/* What `curl -d` says unless told otherwise counts as JSON. A browser may send it from any
 * page without asking, but not with the token, which only Authorization carries. */
static bool is_json(const char *type)
{
	return type == NULL || is_type(type, JSON_TYPE) || is_type(type, FORM_TYPE);
}

static int check_query(const struct api_request *r, struct err *e)
{
	const char *key;
	for (size_t i = 0; (key = http_query_key(r->x, i)) != NULL; i++) {
		if (!routes_takes_query(r->route, key))
			return err_field(e, ERR_INVALID_FIELD, key,
			                 "%.64s is not a known query parameter", key);
		for (size_t j = 0; j < i; j++)
			if (strcmp(key, http_query_key(r->x, j)) == 0)
				return err_field(e, ERR_INVALID_FIELD, key,
				                 "%s is given more than once", key);
	}
	return 0;
}

static int check_route(struct api_request *r, struct err *e)
{
	struct route_match m;
	routes_find(http_method(r->x), http_path(r->x), &m);
	r->route = m.route;
	if (m.route == NULL && m.allow[0] == '\0')
		return err_set(e, ERR_ROUTE_NOT_FOUND, "there is no such route");
	if (m.route == NULL) {
		http_set_header(r->x, "Allow", m.allow);
		return err_set(e, ERR_METHOD_NOT_ALLOWED, "%s is not allowed here",
		               http_method_name(r->x));
	}
	snprintf(r->sandbox_id, sizeof(r->sandbox_id), "%s", m.id);
	snprintf(r->exec_id, sizeof(r->exec_id), "%s", m.eid);
	return 0;
}

static int check(struct api_request *r, struct err *e)
{
	if (check_route(r, e) < 0)
		return -1;
	if (r->route->auth != ROUTE_OPEN &&
	    auth_check(r->api->auth, http_header(r->x, "authorization"), &r->who, e) < 0)
		return -1;
	if (r->route->auth == ROUTE_ADMIN && !r->who.admin)
		return err_set(e, ERR_FORBIDDEN, "this needs an admin token");
	if (check_query(r, e) < 0)
		return -1;
	if ((r->route->flags & ROUTE_NEW_WORK) != 0 && r->api->draining)
		return err_set(e, ERR_DRAINING, "this bridge drains: it takes no new work");
	if (r->route->body == ROUTE_JSON && !is_json(http_header(r->x, "content-type")))
		return err_set(e, ERR_UNSUPPORTED_MEDIA_TYPE,
		               "the body must be JSON: send Content-Type: " JSON_TYPE);
	return 0;
}

static void on_body(struct http_exchange *x, char *data, size_t len, void *owner)
{
	static const struct body_field nothing[] = {{.name = NULL}};
	struct api_request *r = owner;
	struct err e = {0};
	char none;
	(void)x;
	if (r->route->body == ROUTE_NO_BODY && len > 0) { /* an empty object is as good */
		json_t *doc = body_parse(data, len, nothing, &none, &e);
		json_decref(doc);
		if (doc == NULL) {
			api_fail(r, &e, NULL);
			return;
		}
	}
	r->route->handler(r, data, len);
}

/* A request, where there is one, hears that its client is gone next: that accounts for it. */
static void on_refused(struct http_refusal *f, void *arg)
{
	struct api *api = arg;
	struct api_request *r = f->owner;
	char made[REQUEST_ID_MAX + 1];
	make_request_id(made);
	if (r != NULL)
		r->refused = f->status;
	else
		metrics_request(api->metrics, f->status);
	const char *id = r != NULL ? r->id : made;
	snprintf(f->headers, sizeof(f->headers), "X-Request-Id: %s\r\n", id);
	api_error_refusal(f, id);
}

static void on_request(struct http_exchange *x, void *arg)
{
	struct err e;
	struct api_request *r = calloc(1, sizeof(*r));
	if (r == NULL) {
		struct http_refusal f = {.status = 503, .reason = "out of memory"};
		on_refused(&f, arg);
		if (f.len > 0)
			http_reply(x, f.status, JSON_TYPE, f.body, f.len);
		else
			http_abort(x);
		return;
	}
	r->api = arg;
	r->x = x;
	r->received = steady_now();
	http_watch(x, on_gone, on_room, r);
	take_request_id(r);
	if (check(r, &e) < 0)
		api_fail(r, &e, NULL);
	else if (r->route->body == ROUTE_OCTETS)
		r->route->handler(r, NULL, 0);
	else
		http_collect(x,
		             r->route->body == ROUTE_JSON ? HTTP_BODY_MAX : HTTP_READAHEAD_MAX,
		             on_body, r);
}

const struct http_handlers api_handlers = {.on_request = on_request, .on_refused = on_refused};

/* ---- what handlers ask ---- */

const char *api_workspace(const struct api_request *r)
{
	return r->who.admin ? NULL : r->who.workspace;
}

struct sandbox *api_sandbox(struct api_request *r)
{
	struct err e;
	struct sandbox *s =
	    sandbox_find(r->api->sandboxes, r->sandbox_id, api_workspace(r), &e);
	if (s == NULL)
		api_fail(r, &e, NULL);
	return s;
}

int api_query_number(const struct api_request *r, const char *key, double max, bool *set,
                     double *value, struct err *e)
{
	const char *text = http_query(r->x, key);
	*set = text != NULL;
	if (text == NULL)
		return 0;
	char *end;
	double v = strtod(text, &end);
	/* strtod takes hexadecimal, exponents, signs, blanks and words besides. */
	bool plain =
	    isdigit((unsigned char)*text) && strspn(text, "0123456789.") == strlen(text);
	if (!plain || *end != '\0' || v > max)
		return err_limit(e, ERR_INVALID_FIELD, key, (uint64_t)max,
		                 "%s must be a number up to %.15g", key, max);
	*value = v;
	return 0;
}

int api_query_integer(const struct api_request *r, const char *key, uint64_t max, bool *set,
                      uint64_t *value, struct err *e)
{
	const char *text = http_query(r->x, key);
	*set = text != NULL;
	if (text == NULL)
		return 0;
	errno = 0;
	uint64_t v = strtoull(text, NULL, 10);
	if (*text == '\0' || strspn(text, "0123456789") != strlen(text) || errno != 0 ||
	    v > max)
		return err_limit(e, ERR_INVALID_FIELD, key, max,
		                 "%s must be a whole number up to %ju", key, (uintmax_t)max);
	*value = v;
	return 0;
}
