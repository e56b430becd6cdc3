/* The table of routes and the OpenAPI document say the same, and the document keeps to the
 * shapes that client generators handle well. */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "host-bridge/api/openapi.h"
#include "host-bridge/api/routes.h"
#include "proto/err.h"
#include "tests/suite_fixture.h"

static json_t *doc;

static void setup(void)
{
	doc = json_loadb(openapi_json, openapi_json_len, JSON_REJECT_DUPLICATES, NULL);
	ck_assert_ptr_nonnull(doc);
}

static void teardown(void)
{
	json_decref(doc);
}

static const char *const methods[] = {
    [HTTP_M_GET] = "get",     [HTTP_M_POST] = "post",     [HTTP_M_PUT] = "put",
    [HTTP_M_PATCH] = "patch", [HTTP_M_DELETE] = "delete",
};

static json_t *operation_of(const struct route *r)
{
	json_t *path = json_object_get(json_object_get(doc, "paths"), r->path);
	return json_object_get(path, methods[r->method]);
}

static const char *text(json_t *object, const char *key)
{
	const char *s = json_string_value(json_object_get(object, key));
	return s != NULL ? s : "";
}

/* ---- routes and document ---- */

START_TEST(every_route_is_documented)
{
	for (size_t i = 0; i < routes_count; i++) {
		json_t *op = operation_of(&routes[i]);
		ck_assert_msg(op != NULL, "%s", routes[i].operation);
		ck_assert_str_eq(text(op, "operationId"), routes[i].operation);
		json_t *security = json_object_get(op, "security");
		ck_assert_msg((security != NULL) == (routes[i].auth == ROUTE_OPEN), "%s",
		              routes[i].operation);
		json_t *body = json_object_get(json_object_get(op, "requestBody"), "content");
		ck_assert_msg((body != NULL) == (routes[i].body != ROUTE_NO_BODY), "%s",
		              routes[i].operation);
		const char *type = routes[i].body == ROUTE_OCTETS ? "application/octet-stream"
		                                                  : "application/json";
		ck_assert(body == NULL || json_object_get(body, type) != NULL);
	}
}
END_TEST

START_TEST(every_documented_operation_is_a_route)
{
	const char *path, *method;
	json_t *operations, *op;
	size_t count = 0;
	json_object_foreach (json_object_get(doc, "paths"), path, operations)
		json_object_foreach (operations, method, op)
			count++;
	ck_assert_uint_eq(count, routes_count);
}
END_TEST

START_TEST(query_parameters_are_the_same)
{
	for (size_t i = 0; i < routes_count; i++) {
		size_t n, given = 0, named = 0;
		json_t *p;
		json_array_foreach (json_object_get(operation_of(&routes[i]), "parameters"), n,
		                    p) {
			if (strcmp(text(p, "in"), "query") != 0)
				continue;
			given++;
			ck_assert_msg(routes_takes_query(&routes[i], text(p, "name")), "%s: %s",
			              routes[i].operation, text(p, "name"));
		}
		for (const char *q = routes[i].query; *q != '\0'; named++)
			q += strcspn(q, " ") + strspn(q + strcspn(q, " "), " ");
		ck_assert_msg(given == named, "%s", routes[i].operation);
	}
}
END_TEST

START_TEST(error_codes_are_the_same)
{
	json_t *schemas = json_object_get(json_object_get(doc, "components"), "schemas");
	json_t *codes = json_object_get(json_object_get(schemas, "ErrorCode"), "enum");
	static const char *const names[] = {
#define X(sym, num, name, status, retry) name,
	    ERR_TABLE(X)
#undef X
	};
	size_t count = sizeof(names) / sizeof(names[0]);
	ck_assert_uint_eq(json_array_size(codes), count);
	for (size_t i = 0; i < count; i++)
		ck_assert_str_eq(json_string_value(json_array_get(codes, i)), names[i]);
}
END_TEST

/* ---- matching ---- */

START_TEST(paths_are_matched_by_segment)
{
	struct route_match m;
	routes_find(HTTP_M_POST, "/v1/sandboxes/sb-1/execs/e.1/kill", &m);
	ck_assert_ptr_nonnull(m.route);
	ck_assert_str_eq(m.route->operation, "exec_kill");
	ck_assert_str_eq(m.id, "sb-1");
	ck_assert_str_eq(m.eid, "e.1");
	static const char *const none[] = {"/",
	                                   "/v1/sandboxes/",
	                                   "/v1/sandboxes//exec",
	                                   "/v1/sandboxes/x/exec/",
	                                   "/v1/sandboxes/x/y",
	                                   "healthz"};
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		routes_find(HTTP_M_GET, none[i], &m);
		ck_assert_msg(m.route == NULL && m.allow[0] == '\0', "%s", none[i]);
	}
}
END_TEST

START_TEST(a_wrong_method_is_told_the_right_ones)
{
	struct route_match m;
	routes_find(HTTP_M_PUT, "/v1/sandboxes", &m);
	ck_assert_ptr_null(m.route);
	ck_assert_str_eq(m.allow, "POST, GET, HEAD");
	routes_find(HTTP_M_HEAD, "/healthz", &m);
	ck_assert_ptr_nonnull(m.route);
	routes_find(HTTP_M_HEAD, "/v1/sandboxes/s/execs/e/stream", &m);
	ck_assert_ptr_null(m.route);
	ck_assert_str_eq(m.allow, "GET");
}
END_TEST

START_TEST(a_long_parameter_is_no_match)
{
	char path[512] = "/v1/sandboxes/";
	struct route_match m;
	memset(path + strlen(path), 'x', ROUTE_PARAM_MAX);
	routes_find(HTTP_M_GET, path, &m);
	ck_assert_ptr_null(m.route);
}
END_TEST

/* ---- shapes ---- */

/* Each object of the document that is a schema is looked at; `path` is for messages. */
static void check_schema(json_t *s, const char *path, bool request)
{
	const char *type = text(s, "type");
	if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
		ck_assert_msg(json_object_get(s, "format") != NULL, "%s: no format", path);
	ck_assert_msg(json_object_get(s, "default") == NULL, "%s: a default", path);
	ck_assert_msg(json_object_get(s, "minimum") == NULL, "%s: a minimum", path);
	ck_assert_msg(json_object_get(s, "$ref") == NULL || json_object_size(s) == 1,
	              "%s: members beside $ref", path);
	if (json_object_get(s, "maxLength") != NULL)
		ck_assert_msg(strstr(path, "ExecId") != NULL, "%s: bounds on a string", path);
	if (json_object_get(s, "oneOf") != NULL)
		ck_assert_msg(strcmp(path, "ExecEvent") == 0, "%s: a oneOf", path);
	json_t *properties = json_object_get(s, "properties"), *p;
	json_t *more = json_object_get(s, "additionalProperties");
	ck_assert_msg(properties == NULL || json_is_false(more) == request, "%s", path);
	if (properties != NULL && !request)
		ck_assert_msg(json_array_size(json_object_get(s, "required")) ==
		                  json_object_size(properties),
		              "%s: a response field that may be missing", path);
	const char *name;
	char inner[256];
	json_object_foreach (properties, name, p) {
		snprintf(inner, sizeof(inner), "%s.%s", path, name);
		check_schema(p, inner, request);
	}
	p = json_object_get(s, "items");
	if (p != NULL)
		check_schema(p, path, request);
	if (json_is_object(more))
		check_schema(more, path, request);
}

START_TEST(schemas_generate_well)
{
	const char *name;
	json_t *s;
	json_object_foreach (json_object_get(json_object_get(doc, "components"), "schemas"),
	                     name, s)
		check_schema(s, name,
		             json_is_false(json_object_get(s, "additionalProperties")));
}
END_TEST

START_TEST(an_operation_has_one_success_and_one_error)
{
	for (size_t i = 0; i < routes_count; i++) {
		const char *status;
		json_t *r, *responses = json_object_get(operation_of(&routes[i]), "responses");
		size_t good = 0;
		json_object_foreach (responses, status, r) {
			json_t *content = json_object_get(r, "content");
			if (status[0] == '2')
				good++;
			else
				ck_assert_str_eq(text(r, "$ref"),
				                 "#/components/responses/Error");
			ck_assert_uint_le(json_object_size(content), 1);
		}
		ck_assert_uint_eq(good, 1);
		ck_assert_uint_eq(json_object_size(responses), 3);
	}
}
END_TEST

int main(void)
{
	TCase *t = new_case("routes", setup, teardown);
	tcase_add_test(t, every_route_is_documented);
	tcase_add_test(t, every_documented_operation_is_a_route);
	tcase_add_test(t, query_parameters_are_the_same);
	tcase_add_test(t, error_codes_are_the_same);
	tcase_add_test(t, paths_are_matched_by_segment);
	tcase_add_test(t, a_wrong_method_is_told_the_right_ones);
	tcase_add_test(t, a_long_parameter_is_no_match);
	tcase_add_test(t, schemas_generate_well);
	tcase_add_test(t, an_operation_has_one_success_and_one_error);
	return run_suite("routes", t) != 0;
}
