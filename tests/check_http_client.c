/* Clients that go, stall or trickle: each is noticed, whatever state it is in. */
#include "tests/http_server_fixture.h"

/* ---- a client that goes ---- */

static const char *const states[] = {
    REQUEST("/wait"),
    REQUEST("/begin"),
    REQUEST("/wait") REQUEST("/1"),
    UPLOAD("/collect") "3\r\nab",
    UPLOAD("/stream") "3\r\nab",
    UPLOAD("/pause") "3\r\nab",
    UPLOAD("/pause") "3\r\nabc\r\n3\r\nunread",
};

static void assert_goes(bool by_reset)
{
	for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
		int fd = pending(states[i]);

		settle();
		ck_assert_int_eq(seen.gone, 0);
		if (by_reset)
			reset(fd);
		else
			shutdown(fd, SHUT_WR);
		until(seen.gone == 1);
		ck_assert_uint_eq(http_server_connections(server), 0);
		ck_assert_uint_eq(http_server_exchanges(server), 0);
		if (!by_reset)
			close(fd);
		seen.gone = 0;
	}
}

START_TEST(a_fin_is_noticed_in_every_state)
{
	assert_goes(false);
}
END_TEST

START_TEST(a_reset_is_noticed_in_every_state)
{
	assert_goes(true);
}
END_TEST

START_TEST(a_reset_is_noticed_behind_a_full_window)
{
	int fd = pending(UPLOAD("/pause") "7fffffff\r\n");

	flood(fd, block, sizeof block);
	reset(fd);
	until(seen.gone == 1);
}
END_TEST

START_TEST(a_client_that_goes_while_output_is_blocked_is_noticed)
{
	int fd = pending(REQUEST("/begin"));

	while (LIST_FIRST(&server->conns)->out.len < 2 * HTTP_HIGH_WATER) {
		http_write(seen.x, block, sizeof block);
		turn();
	}
	ck_assert_int_eq(seen.gone, 0);
	close(fd);
	until(seen.gone == 1);
}
END_TEST

START_TEST(a_half_closing_client_still_gets_what_was_answered)
{
	static struct answer a;
	int fd = client();

	say(fd, REQUEST("/1") REQUEST("/2"));
	shutdown(fd, SHUT_WR);
	hear_all(fd, &a);
	ck_assert(strstr(a.text, "\r\n\r\n2") != NULL && !a.reset);
	close(fd);
}
END_TEST

/* ---- deadlines ---- */

static void shorten(enum http_deadline kind, double seconds)
{
	server->due[kind].seconds = seconds;
}

/* A byte every 10 ms, until the server has had enough. */
static void trickle(int fd, struct answer *a)
{
	ev_tstamp start = ev_time();

	for (int sent = 0; !a->closed; hear_some(fd, a)) {
		ck_assert(ev_time() - start < PATIENCE_S);
		if (ev_time() - start > sent * 0.01)
			sent += send(fd, "a", 1, MSG_NOSIGNAL) == 1;
	}
}

START_TEST(a_slow_head_is_408_however_it_trickles)
{
	static struct answer a;
	int fd = client();

	shorten(HTTP_D_HEAD, 0.2);
	say(fd, "GET / HTTP/1.1\r\nA: ");
	trickle(fd, &a);
	assert_status(&a, 408);
	ck_assert_int_eq(seen.requests, 0);
	close(fd);
}
END_TEST

START_TEST(a_slow_body_is_408_and_its_owner_is_told)
{
	static struct answer a;
	int fd = client();

	shorten(HTTP_D_BODY, 0.2);
	say(fd, "POST /collect HTTP/1.1\r\n" HOST "Content-Length: 50000\r\n\r\n");
	trickle(fd, &a);
	assert_status(&a, 408);
	ck_assert_int_eq(seen.gone, 1);
	close(fd);
}
END_TEST

START_TEST(a_body_above_the_minimum_rate_may_take_many_windows)
{
	static struct answer a;
	ev_tstamp start = ev_time();
	int fd = client();

	shorten(HTTP_D_BODY, 0.3);
	say(fd, "POST /collect HTTP/1.1\r\n" HOST "Content-Length: 100000\r\n\r\n");
	for (size_t sent = 0; sent < 100000;) {
		/* 50 kB/s on the clock, whatever a turn takes */
		size_t due = (size_t)((ev_time() - start) * 50000.0);

		if (due > 100000)
			due = 100000;
		if (due > sent)
			sent += (size_t)send(fd, block, due - sent, MSG_NOSIGNAL);
		turn();
	}
	hear(fd, &a, "HTTP/1.1 200 ");
	close(fd);
}
END_TEST

START_TEST(a_streamed_body_may_be_slow)
{
	int fd = client();

	shorten(HTTP_D_BODY, 0.02);
	say(fd, UPLOAD("/stream") "5\r\n");
	for (int i = 0; i < 10; i++)
		turn();
	say(fd, "abcde\r\n0\r\n\r\n");
	until(seen.bodies == 1);
	close(fd);
}
END_TEST

START_TEST(a_pause_that_lasts_is_given_up)
{
	static struct answer a;
	int fd = client();

	shorten(HTTP_D_PAUSE, 0.05);
	say(fd, UPLOAD("/pause") "3\r\nab");
	hear_all(fd, &a);
	assert_status(&a, 408);
	ck_assert_int_eq(seen.gone, 1);
	close(fd);
}
END_TEST

START_TEST(an_idle_connection_is_closed)
{
	static struct answer a;
	int fd = client();

	shorten(HTTP_D_IDLE, 0.2);
	say(fd, REQUEST("/1"));
	hear_all(fd, &a);
	ck_assert_uint_eq(occurrences(a.text, "HTTP/1.1 "), 1);
	close(fd);
}
END_TEST

START_TEST(a_pending_request_has_no_deadline)
{
	int fd = client();

	for (int i = 0; i < HTTP_D_COUNT; i++)
		shorten(i, 0.1);
	say(fd, REQUEST("/begin"));
	for (int i = 0; i < 20; i++)
		turn();
	ck_assert_int_eq(seen.gone, 0);
	ck_assert_uint_eq(http_server_exchanges(server), 1);
	close(fd);
}
END_TEST

START_TEST(a_peer_that_takes_no_byte_is_gone)
{
	int fd;

	shorten(HTTP_D_STALL, 0.2);
	fd = pending(REQUEST("/begin"));
	while (http_write(seen.x, block, sizeof block))
		turn();
	until(seen.gone == 1);
	close(fd);
}
END_TEST

START_TEST(lingering_ends)
{
	static struct answer a;
	int fd = client();

	shorten(HTTP_D_LINGER, 0.05);
	say(fd, "BAD\r\n\r\n");
	hear_all(fd, &a); /* our side stays open */
	until(http_server_connections(server) == 0);
	close(fd);
}
END_TEST

int main(void)
{
	TCase *t = new_case("http_client", setup, unserve);
	tcase_add_test(t, a_fin_is_noticed_in_every_state);
	tcase_add_test(t, a_reset_is_noticed_in_every_state);
	tcase_add_test(t, a_reset_is_noticed_behind_a_full_window);
	tcase_add_test(t, a_client_that_goes_while_output_is_blocked_is_noticed);
	tcase_add_test(t, a_half_closing_client_still_gets_what_was_answered);
	tcase_add_test(t, a_slow_head_is_408_however_it_trickles);
	tcase_add_test(t, a_slow_body_is_408_and_its_owner_is_told);
	tcase_add_test(t, a_body_above_the_minimum_rate_may_take_many_windows);
	tcase_add_test(t, a_streamed_body_may_be_slow);
	tcase_add_test(t, a_pause_that_lasts_is_given_up);
	tcase_add_test(t, an_idle_connection_is_closed);
	tcase_add_test(t, a_pending_request_has_no_deadline);
	tcase_add_test(t, a_peer_that_takes_no_byte_is_gone);
	tcase_add_test(t, lingering_ends);
	return run_suite("http_client", t) != 0;
}
