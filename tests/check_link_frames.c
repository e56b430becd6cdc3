/* Links that are open: hostile frames, hang-ups at every byte, silence, back-pressure both
 * ways. */
#include "tests/link_fixture.h"

static void expect_end(enum err_code code, const uint8_t *bytes, size_t n)
{
	heard.closed = heard.opened = 0;
	here.kind = TRANSPORT_UNIX;
	open_ping(create(5000), 5000);
	int fd = accept_open();
	say(fd, bytes, n);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, code);
	ck_assert(heard.sent);
	close(fd);
}

START_TEST(frames_that_are_wrong_end_the_link_with_their_code)
{
	uint8_t wire[256];
	size_t n;
	/* over the cap, told from the header alone */
	expect_end(ERR_PROTOCOL, (uint8_t[]){0, 2, 0, 1}, 4);
	expect_end(ERR_PROTOCOL, (uint8_t[]){0xff, 0xff, 0xff, 0xff}, 4);
	/* no message */
	expect_end(ERR_PROTOCOL, (uint8_t[]){0, 0, 0, 2, 0xff, 0xff}, 6);
	expect_end(ERR_PROTOCOL, (uint8_t[]){0, 0, 0, 0}, 4);
	/* an answer before Opened, Opened twice */
	expect_end(ERR_PROTOCOL, wire, pack_pong(wire, 1));
	n = pack_opened(wire, PROTOCOL_VERSION);
	n += pack_opened(wire + n, PROTOCOL_VERSION);
	expect_end(ERR_PROTOCOL, wire, n);
	/* versions */
	expect_end(ERR_INCOMPATIBLE, wire, pack_opened(wire, PROTOCOL_VERSION + 1));
	expect_end(ERR_INCOMPATIBLE, wire, pack_opened(wire, 0));
	/* refusals: the agent's own codes pass, those of our HTTP side do not */
	expect_end(ERR_LIMIT_UNSUPPORTED, wire, pack_refused(wire, ERR_LIMIT_UNSUPPORTED, ""));
	expect_end(ERR_INCOMPATIBLE, wire, pack_refused(wire, ERR_INVALID_TOKEN, ""));
	expect_end(ERR_PROTOCOL, wire, pack_refused(wire, 0, ""));
	expect_end(ERR_PROTOCOL, wire, pack_refused(wire, 4000000000u, ""));
	n = pack_opened(wire, PROTOCOL_VERSION);
	n += pack_refused(wire + n, ERR_EXEC_NOT_FOUND, "");
	expect_end(ERR_EXEC_NOT_FOUND, wire, n);
}
END_TEST

/* 60,000 empty execs in a list: lawful on the wire, ten megabytes in memory. */
START_TEST(frame_that_swells_when_unpacked_is_refused)
{
	static uint8_t wire[FRAME_HEADER + FRAME_MAX_TO_HOST];
	size_t n = pack_opened(wire, PROTOCOL_VERSION), list = 120000, body = list + 4;
	uint8_t *p = wire + n;
	*p++ = 0;
	*p++ = (uint8_t)(body >> 16);
	*p++ = (uint8_t)(body >> 8);
	*p++ = (uint8_t)body;
	*p++ = 10 << 3 | 2; /* GuestFrame.exec_list */
	*p++ = (uint8_t)(list | 0x80);
	*p++ = (uint8_t)(list >> 7 | 0x80);
	*p++ = (uint8_t)(list >> 14);
	for (size_t i = 0; i < list; i += 2, p += 2)
		memcpy(p, (uint8_t[]){1 << 3 | 2, 0}, 2); /* ExecList.execs, empty */
	expect_end(ERR_PROTOCOL, wire, (size_t)(p - wire));
	ck_assert_int_eq(heard.frames, 0);
}
END_TEST

START_TEST(hang_up_in_the_middle_of_a_frame_is_a_lost_guest)
{
	uint8_t wire[64];
	size_t n = pack_pong(wire, 5);
	for (size_t cut = 0; cut < n; cut++) {
		int fd;
		memset(&heard, 0, sizeof(heard));
		opened(&fd);
		if (cut > 0)
			say(fd, wire, cut);
		close(fd);
		UNTIL(heard.closed);
		ck_assert_int_eq(heard.why.code, ERR_SANDBOX_LOST);
		ck_assert_int_eq(heard.frames, 0);
	}
}
END_TEST

START_TEST(frame_split_at_any_byte_is_put_together)
{
	uint8_t wire[64];
	size_t n = pack_pong(wire, 77);
	int fd;
	struct link *l = opened(&fd);
	for (size_t cut = 1; cut < n; cut++) {
		heard.frames = 0;
		say(fd, wire, cut);
		settle();
		ck_assert_int_eq(heard.frames, 0);
		say(fd, wire + cut, n - cut);
		UNTIL(heard.frames == 1);
	}
	ck_assert_uint_eq(heard.last_pong, 77);
	link_destroy(l, false);
	close(fd);
}
END_TEST

START_TEST(paused_link_tells_a_hang_up_at_once)
{
	int fd;
	struct link *l = opened(&fd);
	link_pause(l);
	settle();
	close(fd);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_SANDBOX_LOST);
}
END_TEST

START_TEST(paused_link_hands_over_what_came_before_the_hang_up)
{
	uint8_t wire[64];
	int fd;
	struct link *l = opened(&fd);
	link_pause(l);
	say(fd, wire, pack_pong(wire, 1));
	say(fd, wire, pack_pong(wire, 2));
	close(fd);
	settle();
	ck_assert_int_eq(heard.closed + heard.frames, 0);
	link_resume(l);
	ck_assert_int_eq(heard.frames, 0);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.frames, 2);
	ck_assert_uint_eq(heard.last_pong, 2);
}
END_TEST

START_TEST(frame_that_is_expected_and_does_not_come_is_a_timeout)
{
	int fd;
	struct link *l = opened(&fd);
	link_expect(l, 20);
	UNTIL(heard.closed);
	ck_assert_int_eq(heard.why.code, ERR_TIMEOUT);
	close(fd);
}
END_TEST

START_TEST(nothing_is_due_while_paused_or_when_the_expectation_is_withdrawn)
{
	int fd;
	struct link *l = opened(&fd);
	link_expect(l, 20);
	if (_i == 0)
		link_pause(l);
	else
		link_expect(l, 0);
	pass(0.06); /* longer than what the link expects */
	ck_assert_int_eq(heard.closed, 0);
	link_resume(l);
	if (_i == 0) {
		UNTIL(heard.closed);
		ck_assert_int_eq(heard.why.code, ERR_TIMEOUT);
	} else {
		link_destroy(l, false);
	}
	close(fd);
}
END_TEST

START_TEST(paused_link_stops_the_guest)
{
	static uint8_t junk[4096];
	int fd;
	struct link *l = opened(&fd);
	link_pause(l);
	size_t taken = 0;
	for (;;) {
		ssize_t n = write(fd, junk, sizeof(junk));
		settle();
		if (n < 0)
			break;
		taken += (size_t)n;
		ck_assert_uint_lt(taken, 4 * MIB);
	}
	link_destroy(l, false);
	close(fd);
}
END_TEST

START_TEST(link_may_be_destroyed_by_its_own_frame)
{
	uint8_t wire[128];
	int fd;
	struct link *l = opened(&fd);
	heard.destroy_in_frame = l;
	size_t n = pack_pong(wire, 1);
	n += pack_pong(wire + n, 2);
	say(fd, wire, n);
	UNTIL(heard.frames);
	settle();
	ck_assert_int_eq(heard.frames, 1);
	ck_assert_int_eq(heard.closed, 0);
	close(fd);
}
END_TEST

static void send_stdin(struct link *l, size_t n, int *over)
{
	static uint8_t data[CHUNK_MAX];
	Sandgate__Stdin in = SANDGATE__STDIN__INIT;
	Sandgate__HostFrame f = SANDGATE__HOST_FRAME__INIT;
	f.body_case = SANDGATE__HOST_FRAME__BODY_STDIN;
	f.stdin = &in;
	in.data.data = data;
	in.data.len = n;
	*over = link_send(l, &f);
	ck_assert_int_ge(*over, 0);
}

START_TEST(sender_is_told_to_stop_and_to_go_on)
{
	int fd, over = 0, sent = 0;
	struct link *l = opened(&fd);
	while (!over) {
		send_stdin(l, CHUNK_MAX, &over);
		ck_assert_int_lt(++sent, 64);
	}
	settle();
	ck_assert_int_eq(heard.room, 0);
	for (int i = 0; i < sent; i++) {
		Sandgate__HostFrame *f = take_frame(fd);
		ck_assert_uint_eq(f->stdin->data.len, CHUNK_MAX);
		sandgate__host_frame__free_unpacked(f, NULL);
	}
	UNTIL(heard.room == 1);
	link_destroy(l, false);
	close(fd);
}
END_TEST

START_TEST(cancel_behind_a_full_socket_still_arrives)
{
	int fd, over = 0, sent = 0;
	struct link *l = opened(&fd);
	Sandgate__Cancel cancel = SANDGATE__CANCEL__INIT;
	Sandgate__HostFrame c = SANDGATE__HOST_FRAME__INIT;
	while (!over) {
		send_stdin(l, CHUNK_MAX, &over);
		sent++;
	}
	cancel.reason = SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE;
	c.body_case = SANDGATE__HOST_FRAME__BODY_CANCEL;
	c.cancel = &cancel;
	link_send(l, &c);
	link_destroy(l, true);
	for (int i = 0; i < sent; i++)
		sandgate__host_frame__free_unpacked(take_frame(fd), NULL);
	Sandgate__HostFrame *f = take_frame(fd);
	ck_assert_int_eq(f->body_case, SANDGATE__HOST_FRAME__BODY_CANCEL);
	sandgate__host_frame__free_unpacked(f, NULL);
	ck_assert_int_eq(heard.closed + heard.room, 0);
	close(fd);
}
END_TEST

int main(void)
{
	TCase *t = new_case("link_frames", setup, teardown);
	tcase_add_test(t, frames_that_are_wrong_end_the_link_with_their_code);
	tcase_add_test(t, frame_that_swells_when_unpacked_is_refused);
	tcase_add_test(t, hang_up_in_the_middle_of_a_frame_is_a_lost_guest);
	tcase_add_test(t, frame_split_at_any_byte_is_put_together);
	tcase_add_test(t, paused_link_tells_a_hang_up_at_once);
	tcase_add_test(t, paused_link_hands_over_what_came_before_the_hang_up);
	tcase_add_test(t, frame_that_is_expected_and_does_not_come_is_a_timeout);
	tcase_add_loop_test(t, nothing_is_due_while_paused_or_when_the_expectation_is_withdrawn,
	                    0, 2);
	tcase_add_test(t, paused_link_stops_the_guest);
	tcase_add_test(t, link_may_be_destroyed_by_its_own_frame);
	tcase_add_test(t, sender_is_told_to_stop_and_to_go_on);
	tcase_add_test(t, cancel_behind_a_full_socket_still_arrives);
	return run_suite("link_frames", t) != 0;
}
