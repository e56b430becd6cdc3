/* The table parser of JSON bodies, and the exec request that is built with it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/exec/call_request.h"
#include "host-bridge/exec/exec_body.h"
#include "host-bridge/http/body.h"
#include "tests/suite_fixture.h"

static const char *const colours[] = {"red", "blue", NULL};

struct inner {
	struct body_int size;
};

struct outer {
	struct body_str name, raw;
	struct body_num ratio;
	struct body_int count, colour;
	struct body_bool on;
	json_t *list, *map, *patch, *any;
	struct inner inner;
};

#define FIELD(f, t) .name = #f, .type = t, .offset = offsetof(struct outer, f)
static const struct body_field inner_table[] = {
    {.name = "size", .type = BODY_INT, .offset = offsetof(struct inner, size), .max = 9},
    {.name = NULL},
};
static const struct body_field table[] = {
    {FIELD(name, BODY_STR), .required = true},
    {FIELD(raw, BODY_BYTES)},
    {FIELD(ratio, BODY_NUM), .min = 0, .max = 10, .above = true},
    {FIELD(count, BODY_INT), .min = 1, .max = 5},
    {FIELD(colour, BODY_ENUM), .names = colours},
    {FIELD(on, BODY_BOOL)},
    {FIELD(list, BODY_LIST)},
    {FIELD(map, BODY_MAP)},
    {FIELD(patch, BODY_PATCH)},
    {FIELD(any, BODY_JSON)},
    {FIELD(inner, BODY_GROUP), .fields = inner_table},
    {.name = "alias", .type = BODY_INT, .offset = offsetof(struct outer, inner.size), .max = 9},
    {.name = NULL},
};

START_TEST(every_type_is_read)
{
	static const char text[] =
	    "{\"name\":\"n\",\"raw\":\"a\\u0000b\",\"ratio\":0.5,\"count\":5,\"colour\":"
	    "\"blue\","
	    "\"on\":true,\"list\":[\"x\"],\"map\":{\"k\":\"v\"},\"patch\":{\"k\":null},"
	    "\"any\":{\"z\":1},\"inner\":{\"size\":3}}";
	struct outer o = {0};
	struct err e;
	json_t *doc = body_parse(text, strlen(text), table, &o, &e);
	ck_assert_ptr_nonnull(doc);
	ck_assert_str_eq(o.name.s, "n");
	ck_assert_uint_eq(o.raw.len, 3);
	ck_assert_mem_eq(o.raw.s, "a\0b", 3);
	ck_assert(o.ratio.set && o.ratio.v > 0.49 && o.ratio.v < 0.51);
	ck_assert(o.count.set && o.count.v == 5 && o.colour.v == 1 && o.on.v);
	ck_assert_uint_eq(json_array_size(o.list), 1);
	ck_assert_str_eq(json_string_value(json_object_get(o.map, "k")), "v");
	ck_assert(o.patch != NULL && o.any != NULL);
	ck_assert(o.inner.size.set && o.inner.size.v == 3);
	json_decref(doc);
}
END_TEST

START_TEST(null_is_absent_and_an_alias_is_the_field)
{
	static const char text[] = "{\"name\":\"n\",\"count\":null,\"alias\":7}";
	struct outer o = {0};
	struct err e;
	json_t *doc = body_parse(text, strlen(text), table, &o, &e);
	ck_assert_ptr_nonnull(doc);
	ck_assert(!o.count.set && o.raw.s == NULL && o.inner.size.v == 7);
	json_decref(doc);
}
END_TEST

static const struct {
	const char *text;
	enum err_code code;
	const char *field;
} refused[] = {
    {"", ERR_MISSING_FIELD, "name"},
    {"{\"name\":null}", ERR_MISSING_FIELD, "name"},
    {"{", ERR_MALFORMED_JSON, ""},
    {"[]", ERR_MALFORMED_JSON, ""},
    {"{\"name\":\"a\",\"name\":\"b\"}", ERR_INVALID_FIELD, ""},
    {"{\"name\":\"\xff\"}", ERR_MALFORMED_JSON, ""},
    {"{\"name\":\"a\\u0000b\"}", ERR_INVALID_FIELD, "name"},
    {"{\"na\\u0000me\":\"n\"}", ERR_INVALID_FIELD, ""},
    {"{\"name\":\"n\",\"map\":{\"k\\u0000\":\"v\"}}", ERR_INVALID_FIELD, ""},
    {"{\"name\":1}", ERR_INVALID_FIELD, "name"},
    {"{\"name\":\"n\",\"nmae\":1}", ERR_INVALID_FIELD, "nmae"},
    {"{\"name\":\"n\",\"ratio\":0}", ERR_INVALID_FIELD, "ratio"},
    {"{\"name\":\"n\",\"ratio\":1e12}", ERR_INVALID_FIELD, "ratio"},
    {"{\"name\":\"n\",\"ratio\":\"5\"}", ERR_INVALID_FIELD, "ratio"},
    {"{\"name\":\"n\",\"ratio\":1e999}", ERR_INVALID_FIELD, ""},
    {"{\"name\":\"n\",\"count\":9223372036854775807}", ERR_INVALID_FIELD, "count"},
    {"{\"name\":\"n\",\"count\":9223372036854775808}", ERR_INVALID_FIELD, ""},
    {"{\"name\":\"n\",\"count\":-9223372036854775809}", ERR_INVALID_FIELD, ""},
    {"{\"name\":\"n\",\"count\":0}", ERR_INVALID_FIELD, "count"},
    {"{\"name\":\"n\",\"count\":1.0}", ERR_INVALID_FIELD, "count"},
    {"{\"name\":\"n\",\"colour\":\"green\"}", ERR_INVALID_FIELD, "colour"},
    {"{\"name\":\"n\",\"on\":1}", ERR_INVALID_FIELD, "on"},
    {"{\"name\":\"n\",\"list\":[\"a\",1]}", ERR_INVALID_FIELD, "list[1]"},
    {"{\"name\":\"n\",\"map\":{\"k\":\"a\\u0000\"}}", ERR_INVALID_FIELD, "map.k"},
    {"{\"name\":\"n\",\"map\":{\"k\":null}}", ERR_INVALID_FIELD, "map.k"},
    {"{\"name\":\"n\",\"any\":[]}", ERR_INVALID_FIELD, "any"},
    {"{\"name\":\"n\",\"inner\":1}", ERR_INVALID_FIELD, "inner"},
    {"{\"name\":\"n\",\"inner\":{\"size\":10}}", ERR_INVALID_FIELD, "inner.size"},
    {"{\"name\":\"n\",\"inner\":{\"sizes\":1}}", ERR_INVALID_FIELD, "inner.sizes"},
};

START_TEST(the_bound_that_was_passed_is_told)
{
	static const struct {
		const char *text;
		uint64_t limit;
	} cases[] = {{"{\"name\":\"n\",\"count\":0}", 1},
	             {"{\"name\":\"n\",\"ratio\":1e12}", 10},
	             {"{\"name\":\"n\",\"ratio\":0}", 0},
	             {"{\"name\":1}", 0}};
	struct outer o = {0};
	struct err e;
	const char *text = cases[_i].text;
	ck_assert_ptr_null(body_parse(text, strlen(text), table, &o, &e));
	ck_assert_uint_eq(e.limit, cases[_i].limit);
}
END_TEST

START_TEST(a_fault_is_named_by_its_path)
{
	struct outer o = {0};
	struct err e = {0};
	const char *text = refused[_i].text;
	ck_assert_ptr_null(body_parse(text, strlen(text), table, &o, &e));
	ck_assert_msg(e.code == refused[_i].code, "%s: %s", text, e.msg);
	ck_assert_str_eq(e.field, refused[_i].field);
}
END_TEST

/* ---- exec requests ---- */

static int read_defaults(json_t *defaults, struct err *e)
{
	struct exec_fields f = {0};
	return exec_body_read_defaults(defaults, &f, e);
}

static struct call_request *request(const char *text, json_t *defaults)
{
	struct err e;
	struct call_request *q = call_request_parse(text, strlen(text), defaults, false, &e);
	ck_assert_msg(q != NULL, "%s: %s", text, e.msg);
	return q;
}

static void refuse(const char *text, enum err_code code, const char *field)
{
	struct err e = {0};
	ck_assert_ptr_null(call_request_parse(text, strlen(text), NULL, false, &e));
	ck_assert_msg(e.code == code, "%s: %s", text, e.msg);
	ck_assert_str_eq(e.field, field);
}

START_TEST(units_become_those_of_the_wire)
{
	struct call_request *q =
	    request("{\"cmd\":\"x\",\"timeout_seconds\":0.5,\"grace_seconds\":0,\"limits\":{"
	            "\"memory_mib\":64,\"cpus\":0.25,\"cpu_seconds\":1.5,\"output_bytes\":10,"
	            "\"oom_group\":false}}",
	            NULL);
	ck_assert_uint_eq(q->exec.timeout_ms, 500);
	ck_assert_uint_eq(q->exec.grace_ms, 0);
	ck_assert_uint_eq(q->exec.limits->memory_bytes->value, 64 * MIB);
	ck_assert_uint_eq(q->exec.limits->cpu_milli->value, 250);
	ck_assert_uint_eq(q->exec.limits->cpu_time_ms->value, 1500);
	ck_assert(q->exec.limits->oom_group != NULL && !q->exec.limits->oom_group->value);
	ck_assert_ptr_null(q->exec.limits->pids);
	ck_assert_uint_eq(q->output_bytes, 10);
	call_request_free(q);
}
END_TEST

START_TEST(a_timeout_is_never_rounded_to_none)
{
	struct call_request *q = request("{\"cmd\":\"x\",\"timeout_seconds\":1e-9}", NULL);
	ck_assert_uint_eq(q->exec.timeout_ms, 1);
	call_request_free(q);
	q = request("{\"cmd\":\"x\",\"timeout_seconds\":null}", NULL);
	ck_assert_uint_eq(q->exec.timeout_ms, EXEC_TIMEOUT_DEFAULT_S * 1000);
	call_request_free(q);
	refuse("{\"cmd\":\"x\",\"timeout_seconds\":0}", ERR_INVALID_FIELD, "timeout_seconds");
	refuse("{\"cmd\":\"x\",\"timeout_seconds\":-1}", ERR_INVALID_FIELD, "timeout_seconds");
	refuse("{\"cmd\":\"x\",\"timeout_seconds\":1e12}", ERR_INVALID_FIELD,
	       "timeout_seconds");
}
END_TEST

START_TEST(rules_between_fields_hold)
{
	refuse("{}", ERR_MISSING_FIELD, "cmd");
	refuse("{\"cmd\":\"x\",\"argv\":[\"x\"]}", ERR_INVALID_FIELD, "argv");
	refuse("{\"argv\":[\"\"]}", ERR_INVALID_FIELD, "argv");
	refuse("{\"cmd\":\"x\",\"exec_id\":\"a/b\"}", ERR_INVALID_FIELD, "exec_id");
	refuse("{\"cmd\":\"x\",\"cwd\":\"rel\"}", ERR_INVALID_FIELD, "cwd");
	refuse("{\"cmd\":\"x\",\"cwd\":\"\"}", ERR_INVALID_FIELD, "cwd");
	refuse("{\"cmd\":\"x\",\"env\":{\"A=B\":\"\"}}", ERR_INVALID_FIELD, "env.A=B");
	refuse("{\"cmd\":\"x\",\"stdin\":\"\",\"stdin_base64\":\"\"}", ERR_INVALID_FIELD,
	       "stdin_base64");
	refuse("{\"cmd\":\"x\",\"stdin_base64\":\"YQ\"}", ERR_INVALID_FIELD, "stdin_base64");
}
END_TEST

/* What the agent would refuse is refused here, in the words of every other limit, and by the
 * name of the place where it was given. */
START_TEST(a_limit_out_of_the_agents_range_is_refused_by_name)
{
	static const struct {
		const char *limits, *field, *message;
	} cases[] = {
	    {"{\"output_bytes\":0}", "limits.output_bytes",
	     "limits.output_bytes must be at least 1 and at most 67108864"},
	    {"{\"output_bytes\":67108865}", "limits.output_bytes",
	     "limits.output_bytes must be at least 1 and at most 67108864"},
	    {"{\"cpu_seconds\":86400001}", "limits.cpu_seconds",
	     "limits.cpu_seconds must be above 0 and at most 86400000"},
	};
	char text[128], field[64], message[160];
	struct err e;
	snprintf(text, sizeof(text), "{\"cmd\":\"x\",\"limits\":%s}", cases[_i].limits);
	ck_assert_ptr_null(call_request_parse(text, strlen(text), NULL, _i % 2, &e));
	ck_assert_str_eq(e.field, cases[_i].field);
	ck_assert_str_eq(e.msg, cases[_i].message);

	json_t *d = json_pack("{s:o}", "limits", json_loads(cases[_i].limits, 0, NULL));
	ck_assert_int_lt(read_defaults(d, &e), 0);
	snprintf(field, sizeof(field), "exec_defaults.%s", cases[_i].field);
	snprintf(message, sizeof(message), "exec_defaults.%s", cases[_i].message);
	ck_assert_str_eq(e.field, field);
	ck_assert_str_eq(e.msg, message);
	json_decref(d);
}
END_TEST

START_TEST(equal_requests_have_equal_digests)
{
	static const char *const same[] = {
	    "{\"cmd\":\"x\",\"env\":{\"A\":\"1\",\"B\":\"2\"},\"exec_id\":\"one\"}",
	    "{\"exec_id\":\"two\",\"env\":{\"B\":\"2\",\"A\":\"1\"},\"cwd\":null,\"cmd\":"
	    "\"x\"}"};
	struct call_request *a = request(same[0], NULL), *b = request(same[1], NULL);
	struct call_request *c = request("{\"cmd\":\"x\",\"env\":{\"A\":\"1\"}}", NULL);
	ck_assert_mem_eq(a->digest, b->digest, sizeof(a->digest));
	ck_assert_mem_ne(a->digest, c->digest, sizeof(a->digest));
	ck_assert(a->id_given && !c->id_given && strlen(c->exec_id) > 8);
	call_request_free(a);
	call_request_free(b);
	call_request_free(c);
}
END_TEST

START_TEST(the_request_comes_over_the_defaults)
{
	json_t *d = json_loads("{\"user\":\"u\",\"env\":{\"A\":\"d\",\"C\":\"d\"},"
	                       "\"timeout_seconds\":9,\"limits\":{\"pids\":7,\"swap_mib\":1}}",
	                       0, NULL);
	struct err e;
	ck_assert_int_eq(read_defaults(d, &e), 0);
	struct call_request *q = request(
	    "{\"cmd\":\"x\",\"env\":{\"A\":\"r\",\"B\":\"r\"},\"limits\":{\"pids\":3}}", d);
	ck_assert_uint_eq(q->exec.n_env, 3);
	ck_assert_mem_eq(q->exec.env[0]->value.data, "r", 1);
	ck_assert_mem_eq(q->exec.env[2]->value.data, "d", 1);
	ck_assert_uint_eq(q->exec.timeout_ms, 9000);
	ck_assert_uint_eq(q->exec.user.len, 1);
	ck_assert_uint_eq(q->exec.limits->pids->value, 3);
	ck_assert_uint_eq(q->exec.limits->swap_bytes->value, MIB);
	call_request_free(q);
	json_object_set_new(d, "cmd", json_string("x"));
	ck_assert_int_lt(read_defaults(d, &e), 0);
	ck_assert_str_eq(e.field, "exec_defaults.cmd");
	json_decref(d);
}
END_TEST

START_TEST(long_input_is_cut_to_the_frame)
{
	size_t len = 2 * STDIN_INLINE_MAX + 5;
	char *text = malloc(len + 64);
	int n = sprintf(text, "{\"cmd\":\"x\",\"stdin\":\"");
	memset(text + n, 'y', len);
	strcpy(text + n + len, "\"}");
	struct call_request *q = request(text, NULL);
	ck_assert_uint_eq(q->exec.stdin.len, STDIN_INLINE_MAX);
	ck_assert_uint_eq(q->stdin_rest_len, len - STDIN_INLINE_MAX);
	ck_assert(q->exec.stdin_open && !q->stdin_open);
	call_request_free(q);
	free(text);
}
END_TEST

int main(void)
{
	TCase *t = new_case("body", NULL, NULL);
	tcase_add_test(t, every_type_is_read);
	tcase_add_test(t, null_is_absent_and_an_alias_is_the_field);
	tcase_add_loop_test(t, the_bound_that_was_passed_is_told, 0, 4);
	tcase_add_loop_test(t, a_fault_is_named_by_its_path, 0,
	                    sizeof(refused) / sizeof(refused[0]));
	tcase_add_test(t, units_become_those_of_the_wire);
	tcase_add_test(t, a_timeout_is_never_rounded_to_none);
	tcase_add_test(t, rules_between_fields_hold);
	tcase_add_loop_test(t, a_limit_out_of_the_agents_range_is_refused_by_name, 0, 3);
	tcase_add_test(t, equal_requests_have_equal_digests);
	tcase_add_test(t, the_request_comes_over_the_defaults);
	tcase_add_test(t, long_input_is_cut_to_the_frame);
	return run_suite("body", t) != 0;
}
