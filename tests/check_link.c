/* Links while they are made: handshakes cut short, an Open that may have arrived, spares, and
 * those that wait in line for one. */
#include "tests/link_fixture.h"

START_TEST(handshake_cut_at_any_byte_is_tried_again)
{
	static const char ok[] = "OK 1073741824\n";
	for (size_t n = 0; n < sizeof(ok) - 1; n++) {
		struct link *l = create(5000);
		int first = accept_now();
		take_connect(first);
		if (n > 0)
			say(first, ok, n);
		settle();
		ck_assert(!link_is_ready(l));
		close(first);
		int second = accept_now();
		take_connect(second);
		say(second, ok, sizeof(ok) - 1);
		UNTIL(link_is_ready(l));
		link_destroy(l, false);
		close(second);
	}
}
END_TEST

START_TEST(handshake_may_arrive_byte_by_byte)
{
	static const char ok[] = "OK 7\n";
	struct link *l = create(5000);
	int fd = accept_now();
	take_connect(fd);
	for (size_t i = 0; i < sizeof(ok) - 1; i++) {
		ck_assert(!link_is_ready(l));
		say(fd, ok + i, 1);
		settle();
	}
	ck_assert(link_is_ready(l));
	link_destroy(l, false);
	close(fd);
}
END_TEST

START_TEST(what_answers_but_speaks_no_handshake_is_a_protocol_error)
{
	static const char *const lines[] = {
	    "HTTP/1.1 400\n", "OK\n",   "OK \n",
	    "OK x\n",         "ok 1\n", "OK 11111111111111111111111111111111111\n"};
	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
		heard.closed = 0;
		open_ping(create(5000), 5000);
		int fd = accept_now();
		take_connect(fd);
		say(fd, lines[i], strlen(lines[i]));
		UNTIL(heard.closed);
		ck_assert_int_eq(heard.why.code, ERR_PROTOCOL);
		ck_assert(!heard.sent);
		close(fd);
	}
}
END_TEST

START_TEST(bytes_behind_the_handshake_are_not_lost)
{
	uint8_t wire[128];
	size_t n = 5;
	memcpy(wire, "OK 3\n", 5);
	n += pack_refused(wire + n, ERR_QUOTA_EXCEEDED, "too\nmany");
	for (size_t cut = 5; cut <= n; cut++) {
		heard.closed = 0;
		struct link *l = create(5000);
		open_ping(l, 5000);
		int fd = accept_now();
		take_connect(fd);
		say(fd, wire, cut);
		settle();
		if (cut < n)
			say(fd, wire + cut, n - cut);
		UNTIL(heard.closed);
		ck_assert_int_eq(heard.why.code, ERR_QUOTA_EXCEEDED);
		ck_assert_str_eq(heard.why.msg, "too?many");
		ck_assert(heard.had_refused);
		close(fd);
	}
}
END_TEST

START_TEST(guest_that_never_answers_the_handshake_is_unreachable)
{
	open_ping(create(60), 5000);
	int fd = accept_now();
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_UNREACHABLE);
	ck_assert(!heard.sent);
	close(fd);
}
END_TEST

START_TEST(missing_socket_is_unreachable_after_the_deadline)
{
	strcat(here.path, "x");
	open_ping(create(60), 5000);
	UNTIL(heard.closed);
	here.path[strlen(here.path) - 1] = '\0';
	ck_assert_int_eq(heard.why.code, ERR_UNREACHABLE);
	ck_assert(!heard.sent);
}
END_TEST

START_TEST(agent_that_never_says_opened_times_out)
{
	here.kind = TRANSPORT_UNIX;
	open_ping(create(5000), 60);
	int fd = accept_now();
	take_open(fd);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_TIMEOUT);
	ck_assert(heard.sent);
	close(fd);
}
END_TEST

START_TEST(open_that_may_have_arrived_is_not_sent_again)
{
	here.kind = TRANSPORT_UNIX;
	open_ping(create(5000), 5000);
	int fd = accept_now();
	take_open(fd);
	close(fd);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_SANDBOX_LOST);
	ck_assert(heard.sent);
	settle();
	ck_assert_int_lt(accept(listener, NULL, NULL), 0);
}
END_TEST

static void open_insisting(unsigned deadline_ms)
{
	here.kind = TRANSPORT_UNIX;
	struct link *l = create(5000);
	link_insist(l);
	open_ping(l, deadline_ms);
}

START_TEST(link_that_insists_sends_its_open_again_until_it_is_answered)
{
	uint8_t wire[64];
	open_insisting(5000);
	for (int i = 0; i < 3; i++) {
		int lost = accept_now();
		take_open(lost);
		close(lost);
	}
	int silent = accept_now(), fd;
	take_open(silent);
	fd = accept_now();
	take_open(fd);
	say(fd, wire, pack_opened(wire, PROTOCOL_VERSION));
	UNTIL(heard.opened);
	ck_assert_int_eq(heard.closed, 0);
	close(fd);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_SANDBOX_LOST);
	settle();
	ck_assert_int_lt(accept(listener, NULL, NULL), 0);
	close(silent);
}
END_TEST

START_TEST(link_that_insists_gives_up_at_its_deadline)
{
	open_insisting(60);
	int fd = accept_now();
	take_open(fd);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_TIMEOUT);
	ck_assert(heard.sent);
	close(fd);
}
END_TEST

START_TEST(dead_spare_is_replaced_without_a_word)
{
	uint8_t wire[64];
	here.kind = TRANSPORT_UNIX;
	struct link *l = create(5000);
	link_watch(l, on_end, NULL);
	int fd = accept_now();
	UNTIL(link_is_ready(l));
	close(fd);
	UNTIL(heard.ended);
	ck_assert(!link_is_ready(l));
	open_ping(l, 5000);
	fd = accept_now();
	take_open(fd);
	say(fd, wire, pack_opened(wire, PROTOCOL_VERSION));
	UNTIL(heard.opened);
	link_destroy(l, false);
	close(fd);
}
END_TEST

/* The hang-up is there, but the loop has not seen it when the spare is taken. */
START_TEST(spare_that_dies_as_it_is_taken_is_replaced_without_a_word)
{
	here.kind = TRANSPORT_UNIX;
	struct link *l = create(5000);
	int fd = accept_now();
	UNTIL(link_is_ready(l));
	close(fd);
	open_ping(l, 5000);
	fd = accept_now();
	take_open(fd);
	ck_assert_int_eq(heard.closed, 0);
	link_destroy(l, false);
	close(fd);
}
END_TEST

START_TEST(spare_that_speaks_is_no_spare)
{
	uint8_t wire[64];
	here.kind = TRANSPORT_UNIX;
	struct link *l = create(5000);
	link_watch(l, on_end, NULL);
	int fd = accept_now();
	UNTIL(link_is_ready(l));
	say(fd, wire, pack_opened(wire, PROTOCOL_VERSION));
	UNTIL(heard.ended);
	link_destroy(l, false);
	close(fd);
}
END_TEST

/* A gate with so many links in it, of which `last` is one. */
static void fill(struct link_gate *g, struct link_pass *last, unsigned count)
{
	link_gate_init(g);
	g->connected = count - 1;
	*last = (struct link_pass){.gate = g, .urgent = true};
	ck_assert(link_pass_enter(last));
	link_pass_opened(last);
}

static int accept_if_any(void)
{
	settle();
	return accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

START_TEST(link_waits_in_line_until_another_has_left)
{
	struct err e = {0};
	struct link_gate g;
	struct link_pass last;
	here.kind = TRANSPORT_UNIX;
	fill(&g, &last, LINKS_MAX);
	struct link *l = link_create_behind(&g, true, loop, &here, 5000, &e);
	open_ping(l, 5000);
	ck_assert_int_lt(accept_if_any(), 0);
	link_pass_leave(&last);
	int fd = accept_if_any(); /* at once, not at its next look */
	ck_assert_int_ge(fd, 0);
	take_open(fd);
	ck_assert_uint_eq(g.connected, LINKS_MAX);
	link_destroy(l, _i == 1); /* who lingers has left */
	ck_assert(g.connected == LINKS_MAX - 1 && g.opening == 0);
	close(fd);
	settle();
}
END_TEST

START_TEST(link_that_is_destroyed_in_line_takes_nobodys_turn)
{
	struct err e = {0};
	struct link_gate g;
	struct link_pass last;
	here.kind = TRANSPORT_UNIX;
	fill(&g, &last, LINKS_MAX);
	struct link *first = link_create_behind(&g, true, loop, &here, 5000, &e);
	struct link *second = link_create_behind(&g, true, loop, &here, 5000, &e);
	link_destroy(first, false);
	link_pass_leave(&last);
	int fd = accept_if_any();
	ck_assert_int_ge(fd, 0);
	link_destroy(second, false);
	ck_assert_uint_eq(g.connected, LINKS_MAX - 1);
	close(fd);
}
END_TEST

START_TEST(link_that_finds_no_room_says_so)
{
	struct err e = {0};
	struct link_gate g;
	struct link_pass last;
	here.kind = TRANSPORT_UNIX;
	fill(&g, &last, LINKS_MAX - LINKS_RESERVED);
	open_ping(link_create_behind(&g, false, loop, &here, 50, &e), 50);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_QUOTA_EXCEEDED);
	ck_assert(!heard.sent && g.connected == LINKS_MAX - LINKS_RESERVED);
}
END_TEST

START_TEST(link_waits_longer_where_others_are_only_being_opened)
{
	struct err e = {0};
	struct link_gate g;
	struct link_pass last;
	here.kind = TRANSPORT_UNIX;
	fill(&g, &last, 1);
	g.opening = LINKS_OPENING_MAX;
	struct link *l = link_create_behind(&g, false, loop, &here, 20, &e);
	open_ping(l, 5000);
	pass(0.06); /* longer than its deadline */
	ck_assert_int_eq(heard.closed, 0);
	g.opening--;
	link_pass_leave(&last);
	int fd = accept_if_any();
	take_open(fd);
	link_destroy(l, false);
	close(fd);
}
END_TEST

/* Before it has accepted, answered, or a second time: the time that the guest stood still is
 * added, and no more. */
START_TEST(guest_that_stands_still_is_waited_for)
{
	struct err e = {0};
	struct link_gate g;
	struct link_pass last;
	uint8_t wire[128];
	here.kind = _i == 0 ? TRANSPORT_HYBRID : TRANSPORT_UNIX;
	fill(&g, &last, 1);
	struct link *l = link_create_behind(&g, false, loop, &here, 150, &e);
	open_ping(l, 150);
	int fd = accept_if_any();
	if (_i > 0)
		take_open(fd);
	if (_i == 2) {
		say(fd, wire, pack_opened(wire, PROTOCOL_VERSION));
		UNTIL(heard.opened);
		link_expect(l, 150);
	}
	for (int n = 0; n < 2; n++) {
		link_gate_close(&g, NULL);
		pass(0.2);
		ck_assert_int_eq(heard.closed, 0);
		link_gate_open(&g);
		pass(0.03);
		ck_assert_int_eq(heard.closed, 0);
	}
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, _i == 0 ? ERR_UNREACHABLE : ERR_TIMEOUT);
	close(fd);
}
END_TEST

START_TEST(request_over_the_cap_is_refused_here)
{
	struct err e = {0};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Exec exec = SANDGATE__EXEC__INIT;
	here.kind = TRANSPORT_UNIX;
	struct link *l = create(5000);
	exec.stdin.len = FRAME_MAX_TO_GUEST;
	exec.stdin.data = calloc(1, exec.stdin.len);
	open.op_case = SANDGATE__OPEN__OP_EXEC;
	open.exec = &exec;
	ck_assert_int_lt(link_open(l, &open, 5000, &handlers, NULL, &e), 0);
	ck_assert_int_eq(e.code, ERR_TOO_LARGE);
	free(exec.stdin.data);
	link_destroy(l, false);
}
END_TEST

int main(void)
{
	TCase *t = new_case("link", setup, teardown);
	tcase_add_test(t, handshake_cut_at_any_byte_is_tried_again);
	tcase_add_test(t, handshake_may_arrive_byte_by_byte);
	tcase_add_test(t, what_answers_but_speaks_no_handshake_is_a_protocol_error);
	tcase_add_test(t, bytes_behind_the_handshake_are_not_lost);
	tcase_add_test(t, guest_that_never_answers_the_handshake_is_unreachable);
	tcase_add_test(t, missing_socket_is_unreachable_after_the_deadline);
	tcase_add_test(t, agent_that_never_says_opened_times_out);
	tcase_add_test(t, open_that_may_have_arrived_is_not_sent_again);
	tcase_add_test(t, link_that_insists_sends_its_open_again_until_it_is_answered);
	tcase_add_test(t, link_that_insists_gives_up_at_its_deadline);
	tcase_add_test(t, dead_spare_is_replaced_without_a_word);
	tcase_add_test(t, spare_that_dies_as_it_is_taken_is_replaced_without_a_word);
	tcase_add_test(t, spare_that_speaks_is_no_spare);
	tcase_add_loop_test(t, link_waits_in_line_until_another_has_left, 0, 2);
	tcase_add_test(t, link_that_is_destroyed_in_line_takes_nobodys_turn);
	tcase_add_test(t, link_that_finds_no_room_says_so);
	tcase_add_test(t, link_waits_longer_where_others_are_only_being_opened);
	tcase_add_loop_test(t, guest_that_stands_still_is_waited_for, 0, 3);
	tcase_add_test(t, request_over_the_cap_is_refused_here);
	return run_suite("link", t) != 0;
}
