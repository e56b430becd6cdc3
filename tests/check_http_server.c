/* Responses, pipelining, and the server as a whole, over real TCP connections. */
#include <sys/resource.h>
#include <sys/un.h>

#include "tests/http_server_fixture.h"

/* ---- responses ---- */

START_TEST(head_has_the_length_but_no_body)
{
	static struct answer a;
	int fd = client();

	say(fd, "HEAD /12345 HTTP/1.1\r\n" HOST "\r\n" REQUEST("/9"));
	hear(fd, &a, "\r\n\r\n9");
	ck_assert(strstr(a.text, "Content-Length: 5\r\n") != NULL);
	ck_assert(strstr(a.text, "12345") == NULL);
	close(fd);
}
END_TEST

START_TEST(http_1_0_is_answered_and_closed)
{
	static struct answer a;
	int fd = client();

	say(fd, "GET /1 HTTP/1.0\r\n\r\n");
	hear_all(fd, &a);
	ck_assert(strstr(a.text, "Connection: close\r\n") != NULL);
	ck_assert_str_eq(strstr(a.text, "\r\n\r\n"), "\r\n\r\n1");
	close(fd);
}
END_TEST

START_TEST(http_1_0_keep_alive_is_kept)
{
	static struct answer a;
	int fd = client();

	say(fd, "GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	hear(fd, &a, "\r\n\r\n1");
	ck_assert(strstr(a.text, "Connection: keep-alive\r\n") != NULL);
	say(fd, "GET /2 HTTP/1.0\r\n\r\n");
	hear_all(fd, &a);
	ck_assert(strstr(a.text, "\r\n\r\n2") != NULL);
	close(fd);
}
END_TEST

START_TEST(a_stream_to_http_1_0_ends_with_the_connection)
{
	static struct answer a;
	int fd = pending("GET /begin HTTP/1.0\r\n\r\n");

	ck_assert(http_write(seen.x, "hello", 5));
	http_end(seen.x);
	hear_all(fd, &a);
	ck_assert(!a.reset);
	ck_assert(strstr(a.text, "chunked") == NULL);
	ck_assert_str_eq(strstr(a.text, "\r\n\r\n"), "\r\n\r\nhello");
	close(fd);
}
END_TEST

START_TEST(a_broken_off_stream_to_http_1_0_is_a_reset)
{
	static struct answer a;
	int fd = pending("GET /begin HTTP/1.0\r\n\r\n");

	http_write(seen.x, "hello", 5);
	http_abort(seen.x);
	hear_all(fd, &a);
	ck_assert(a.reset);
	ck_assert_int_eq(seen.gone, 0);
	close(fd);
}
END_TEST

START_TEST(a_stream_is_chunked_and_leaves_the_connection_usable)
{
	static struct answer a;
	int fd = client();

	say(fd, REQUEST("/begin"));
	hear(fd, &a, "\r\n\r\n");
	ck_assert(strstr(a.text, "Transfer-Encoding: chunked\r\n") != NULL);
	http_write(seen.x, "hello", 5);
	http_write(seen.x, "", 0);
	http_write(seen.x, "0123456789abcdef", 16);
	http_end(seen.x);
	say(fd, REQUEST("/7"));
	hear(fd, &a, "\r\n\r\n7");
	ck_assert(
	    strstr(a.text, "\r\n\r\n5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\nHTTP") !=
	    NULL);
	close(fd);
}
END_TEST

START_TEST(a_broken_off_chunked_stream_lacks_its_last_chunk)
{
	static struct answer a;
	int fd = pending(REQUEST("/begin"));

	http_write(seen.x, "hello", 5);
	http_abort(seen.x);
	hear_all(fd, &a);
	ck_assert_str_eq(strstr(a.text, "\r\n\r\n"), "\r\n\r\n5\r\nhello\r\n");
	close(fd);
}
END_TEST

START_TEST(headers_of_the_owner_are_sent)
{
	static struct answer a;
	int fd = pending(REQUEST("/wait"));

	http_set_header(seen.x, "X-Request-Id", "r1");
	http_set_header(seen.x, "Retry-After", "5");
	http_reply_take(seen.x, 503, "application/json", strdup("{}"), 2);
	hear(fd, &a, "\r\n\r\n{}");
	ck_assert(strstr(a.text, "\r\nX-Request-Id: r1\r\nRetry-After: 5\r\n\r\n") != NULL);
	ck_assert(strstr(a.text, "\r\nDate: ") != NULL);
	close(fd);
}
END_TEST

START_TEST(connection_close_is_honoured)
{
	static struct answer a;
	int fd = client();

	say(fd, "GET /1 HTTP/1.1\r\n" HOST "Connection: foo, Close\r\n\r\n");
	hear_all(fd, &a);
	ck_assert(!a.reset && strstr(a.text, "Connection: close\r\n") != NULL);
	close(fd);
}
END_TEST

/* ---- pipelining ---- */

START_TEST(a_thousand_pipelined_requests_are_answered_in_order)
{
	static struct answer a;
	static char text[64 * 1024];
	const char *at = a.text;
	size_t len = 0;
	int fd = client();

	for (int i = 1000; i < 2000; i++)
		len += (size_t)sprintf(text + len, "GET /%d HTTP/1.1\r\n" HOST "\r\n", i);
	say_n(fd, text, len);
	hear(fd, &a, "\r\n\r\n1999");
	for (int i = 1000; i < 2000; i++) {
		char want[16];

		sprintf(want, "\r\n\r\n%d", i);
		at = strstr(at, want);
		ck_assert_msg(at != NULL, "%d is missing or out of order", i);
	}
	close(fd);
}
END_TEST

START_TEST(requests_pipelined_behind_a_pending_one_wait_for_it)
{
	static struct answer a;
	int fd = pending(REQUEST("/wait")
	                     REQUEST("/5") "POST /collect HTTP/1.1\r\n" HOST
	                                   "Content-Length: 3\r\n\r\nabc" REQUEST("/6"));

	settle();
	ck_assert_int_eq(seen.requests, 1);
	http_reply(seen.x, 200, "text/plain", "4", 1);
	hear(fd, &a, "\r\n\r\n6");
	ck_assert(strstr(a.text, "\r\n\r\n4") < strstr(a.text, "\r\n\r\n5"));
	ck_assert(strstr(a.text, "\r\n\r\n5") < strstr(a.text, "\r\n\r\nabc"));
	close(fd);
}
END_TEST

/* A pending request, and more behind it than is read ahead. Returns how many. */
static int pipeline_too_much(int fd)
{
	char next[1024];
	int n = 0;

	size_t one = (size_t)snprintf(next, sizeof next,
	                              "GET /7 HTTP/1.1\r\n" HOST "X-Long: %0900d\r\n\r\n", 0);
	say(fd, REQUEST("/wait"));
	for (size_t len = 0; len < 2 * HTTP_READAHEAD_MAX; len += one, n++)
		say(fd, next);
	until(LIST_FIRST(&server->conns) != NULL && LIST_FIRST(&server->conns)->watched);
	return n;
}

START_TEST(much_that_is_pipelined_behind_a_pending_request_waits_for_it)
{
	static struct answer a;
	int fd = client(), n = pipeline_too_much(fd);

	ck_assert_uint_le(LIST_FIRST(&server->conns)->in.len, 2 * HTTP_READAHEAD_MAX);
	http_reply(seen.x, 200, "text/plain", "first", 5);
	until((hear_some(fd, &a), seen.requests == n + 1));
	hear(fd, &a, "\r\n\r\nfirst");
	ck_assert_int_eq(seen.gone, 0);
	close(fd);
}
END_TEST

START_TEST(one_who_pipelines_much_and_goes_is_gone)
{
	int fd = client();

	pipeline_too_much(fd);
	_i == 0 ? (void)close(fd) : reset(fd);
	until(seen.gone == 1);
	ck_assert_uint_eq(http_server_connections(server), 0);
}
END_TEST

START_TEST(a_reader_who_pipelines_and_does_not_read_is_held_up_not_buffered)
{
	static char requests[100 * 1024];
	static struct answer a;
	size_t len = 0;
	int fd = client();

	while (len + 100 < sizeof requests)
		len +=
		    (size_t)sprintf(requests + len, "GET /%064d HTTP/1.1\r\n" HOST "\r\n", 1);
	flood(fd, requests, len);
	ck_assert_uint_lt(LIST_FIRST(&server->conns)->out.len, 2 * HTTP_HIGH_WATER);
	ck_assert_uint_le(LIST_FIRST(&server->conns)->in.len, 2 * HTTP_READAHEAD_MAX);
	hear_some(fd, &a);
	ck_assert_uint_gt(a.len, 0);
	reset(fd);
	until(http_server_connections(server) == 0);
}
END_TEST

/* ---- the server ---- */

START_TEST(draining_closes_idle_connections_and_finishes_the_others)
{
	static struct answer idle, busy;
	struct sockaddr_in in = {.sin_family = AF_INET,
	                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	                         .sin_port = htons((uint16_t)port)};
	int fd1 = client(), fd2 = client(), fd3 = socket(AF_INET, SOCK_STREAM, 0);

	say(fd1, REQUEST("/1"));
	hear(fd1, &idle, "\r\n\r\n1");
	say(fd2, REQUEST("/wait"));
	until(seen.requests == 2);
	http_server_drain(server);
	hear_all(fd1, &idle);
	ck_assert_int_ne(connect(fd3, (struct sockaddr *)&in, sizeof in), 0);
	http_reply(seen.x, 200, "text/plain", "2", 1);
	hear_all(fd2, &busy);
	ck_assert(strstr(busy.text, "Connection: close\r\n") != NULL);
	close(fd1);
	close(fd2);
	close(fd3);
}
END_TEST

START_TEST(a_full_server_drops_the_longest_idle_and_else_lets_wait)
{
	static struct answer a, b;
	int fd1, fd2, fd3;

	server->max_conns = 1;
	fd1 = client();
	until(http_server_connections(server) == 1);
	fd2 = client();
	hear_all(fd1, &a);
	say(fd2, REQUEST("/wait"));
	until(seen.requests == 1);
	fd3 = client();
	say(fd3, REQUEST("/3"));
	settle();
	ck_assert_int_eq(seen.requests, 1);
	close(fd2);
	hear(fd3, &b, "\r\n\r\n3");
	close(fd1);
	close(fd3);
}
END_TEST

START_TEST(running_out_of_descriptors_only_delays_a_connection)
{
	static struct answer a;
	int fds[2000], n = 0, fd = client();

	while (n < 2000 && (fds[n] = dup(fd)) >= 0)
		n++;
	ck_assert_int_lt(n, 2000);
	say(fd, REQUEST("/1"));
	settle();
	ck_assert_int_eq(seen.requests, 0);
	while (n > 0)
		close(fds[--n]);
	hear(fd, &a, "\r\n\r\n1");
	close(fd);
}
END_TEST

static void setup_few_descriptors(void)
{
	struct rlimit few = {200, 200};

	setup();
	setrlimit(RLIMIT_NOFILE, &few);
}

START_TEST(destroying_the_server_tells_every_open_exchange)
{
	int fd1 = client(), fd2 = client();

	say(fd1, REQUEST("/wait"));
	until(seen.requests == 1);
	unserve();
	ck_assert_int_eq(seen.gone, 1);
	serve(on_request); /* for the teardown */
	close(fd1);
	close(fd2);
}
END_TEST

START_TEST(a_unix_socket_is_served_too)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	static struct answer a;
	struct err e;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), peer = socket(AF_UNIX, SOCK_STREAM, 0);
	socklen_t len = sizeof un;

	ck_assert_int_eq(bind(fd, (struct sockaddr *)&un, sizeof un.sun_family), 0);
	ck_assert_int_eq(listen(fd, 1), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&un, &len), 0);
	ck_assert_int_eq(http_server_listen(server, fd, &e), 0);
	ck_assert_int_eq(connect(peer, (struct sockaddr *)&un, len), 0);
	fcntl(peer, F_SETFL, O_NONBLOCK);
	say(peer, REQUEST("/1"));
	hear(peer, &a, "\r\n\r\n1");
	say(peer, UPLOAD("/pause") "3\r\nab");
	until(seen.requests == 2);
	ck_assert_str_eq(http_peer(seen.x), "unix");
	close(peer);
	until(seen.gone == 1);
}
END_TEST

int main(void)
{
	TCase *t = new_case("http_server", setup, unserve);
	tcase_add_test(t, head_has_the_length_but_no_body);
	tcase_add_test(t, http_1_0_is_answered_and_closed);
	tcase_add_test(t, http_1_0_keep_alive_is_kept);
	tcase_add_test(t, a_stream_to_http_1_0_ends_with_the_connection);
	tcase_add_test(t, a_broken_off_stream_to_http_1_0_is_a_reset);
	tcase_add_test(t, a_stream_is_chunked_and_leaves_the_connection_usable);
	tcase_add_test(t, a_broken_off_chunked_stream_lacks_its_last_chunk);
	tcase_add_test(t, headers_of_the_owner_are_sent);
	tcase_add_test(t, connection_close_is_honoured);
	tcase_add_test(t, a_thousand_pipelined_requests_are_answered_in_order);
	tcase_add_test(t, requests_pipelined_behind_a_pending_one_wait_for_it);
	tcase_add_test(t, much_that_is_pipelined_behind_a_pending_request_waits_for_it);
	tcase_add_loop_test(t, one_who_pipelines_much_and_goes_is_gone, 0, 2);
	tcase_add_test(t, a_reader_who_pipelines_and_does_not_read_is_held_up_not_buffered);
	tcase_add_test(t, draining_closes_idle_connections_and_finishes_the_others);
	tcase_add_test(t, a_full_server_drops_the_longest_idle_and_else_lets_wait);
	tcase_add_test(t, destroying_the_server_tells_every_open_exchange);
	tcase_add_test(t, a_unix_socket_is_served_too);
	TCase *few = new_case("few descriptors", setup_few_descriptors, unserve);
	tcase_add_test(few, running_out_of_descriptors_only_delays_a_connection);
	return run_suite("http_server", t, few) != 0;
}
