/* Bodies, and back-pressure both ways. */
#include "tests/http_server_fixture.h"

/* ---- bodies ---- */

START_TEST(a_chunked_upload_is_collected)
{
	static struct answer a;
	int fd = client();

	say(fd, UPLOAD("/collect") "4\r\nWiki\r\n5;ext=1\r\npedia\r\n0\r\nT: x\r\n\r\n");
	hear(fd, &a, "\r\n\r\nWikipedia");
	close(fd);
}
END_TEST

START_TEST(a_large_upload_is_streamed)
{
	static struct answer a;
	int fd = client();

	say(fd, UPLOAD("/stream"));
	for (int i = 0; i < 64; i++) {
		say(fd, "10000\r\n");
		say_n(fd, block, sizeof block);
		say(fd, "\r\n");
	}
	say(fd, "0\r\n\r\n");
	hear(fd, &a, "HTTP/1.1 201 ");
	ck_assert_uint_eq(seen.data_len, 64 * sizeof block);
	close(fd);
}
END_TEST

START_TEST(a_paused_upload_gets_no_data_until_resumed)
{
	static struct answer a;
	int fd = client();

	say(fd, UPLOAD("/pause") "3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n");
	until(seen.data_len == 3);
	settle();
	ck_assert_uint_eq(seen.data_len, 3);
	http_stream_resume(seen.x);
	until(seen.data_len == 6);
	ck_assert_int_eq(seen.bodies, 0);
	http_stream_resume(seen.x);
	hear(fd, &a, "HTTP/1.1 201 ");
	close(fd);
}
END_TEST

START_TEST(a_paused_upload_holds_up_its_sender)
{
	int fd = pending(UPLOAD("/pause") "7fffffff\r\n");

	flood(fd, block, sizeof block);
	ck_assert_uint_le(LIST_FIRST(&server->conns)->in.len, HTTP_READAHEAD_MAX);
	close(fd);
}
END_TEST

START_TEST(continue_is_sent_when_the_body_is_wanted)
{
	static struct answer a;
	int fd = client();

	say(fd, "POST /collect HTTP/1.1\r\n" HOST
	        "Content-Length: 3\r\nExpect: 100-Continue\r\n\r\n");
	hear(fd, &a, "HTTP/1.1 100 Continue\r\n\r\n");
	say(fd, "abc");
	hear(fd, &a, "\r\n\r\nabc");
	close(fd);
}
END_TEST

START_TEST(continue_is_not_sent_before_a_refusal)
{
	static struct answer a;
	int fd = client();

	say(fd, "POST /collect HTTP/1.1\r\n" HOST
	        "Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n");
	hear_all(fd, &a);
	assert_status(&a, 413);
	ck_assert_int_eq(seen.gone, 1);
	close(fd);
}
END_TEST

START_TEST(a_small_unwanted_body_keeps_the_connection)
{
	static struct answer a;
	int fd = client();

	say(fd, "POST /1 HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\n");
	hear(fd, &a, "\r\n\r\n1");
	say(fd, "12345" REQUEST("/2"));
	hear(fd, &a, "\r\n\r\n2");
	close(fd);
}
END_TEST

START_TEST(a_large_unwanted_body_does_not_destroy_the_answer)
{
	static struct answer a;
	int fd = client();

	say(fd, "POST /1 HTTP/1.1\r\n" HOST "Content-Length: 8388608\r\n\r\n");
	for (int i = 0; i < 128; i++)
		ck_assert(say_n(fd, block, sizeof block));
	shutdown(fd, SHUT_WR);
	hear_all(fd, &a);
	ck_assert(!a.reset && strstr(a.text, "\r\n\r\n1") != NULL);
	ck_assert(strstr(a.text, "Connection: close\r\n") != NULL);
	until(http_server_connections(server) == 0);
	close(fd);
}
END_TEST

/* ---- back-pressure ---- */

START_TEST(a_slow_reader_stops_the_producer_and_room_starts_it_again)
{
	static struct answer a;
	int fd = pending(REQUEST("/begin")), writes = 0;

	while (http_write(seen.x, block, sizeof block)) {
		ck_assert_int_lt(++writes, 1000);
		turn();
	}
	ck_assert(!http_write(seen.x, "x", 1));
	ck_assert_uint_lt(http_unsent(seen.x), HTTP_HIGH_WATER + 3 * sizeof block);
	settle();
	ck_assert_int_eq(seen.rooms, 0);
	while (seen.rooms == 0) {
		hear_some(fd, &a);
		ck_assert(!a.closed);
		a.len = 0;
	}
	ck_assert_int_eq(seen.rooms, 1);
	ck_assert(http_write(seen.x, "y", 1));
	http_end(seen.x);
	close(fd);
}
END_TEST

START_TEST(writes_of_one_turn_leave_in_one_send)
{
	static struct answer a;
	int fd = client();

	say(fd, REQUEST("/begin"));
	hear(fd, &a, "\r\n\r\n");
	for (int i = 0; i < 100; i++)
		http_write(seen.x, "data: {}\n\n", 10);
	ck_assert_int_lt(recv(fd, a.text, sizeof a.text, 0), 0); /* nothing yet */
	turn();
	ck_assert_int_eq(recv(fd, a.text, sizeof a.text, 0), 100 * 15);
	close(fd);
}
END_TEST

int main(void)
{
	TCase *t = new_case("http_body", setup, unserve);
	tcase_add_test(t, a_chunked_upload_is_collected);
	tcase_add_test(t, a_large_upload_is_streamed);
	tcase_add_test(t, a_paused_upload_gets_no_data_until_resumed);
	tcase_add_test(t, a_paused_upload_holds_up_its_sender);
	tcase_add_test(t, continue_is_sent_when_the_body_is_wanted);
	tcase_add_test(t, continue_is_not_sent_before_a_refusal);
	tcase_add_test(t, a_small_unwanted_body_keeps_the_connection);
	tcase_add_test(t, a_large_unwanted_body_does_not_destroy_the_answer);
	tcase_add_test(t, a_slow_reader_stops_the_producer_and_room_starts_it_again);
	tcase_add_test(t, writes_of_one_turn_leave_in_one_send);
	return run_suite("http_body", t) != 0;
}
