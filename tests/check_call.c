/* An exec that a client waits for: one Exec and no second, one reply, and the right word to
 * the agent when the client or the bridge goes away. */
#include "tests/api_fixture.h"

#define EXEC "{\"cmd\":\"true\",\"exec_id\":\"x\"}"

static struct peer *client;

static void post(const char *path, const char *body)
{
	client = request("POST", path, "Content-Type: application/json\r\n", body);
}

/* Up to where the agent waits for the end of the exec. */
static void start_with(const char *path, const char *body)
{
	post(path, body);
	UNTIL(agent_watchers() == 1);
	ck_assert_uint_eq(agent.attached, 0);
	ck_assert_uint_eq(agent.started, 1);
}

static void start(const char *path)
{
	start_with(path, EXEC);
}

START_TEST(the_result_is_the_reply)
{
	start("/exec");
	agent_writes("out");
	agent.finished = true;
	UNTIL(has(client, "\"outcome\":\"exited\",\"exit_code\":7"));
	ck_assert(has(client, "\"stdout\":\"out\""));
	UNTIL(agent_watchers() == 0);
	ck_assert_uint_eq(agent.cancelled, 0);
	ck_assert_uint_eq(call_set_count(fx.api.calls), 0);
}
END_TEST

/* What a reply holds is delivered with it. Of a stream's last events nobody knows that, and a
 * client may come for them. */
START_TEST(a_reply_gives_the_output_up_and_a_stream_does_not)
{
	start_with(_i == 0 ? "/exec" : "/exec/stream", "{\"cmd\":\"true\"}");
	agent.finished = true;
	UNTIL(has(client, "\"exit_code\":7"));
	UNTIL(agent_watchers() == 0);
	ck_assert_int_eq(agent.keeps, _i == 1);
	ck_assert_uint_eq(agent.released, _i == 0);
}
END_TEST

static bool counts(const char *outcome, unsigned count)
{
	const struct metrics_gauges none = {0};
	char line[80];
	size_t len;
	char *text = metrics_text(fx.api.metrics, &none, &len);
	snprintf(line, sizeof(line), "execs_total{outcome=\"%s\"} %u\n", outcome, count);
	bool found = strstr(text, line) != NULL;
	free(text);
	return found;
}

/* By its result, or by why that was not seen; a repetition of its start is none. */
START_TEST(each_exec_is_counted_once)
{
	static const char *const as[] = {"exited", "exited", "client_gone", "detached",
	                                 "error"};
	if (_i == 3) {
		post("/execs", EXEC);
		UNTIL(has(client, "HTTP/1.1 201"));
	} else {
		agent.exists = _i == 1;
		start(_i == 2 ? "/exec/stream" : "/exec");
		if (_i == 2)
			UNTIL(has(client, "\"type\":\"start\""));
		agent.finished = _i < 2;
		agent.vanished = _i == 4;
	}
	if (_i == 2)
		peer_close(client);
	else if (_i == 4)
		agent_cut();
	UNTIL(http_server_exchanges(fx.api.http) == 0);
	for (int i = 1; i < 5; i++)
		ck_assert(counts(as[i], _i != 1 && strcmp(as[i], as[_i]) == 0));
}
END_TEST

START_TEST(a_lost_link_is_attached_again_where_it_broke)
{
	start(_i == 0 ? "/exec" : "/exec/stream");
	agent_writes("before ");
	if (_i == 1)
		UNTIL(has(client, "before "));
	agent_cut();
	UNTIL(agent_watchers() == 1 && agent.attached == 1);
	agent_writes("after");
	agent.finished = true;
	UNTIL(has(client, "\"exit_code\":7"));
	if (_i == 0)
		ck_assert(has(client, "\"stdout\":\"before after\""));
	ck_assert_uint_eq(agent.started, 1);
}
END_TEST

START_TEST(links_that_break_time_and_again_but_bring_something_lose_nothing)
{
	char want[64] = "\"stdout\":\"";
	start("/exec");
	for (unsigned n = 1; n <= 2 * REATTACH_TRIES; n++) {
		agent_writes("x");
		UNTIL(agent_is_drained());
		agent_cut();
		UNTIL(agent_watchers() == 1 && agent.attached == n);
		strcat(want, "x");
	}
	strcat(want, "\"");
	agent.finished = true;
	UNTIL(has(client, want));
	ck_assert_uint_eq(agent.started, 1);
}
END_TEST

START_TEST(an_exec_that_is_gone_after_the_break_is_lost)
{
	start(_i == 0 ? "/exec" : "/exec/stream");
	if (_i == 1)
		UNTIL(has(client, "\"type\":\"start\""));
	agent.vanished = true;
	agent_cut();
	UNTIL(has(client, "\"code\":\"sandbox.lost\""));
	ck_assert(!has(client, "\"started\":\"no\"") && has(client, "\"exec_id\":\"x\""));
	ck_assert(!has(client, "\"exit_code\""));
	ck_assert_uint_eq(agent.started, 1);
}
END_TEST

START_TEST(a_client_that_goes_cancels)
{
	start(_i == 0 ? "/exec" : "/exec/stream");
	peer_close(client);
	UNTIL(agent.cancelled > 0);
	ck_assert_int_eq(agent.reason, SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE);
	UNTIL(agent_watchers() == 0);
}
END_TEST

START_TEST(the_output_so_far_is_told_of_a_lost_exec)
{
	start("/exec");
	agent_writes("so far \xff");
	UNTIL(agent_is_drained());
	agent.vanished = true;
	agent_cut();
	UNTIL(has(client, "\"code\":\"sandbox.lost\""));
	ck_assert(has(client, "\"partial\":{\"stdout\":\"so far \xef\xbf\xbd\",\"stderr\":\"\","
	                      "\"stdout_bytes\":8,\"stderr_bytes\":0}"));
}
END_TEST

START_TEST(a_repeated_start_gets_the_result_and_ends_nothing)
{
	agent.exists = true;
	start(_i == 0 ? "/exec" : "/exec/stream");
	if (_i == 1) {
		UNTIL(has(client, "\"type\":\"start\""));
		peer_close(client);
		UNTIL(agent_watchers() == 0);
		ck_assert_uint_eq(agent.cancelled, 0);
		return;
	}
	agent.finished = true;
	UNTIL(has(client, "\"outcome\":\"exited\",\"exit_code\":7"));
}
END_TEST

START_TEST(a_deleted_sandbox_cancels_and_waits_for_the_result)
{
	struct err e;
	start("/exec");
	sandbox_delete(sandbox_find(fx.api.sandboxes, fx.id, NULL, &e),
	               SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, NULL, NULL);
	UNTIL(agent.cancelled > 0);
	ck_assert_int_eq(agent.reason, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED);
	agent.finished = true;
	UNTIL(has(client, "\"exit_code\":7"));
}
END_TEST

START_TEST(shutting_down_leaves_the_exec_for_a_successor)
{
	start("/exec");
	call_set_suspend(fx.api.calls);
	UNTIL(has(client, "\"code\":\"bridge.draining\""));
	ck_assert(has(client, "HTTP/1.1 503") && has(client, "\"exec_id\":\"x\""));
	UNTIL(agent_watchers() == 0);
	ck_assert_uint_eq(agent.cancelled, 0);
}
END_TEST

START_TEST(a_detached_start_is_answered_at_once)
{
	post("/execs", EXEC);
	UNTIL(has(client, "\"state\":\"running\",\"detached\":true"));
	ck_assert(has(client, "HTTP/1.1 201"));
	UNTIL(agent_watchers() == 0);
	ck_assert_uint_eq(agent.cancelled, 0);
}
END_TEST

START_TEST(an_empty_last_event_id_starts_nothing_unnamed)
{
	client = request("POST", "/exec/stream",
	                 "Content-Type: application/json\r\nLast-Event-ID: \r\n",
	                 "{\"cmd\":\"true\"}");
	UNTIL(has(client, "HTTP/1.1 400"));
	ck_assert_uint_eq(agent.started, 0);
}
END_TEST

/* The body of the client's chunked reply, as JSON. */
static json_t *chunked_json(void)
{
	struct bytes body = {0};
	bytes_add(&client->in, "", 1);
	char *at = strstr((char *)client->in.data, "\r\n\r\n");
	ck_assert(at != NULL && has(client, "Transfer-Encoding: chunked"));
	at += strlen("\r\n\r\n");
	for (size_t n; (n = strtoul(at, &at, 16)) > 0; at += n + strlen("\r\n")) {
		at += strlen("\r\n");
		bytes_add(&body, at, n);
	}
	json_error_t e;
	json_t *doc = json_loadb((char *)body.data, body.len, JSON_ALLOW_NUL, &e);
	ck_assert_msg(doc != NULL, "%s at %d", e.text, e.position);
	free(body.data);
	return doc;
}

/* Each character is two bytes, and a piece is an even number of them: the first byte makes
 * every piece end inside a character. */
START_TEST(a_long_result_is_written_in_pieces)
{
	static char text[400002];
	for (size_t i = 1; i < sizeof(text) - 1; i += 2)
		memcpy(text + i, "\xc3\xa9", 2);
	text[0] = 'a';
	start("/exec");
	agent_writes(text);
	if (_i == 1)
		agent_writes("\xff");
	agent.finished = true;
	UNTIL(has(client, "\r\n0\r\n\r\n"));
	json_t *doc = chunked_json();
	const char *out = json_string_value(json_object_get(doc, "stdout"));
	ck_assert_uint_eq(strlen(out), strlen(text) + (_i == 1 ? 3 : 0));
	ck_assert_mem_eq(out, text, strlen(text));
	ck_assert_str_eq(json_string_value(json_object_get(doc, "stderr")), "");
	ck_assert_int_eq(json_is_true(json_object_get(doc, "encoding_lossy")), _i == 1);
	ck_assert_int_eq(json_integer_value(json_object_get(doc, "exit_code")), 7);
	json_decref(doc);
}
END_TEST

/* Other calls' clients take nothing: their output fills the bridge's buffers. */
START_TEST(a_long_output_is_cut_when_the_buffers_are_full_and_says_so)
{
	static char text[BUFFERED_STREAM_MIN + 5];
	memset(text, 'x', sizeof(text) - 1);
	fx.api.buffered = BUFFERED_MAX;
	start("/exec");
	agent_writes(text);
	agent.finished = true;
	UNTIL(has(client, "\r\n0\r\n\r\n"));
	json_t *doc = chunked_json();
	ck_assert_uint_eq(json_string_length(json_object_get(doc, "stdout")),
	                  BUFFERED_STREAM_MIN);
	ck_assert(json_is_true(json_object_get(doc, "stdout_truncated")));
	ck_assert_int_eq(json_integer_value(json_object_get(doc, "stdout_bytes")),
	                 sizeof(text) - 1);
	ck_assert_int_eq(json_integer_value(json_object_get(doc, "exit_code")), 7);
	ck_assert_uint_eq(fx.api.buffered, BUFFERED_MAX);
	json_decref(doc);
}
END_TEST

START_TEST(a_short_output_is_whole_though_the_buffers_are_full)
{
	fx.api.buffered = BUFFERED_MAX;
	start("/exec");
	agent_writes("short");
	agent.finished = true;
	UNTIL(has(client, "\"stdout\":\"short\""));
	ck_assert(has(client, "\"stdout_truncated\":false"));
	ck_assert_uint_eq(fx.api.buffered, BUFFERED_MAX);
}
END_TEST

START_TEST(buffered_output_counts_until_it_is_replied_or_given_up)
{
	start("/exec");
	agent_writes("0123456789");
	UNTIL(fx.api.buffered == 10);
	if (_i == 0)
		agent.finished = true;
	else if (_i == 1)
		peer_close(client);
	else
		call_set_suspend(fx.api.calls);
	UNTIL(fx.api.buffered == 0);
	UNTIL(http_server_exchanges(fx.api.http) == 0);
}
END_TEST

START_TEST(a_client_that_leaves_a_long_result_is_forgotten)
{
	static char text[4000001];
	memset(text, 'x', sizeof(text) - 1);
	start("/exec");
	agent_writes(text);
	agent.finished = true;
	UNTIL(client->in.len > 0);
	ck_assert_uint_lt(client->in.len, sizeof(text));
	ck_assert_uint_eq(fx.api.buffered, sizeof(text) - 1);
	peer_close(client);
	UNTIL(http_server_exchanges(fx.api.http) == 0);
	ck_assert_uint_eq(fx.api.buffered, 0);
	ck_assert_uint_eq(agent.cancelled, 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("call", fixture_setup, fixture_teardown);
	tcase_add_test(t, the_result_is_the_reply);
	tcase_add_loop_test(t, a_reply_gives_the_output_up_and_a_stream_does_not, 0, 2);
	tcase_add_loop_test(t, each_exec_is_counted_once, 0, 5);
	tcase_add_loop_test(t, a_lost_link_is_attached_again_where_it_broke, 0, 2);
	tcase_add_test(t, links_that_break_time_and_again_but_bring_something_lose_nothing);
	tcase_add_loop_test(t, an_exec_that_is_gone_after_the_break_is_lost, 0, 2);
	tcase_add_loop_test(t, a_client_that_goes_cancels, 0, 2);
	tcase_add_test(t, the_output_so_far_is_told_of_a_lost_exec);
	tcase_add_loop_test(t, a_repeated_start_gets_the_result_and_ends_nothing, 0, 2);
	tcase_add_test(t, a_deleted_sandbox_cancels_and_waits_for_the_result);
	tcase_add_test(t, shutting_down_leaves_the_exec_for_a_successor);
	tcase_add_test(t, a_detached_start_is_answered_at_once);
	tcase_add_test(t, an_empty_last_event_id_starts_nothing_unnamed);
	tcase_add_loop_test(t, a_long_result_is_written_in_pieces, 0, 2);
	tcase_add_test(t, a_long_output_is_cut_when_the_buffers_are_full_and_says_so);
	tcase_add_test(t, a_short_output_is_whole_though_the_buffers_are_full);
	tcase_add_loop_test(t, buffered_output_counts_until_it_is_replied_or_given_up, 0, 3);
	tcase_add_test(t, a_client_that_leaves_a_long_result_is_forgotten);
	return run_suite("call", t) != 0;
}
