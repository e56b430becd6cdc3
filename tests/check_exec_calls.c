/* What is asked of an exec that exists: query parameters are read strictly, input is taken or
 * refused and never dropped, every refusal has the request's id. */
#include "tests/api_fixture.h"

static struct peer *client; /* the last one */

static void await_answer(void)
{
	UNTIL(has(client, "\r\n\r\n") && (has(client, "HTTP/1.1 204") || has(client, "}")));
}

static void ask(const char *method, const char *path, const char *body)
{
	client = request(method, path, "", body);
	await_answer();
}

static void expect_field(const char *field)
{
	char text[64];
	snprintf(text, sizeof(text), "\"field\":\"%s\"", field);
	ck_assert_msg(has(client, text), "%s", client->in.data);
}

START_TEST(numbers_of_a_query_are_plain_decimals)
{
	static const char *const bad[] = {"0x1", "1e2",   "+1",  "-1", " 1",
	                                  ".5",  "1.2.3", "nan", "",   "601"};
	char path[64];
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		snprintf(path, sizeof(path), "/execs/x?wait_seconds=%s",
		         bad[i][0] == ' ' ? "%201" : bad[i]);
		ask("GET", path, "");
		expect_field("wait_seconds");
	}
	ask("GET", "/execs/x?wait_seconds=0.0", "");
	ck_assert(has(client, "HTTP/1.1 200"));
}
END_TEST

START_TEST(whole_numbers_are_whole)
{
	static const char *const bad[] = {"1.5", "1e2", "0", "1001", "0x1", ""};
	char path[64];
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		snprintf(path, sizeof(path), "/execs?limit=%s", bad[i]);
		ask("GET", path, "");
		expect_field("limit");
	}
	ask("GET", "/execs?limit=1", "");
	ck_assert(has(client, "HTTP/1.1 200"));
}
END_TEST

START_TEST(a_repeated_parameter_is_refused)
{
	ask("GET", "/execs/x/output?stream=stdout&stream=stderr", "");
	ck_assert(has(client, "HTTP/1.1 400"));
	expect_field("stream");
}
END_TEST

START_TEST(input_that_is_taken_is_counted)
{
	ask("POST", "/execs/x/stdin", "abc");
	ck_assert(has(client, "{\"offset\":3}"));
	ask("POST", "/execs/x/stdin?close=true", "de");
	ck_assert(has(client, "{\"offset\":5}"));
	ask("POST", "/execs/x/stdin?close=true", ""); /* nothing of it is lost */
	ck_assert(has(client, "{\"offset\":5}"));
}
END_TEST

START_TEST(input_to_a_closed_input_is_refused)
{
	agent.stdin_closed = true;
	ask("POST", _i == 0 ? "/execs/x/stdin" : "/execs/x/stdin?close=true", "abc");
	ck_assert(has(client, "HTTP/1.1 409") && has(client, "exec.stdin_offset"));
	ck_assert(has(client, "\"limit\":0"));
	expect_field("stdin_open");
}
END_TEST

START_TEST(a_request_that_is_malformed_has_an_id)
{
	ask("GET", "/%zz", "");
	ck_assert(has(client, "HTTP/1.1 400") && has(client, "X-Request-Id: req_"));
	ck_assert(has(client, "\"request_id\":\"req_"));
}
END_TEST

START_TEST(a_request_that_is_refused_later_keeps_its_own_id)
{
	char *body = calloc(1, 2 * HTTP_READAHEAD_MAX + 1);
	memset(body, 'x', 2 * HTTP_READAHEAD_MAX);
	client = request("GET", "/execs", "X-Request-Id: mine\r\n", body);
	free(body);
	await_answer();
	ck_assert(has(client, "HTTP/1.1 413") && has(client, "X-Request-Id: mine\r\n"));
	ck_assert(has(client, "\"request_id\":\"mine\""));
}
END_TEST

int main(void)
{
	TCase *t = new_case("exec_calls", fixture_setup, fixture_teardown);
	tcase_add_test(t, numbers_of_a_query_are_plain_decimals);
	tcase_add_test(t, whole_numbers_are_whole);
	tcase_add_test(t, a_repeated_parameter_is_refused);
	tcase_add_test(t, input_that_is_taken_is_counted);
	tcase_add_loop_test(t, input_to_a_closed_input_is_refused, 0, 2);
	tcase_add_test(t, a_request_that_is_malformed_has_an_id);
	tcase_add_test(t, a_request_that_is_refused_later_keeps_its_own_id);
	return run_suite("exec_calls", t) != 0;
}
