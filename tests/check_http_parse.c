/* What the server refuses and what it takes, byte by byte and all at once. */
#include "tests/http_fixture.h"

#include "proto/limits.h"

static void on_body(struct http_exchange *x, char *data, size_t len, void *owner)
{
	(void)owner;
	seen.bodies++;
	http_reply(x, 200, "text/plain", data, len);
}

static void on_echo(struct http_exchange *x, void *arg)
{
	(void)arg;
	seen.requests++;
	snprintf(seen.path, sizeof seen.path, "%s", http_path(x));
	http_collect(x, 1000, on_body, NULL);
}

static void setup_echo(void)
{
	serve(on_echo);
}

#define GET "GET / HTTP/1.1\r\n"
#define POST "POST / HTTP/1.1\r\nHost: x\r\n"
#define HOST "Host: x\r\n"

static const struct {
	const char *request;
	int status;
} malformed[] = {
    {POST "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
    {POST "Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n", 400},
    {POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n", 400},
    {POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
    {POST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
    {POST "Content-Length: 3, 3\r\n\r\nabc", 400},
    {POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
    {POST "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding: gzip\r\n\r\n", 400},
    {POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n", 400},
    {GET HOST "A: b\rC: d\r\n\r\n", 400},
    {GET HOST "A: b\r\n folded\r\n\r\n", 400},
    {GET HOST "A: b\r\n\tfolded\r\n\r\n", 400},
    {GET HOST "A:\r\n folded\r\n\r\n", 400},
    {GET HOST "\rX", 400},
    {GET "Host : x\r\n\r\n", 400},
    {POST "Content-Length : 3\r\n\r\nabc", 400},
    {POST " Content-Length: 3\r\n\r\nabc", 400},
    {POST "Content-Length: +3\r\n\r\nabc", 400},
    {POST "Content-Length: -3\r\n\r\nabc", 400},
    {POST "Content-Length: 3x\r\n\r\nabc", 400},
    {POST "Content-Length: 0x3\r\n\r\nabc", 400},
    {POST "Content-Length: 1 2\r\n\r\nabc", 400},
    {POST "Content-Length:\r\n\r\nabc", 400},
    {POST "Content-Length: 99999999999999999999\r\n\r\nabc", 400},
    {GET HOST ": nameless\r\n\r\n", 400},
    {GET HOST "no colon\r\n\r\n", 400},
    {GET HOST "A(: b\r\n\r\n", 400},
    {"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"G\x01T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"\x16\x03\x01\x02\x01\x01", 400}, /* TLS */
    {"GET / HTTP/0.9\r\nHost: x\r\n\r\n", 400},
    {"GET /\r\n\r\n", 400},
    {"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 400},
    {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
    {"GET / JUNK/1.1\r\nHost: x\r\n\r\n", 400},
    {GET "\r\n", 400},
    {GET HOST HOST "\r\n", 400},
    {GET HOST "Host: y\r\n\r\n", 400},
    {"GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET /a%2 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET /a%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET /a?b=%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET /a?b=%2&cc HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET /a\x80 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {POST "Content-Length: 3\r\nExpect: miracles\r\n\r\nabc", 417},
    {POST "Content-Length: 1001\r\n\r\n", 413},
};

static void assert_refused(struct answer *a, int status)
{
	assert_status(a, status);
	ck_assert(strstr(a->text, "\r\nConnection: close\r\n") != NULL);
	ck_assert(strstr(a->text, "{\"refused\":") != NULL);
	ck_assert(!a->reset);
	ck_assert_uint_eq(occurrences(a->text, "HTTP/1.1 "), 1);
	ck_assert_int_eq(seen.bodies, 0);
}

START_TEST(malformed_is_refused_once_and_closed)
{
	static struct answer a;
	int fd = client();

	say(fd, malformed[_i].request);
	say(fd, "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
	hear_all(fd, &a);
	assert_refused(&a, malformed[_i].status);
	ck_assert_str_ne(seen.path, "/smuggled");
	close(fd);
}
END_TEST

START_TEST(malformed_is_refused_when_it_comes_byte_by_byte)
{
	struct http_parse p;
	enum http_event event = HTTP_EV_MORE;
	const char *s = malformed[_i].request;

	if (malformed[_i].status != 400)
		return;
	http_parse_init(&p);
	while (event != HTTP_EV_BAD && *s) {
		size_t used;

		event = http_parse_feed(&p, s, 1, &used);
		ck_assert_int_ne(event, HTTP_EV_DONE);
		s += used;
	}
	ck_assert_int_eq(event, HTTP_EV_BAD);
	ck_assert_int_eq(p.status, 400);
	http_parse_free(&p);
}
END_TEST

START_TEST(a_nul_in_a_header_is_refused)
{
	static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n";
	static struct answer a;
	int fd = client();

	say_n(fd, request, sizeof request - 1);
	hear_all(fd, &a);
	assert_refused(&a, 400);
	close(fd);
}
END_TEST

/* ---- size limits ---- */

static void assert_oversized(const char *head, char filler, size_t n, int status)
{
	static struct answer a;
	char *text = malloc(n);
	int fd = client();

	memset(text, filler, n);
	say(fd, head);
	say_n(fd, text, n);
	hear_all(fd, &a);
	assert_refused(&a, status);
	close(fd);
	free(text);
}

START_TEST(a_long_request_line_is_431)
{
	assert_oversized("GET /", 'a', HTTP_HEAD_MAX, 431);
}
END_TEST

START_TEST(a_long_header_is_431)
{
	assert_oversized(GET HOST "A: ", 'a', HTTP_HEAD_MAX, 431);
}
END_TEST

START_TEST(endless_empty_lines_are_431)
{
	assert_oversized("", '\n', HTTP_HEAD_MAX + 1, 431);
}
END_TEST

START_TEST(a_long_chunk_extension_is_413)
{
	assert_oversized(POST "Transfer-Encoding: chunked\r\n\r\n1;x=", 'a',
	                 HTTP_CHUNK_EXT_MAX + 1, 413);
}
END_TEST

START_TEST(a_chunk_size_of_endless_zeros_is_413)
{
	assert_oversized(POST "Transfer-Encoding: chunked\r\n\r\n", '0', HTTP_CHUNK_EXT_MAX + 1,
	                 413);
}
END_TEST

START_TEST(long_trailers_are_413)
{
	assert_oversized(POST "Transfer-Encoding: chunked\r\n\r\n0\r\nA: ", 'a',
	                 HTTP_CHUNK_EXT_MAX + 1, 413);
}
END_TEST

START_TEST(too_many_headers_are_431)
{
	static struct answer a;
	int fd = client();

	say(fd, GET HOST);
	for (int i = 0; i < HTTP_HEADERS_MAX; i++)
		say(fd, "A: b\r\n");
	say(fd, "\r\n");
	hear_all(fd, &a);
	assert_refused(&a, 431);
	close(fd);
}
END_TEST

START_TEST(a_body_of_many_small_chunks_is_taken)
{
	static struct answer a;
	int fd = client();

	say(fd, POST "Transfer-Encoding: chunked\r\n\r\n");
	for (int i = 0; i < 1000; i++)
		say(fd, "1\r\nx\r\n");
	say(fd, "0\r\nTrailer: ignored\r\n\r\n");
	hear(fd, &a, "Content-Length: 1000\r\n");
	close(fd);
}
END_TEST

START_TEST(a_chunked_body_over_the_limit_is_413)
{
	static struct answer a;
	int fd = client();

	say(fd, POST "Transfer-Encoding: chunked\r\n\r\n");
	for (int i = 0; i < 1001; i++)
		say(fd, "1\r\nx\r\n");
	hear_all(fd, &a);
	assert_refused(&a, 413);
	close(fd);
}
END_TEST

/* ---- what a well-formed request says ---- */

static void on_inspect(struct http_exchange *x, void *arg)
{
	(void)arg;
	seen.requests++;
	ck_assert_str_eq(http_path(x), "/a b/é+");
	ck_assert_int_eq(http_method(x), HTTP_M_PATCH);
	ck_assert_str_eq(http_method_name(x), "PATCH");
	ck_assert_str_eq(http_query(x, "k"), "v w&x");
	ck_assert_str_eq(http_query(x, "flag"), "");
	ck_assert_str_eq(http_query(x, "e"), "a=b");
	ck_assert(http_query(x, "absent") == NULL);
	ck_assert_str_eq(http_query_key(x, 0), "k");
	ck_assert_str_eq(http_query_key(x, 1), "flag");
	ck_assert_str_eq(http_query_key(x, 2), "e");
	ck_assert(http_query_key(x, 3) == NULL);
	ck_assert_str_eq(http_header(x, "x-one"), "a b");
	ck_assert_str_eq(http_header(x, "x-empty"), "");
	ck_assert_str_eq(http_header(x, "x-two"), "1, 2");
	ck_assert(http_header(x, "x-none") == NULL);
	ck_assert(strncmp(http_peer(x), "127.0.0.1:", 10) == 0);
	http_reply(x, 204, NULL, NULL, 0);
}

static void setup_inspect(void)
{
	serve(on_inspect);
}

static const char *const inspected[] = {"", "http://x:80", "HTTPS://x"};

START_TEST(target_and_headers_are_decoded_in_origin_and_absolute_form)
{
	static struct answer a;
	char line[200];
	int fd = client();

	snprintf(line, sizeof line,
	         "PATCH %s/a%%20b/%%c3%%A9+?k=v+w%%26x&&flag&e=a=b HTTP/1.1\r\n",
	         inspected[_i]);
	say(fd, "\r\n\r\n");
	say(fd, line);
	say(fd, "Host: x\r\nX-One: \t a b \t\r\nX-EMPTY:\r\nX-Two: 1\r\nx-two: 2\r\n"
	        "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n");
	hear(fd, &a, "\r\n\r\n");
	ck_assert_int_eq(strncmp(a.text, "HTTP/1.1 204 No Content\r\n", 25), 0);
	ck_assert(strstr(a.text, "Content-Length") == NULL);
	ck_assert_int_eq(seen.requests, 1);
	close(fd);
}
END_TEST

int main(void)
{
	int n = sizeof malformed / sizeof *malformed;
	TCase *parser = new_case("parser", NULL, NULL);
	tcase_add_loop_test(parser, malformed_is_refused_when_it_comes_byte_by_byte, 0, n);
	TCase *t = new_case("server", setup_echo, unserve);
	tcase_add_loop_test(t, malformed_is_refused_once_and_closed, 0, n);
	tcase_add_test(t, a_nul_in_a_header_is_refused);
	tcase_add_test(t, a_long_request_line_is_431);
	tcase_add_test(t, a_long_header_is_431);
	tcase_add_test(t, endless_empty_lines_are_431);
	tcase_add_test(t, a_long_chunk_extension_is_413);
	tcase_add_test(t, a_chunk_size_of_endless_zeros_is_413);
	tcase_add_test(t, long_trailers_are_413);
	tcase_add_test(t, too_many_headers_are_431);
	tcase_add_test(t, a_body_of_many_small_chunks_is_taken);
	tcase_add_test(t, a_chunked_body_over_the_limit_is_413);
	TCase *inspect = new_case("inspect", setup_inspect, unserve);
	tcase_add_loop_test(inspect, target_and_headers_are_decoded_in_origin_and_absolute_form,
	                    0, 3);
	return run_suite("http_parse", parser, t, inspect) != 0;
}
