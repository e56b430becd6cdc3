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
	open_ping(create(5000), 300);
	int fd = accept_open();
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
	int fd = accept_open();
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
	open_insisting(5000);
	for (int i = 0; i < 3; i++) {
		int lost = accept_open();
		close(lost);
	}
	int silent = accept_open();
	int fd = accept_open();
	say_opened(fd);
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
	open_insisting(300);
	int fd = accept_open();
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_TIMEOUT);
	ck_assert(heard.sent);
	close(fd);
}
END_TEST

/* A link that nobody has opened yet, and the agent's end of it. */
static struct link *spare(int *fd)
{
	here.kind = TRANSPORT_UNIX;
	struct link *l = create(5000);
	*fd = accept_now();
	UNTIL(link_is_ready(l));
	return l;
}

START_TEST(dead_spare_is_replaced_without_a_word)
{
	int fd;
	struct link *l = spare(&fd);
	link_watch(l, on_end, NULL);
	close(fd);
	UNTIL(heard.ended);
	ck_assert(!link_is_ready(l));
	open_ping(l, 5000);
	fd = accept_open();
	say_opened(fd);
	UNTIL(heard.opened);
	link_destroy(l, false);
	close(fd);
}
END_TEST

/* The hang-up is there, but the loop has not seen it when the spare is taken. */
START_TEST(spare_that_dies_as_it_is_taken_is_replaced_without_a_word)
{
	int fd;
	struct link *l = spare(&fd);
	close(fd);
	open_ping(l, 5000);
	fd = accept_open();
	ck_assert_int_eq(heard.closed, 0);
	link_destroy(l, false);
	close(fd);
}
END_TEST

START_TEST(spare_that_speaks_is_no_spare)
{
	int fd;
	struct link *l = spare(&fd);
	link_watch(l, on_end, NULL);
	say_opened(fd);
	UNTIL(heard.ended);
	link_destroy(l, false);
	close(fd);
}
END_TEST

static struct link_gate gate;
static struct link_pass last; /* of those that are in it */

/* A gate with so many links in it. */
static void fill(unsigned count)
{
	here.kind = TRANSPORT_UNIX;
	link_gate_init(&gate);
	gate.connected = count - 1;
	last = (struct link_pass){.gate = &gate, .urgent = true};
	ck_assert(link_pass_enter(&last));
	link_pass_opened(&last);
}

static struct link *create_behind(bool urgent, unsigned deadline_ms)
{
	struct err e = {0};
	struct link *l = link_create_behind(&gate, urgent, loop, &here, deadline_ms, &e);
	ck_assert_msg(l != NULL, "%s", e.msg);
	return l;
}

static int accept_if_any(void)
{
	settle();
	return accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

START_TEST(link_waits_in_line_until_another_has_left)
{
	fill(LINKS_MAX);
	struct link *l = create_behind(true, 5000);
	open_ping(l, 5000);
	ck_assert_int_lt(accept_if_any(), 0);
	link_pass_leave(&last);
	int fd = accept_if_any(); /* at once, not at its next look */
	ck_assert_int_ge(fd, 0);
	take_open(fd);
	ck_assert_uint_eq(gate.connected, LINKS_MAX);
	link_destroy(l, _i == 1); /* who lingers has left */
	ck_assert(gate.connected == LINKS_MAX - 1 && gate.opening == 0);
	close(fd);
	settle();
}
END_TEST

START_TEST(link_that_is_destroyed_in_line_takes_nobodys_turn)
{
	fill(LINKS_MAX);
	struct link *first = create_behind(true, 5000);
	struct link *second = create_behind(true, 5000);
	link_destroy(first, false);
	link_pass_leave(&last);
	int fd = accept_if_any();
	ck_assert_int_ge(fd, 0);
	link_destroy(second, false);
	ck_assert_uint_eq(gate.connected, LINKS_MAX - 1);
	close(fd);
}
END_TEST

START_TEST(link_that_finds_no_room_says_so)
{
	fill(LINKS_MAX - LINKS_RESERVED);
	open_ping(create_behind(false, 50), 50);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_QUOTA_EXCEEDED);
	ck_assert(!heard.sent && gate.connected == LINKS_MAX - LINKS_RESERVED);
}
END_TEST

START_TEST(link_waits_longer_where_others_are_only_being_opened)
{
	fill(1);
	gate.opening = LINKS_OPENING_MAX;
	struct link *l = create_behind(false, 20);
	open_ping(l, 5000);
	pass(0.06); /* longer than its deadline */
	ck_assert_int_eq(heard.closed, 0);
	gate.opening--;
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
	fill(1);
	here.kind = _i == 0 ? TRANSPORT_HYBRID : TRANSPORT_UNIX;
	struct link *l = create_behind(false, 500);
	open_ping(l, 500);
	int fd = accept_if_any();
	if (_i > 0)
		take_open(fd);
	if (_i == 2) {
		say_opened(fd);
		UNTIL(heard.opened);
		link_expect(l, 500);
	}
	for (int n = 0; n < 2; n++) {
		link_gate_close(&gate, NULL);
		pass(0.6);
		ck_assert_int_eq(heard.closed, 0);
		link_gate_open(&gate);
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
