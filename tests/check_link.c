/* Links against a fake agent behind a Unix socket: handshakes cut short, hostile frames,
 * silence, hang-ups at every stage, back-pressure both ways. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "host-bridge/link/link.h"
#include "proto/frame.h"
#include "proto/limits.h"

static struct ev_loop *loop;
static int listener;
static struct endpoint here;
static char dir[] = "/tmp/check_link.XXXXXX";

/* What the link's owner has heard. */
static struct {
	int opened, frames, closed, room, ended;
	struct err why;
	bool sent, had_refused;
	uint64_t last_pong;
	struct link *destroy_in_frame;
} heard;

static void on_opened(struct link *l, const Sandgate__Opened *o, void *owner)
{
	(void)l;
	(void)o;
	(void)owner;
	heard.opened++;
}

static void on_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	(void)owner;
	heard.frames++;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_PONG)
		heard.last_pong = f->pong->monotonic_us;
	if (heard.destroy_in_frame == l)
		link_destroy(l, false);
}

static void on_closed(struct link *l, const struct err *why, bool sent,
                      const Sandgate__Refused *refused, void *owner)
{
	(void)l;
	(void)owner;
	heard.closed++;
	heard.why = *why;
	heard.sent = sent;
	heard.had_refused = refused != NULL;
}

static void on_room(struct link *l, void *owner)
{
	(void)l;
	(void)owner;
	heard.room++;
}

static void on_end(struct link *l, void *arg)
{
	(void)l;
	(void)arg;
	heard.ended++;
}

static const struct link_handlers handlers = {on_opened, on_frame, on_closed, on_room};

static void on_watchdog(struct ev_loop *l, ev_timer *w, int revents)
{
	(void)l;
	(void)w;
	(void)revents;
	ck_abort_msg("nothing happened");
}

/* Run the loop until `cond`; a watchdog ends a test that waits for ever. */
#define UNTIL(cond)                                       \
	do {                                              \
		ev_timer dog;                             \
		ev_timer_init(&dog, on_watchdog, 8., 0.); \
		ev_timer_start(loop, &dog);               \
		while (!(cond))                           \
			ev_run(loop, EVRUN_ONCE);         \
		ev_timer_stop(loop, &dog);                \
	} while (0)

static void settle(void)
{
	for (int i = 0; i < 20; i++)
		ev_run(loop, EVRUN_NOWAIT);
}

static int accept_now(void)
{
	int fd;
	UNTIL((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0);
	return fd;
}

/* Read exactly `n` bytes of what the link sent. */
static void take(int fd, void *to, size_t n)
{
	size_t got = 0;
	while (got < n) {
		ssize_t r;
		UNTIL((r = read(fd, (char *)to + got, n - got)) >= 0);
		ck_assert_msg(r > 0, "the link hung up");
		got += (size_t)r;
	}
}

static Sandgate__HostFrame *take_frame(int fd)
{
	uint8_t header[FRAME_HEADER], *body;
	take(fd, header, sizeof(header));
	size_t n = (size_t)header[0] << 24 | (size_t)header[1] << 16 | (size_t)header[2] << 8 |
	           header[3];
	body = malloc(n + 1);
	take(fd, body, n);
	Sandgate__HostFrame *f = sandgate__host_frame__unpack(NULL, n, body);
	free(body);
	ck_assert_ptr_nonnull(f);
	return f;
}

static void take_open(int fd)
{
	Sandgate__HostFrame *f = take_frame(fd);
	ck_assert_int_eq(f->body_case, SANDGATE__HOST_FRAME__BODY_OPEN);
	ck_assert_uint_eq(f->open->protocol_version, PROTOCOL_VERSION);
	sandgate__host_frame__free_unpacked(f, NULL);
}

static void take_connect(int fd)
{
	char line[12];
	take(fd, line, sizeof(line));
	ck_assert_mem_eq(line, "CONNECT 523\n", 12);
}

static void say(int fd, const void *bytes, size_t n)
{
	ck_assert_int_eq(write(fd, bytes, n), (ssize_t)n);
}

static size_t pack(uint8_t *out, Sandgate__GuestFrame__BodyCase which, void *body)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	f.body_case = which;
	f.opened = body; /* a union of pointers */
	return frame_write(&f.base, out);
}

static size_t pack_opened(uint8_t *out, uint32_t version)
{
	Sandgate__Opened o = SANDGATE__OPENED__INIT;
	o.protocol_version = version;
	return pack(out, SANDGATE__GUEST_FRAME__BODY_OPENED, &o);
}

static size_t pack_pong(uint8_t *out, uint64_t n)
{
	Sandgate__Pong p = SANDGATE__PONG__INIT;
	p.monotonic_us = n;
	return pack(out, SANDGATE__GUEST_FRAME__BODY_PONG, &p);
}

static size_t pack_refused(uint8_t *out, uint32_t code, char *message)
{
	Sandgate__Refused r = SANDGATE__REFUSED__INIT;
	r.code = code;
	r.message = message;
	return pack(out, SANDGATE__GUEST_FRAME__BODY_REFUSED, &r);
}

static struct link *create(unsigned deadline_ms)
{
	struct err e = {0};
	struct link *l = link_create(loop, &here, deadline_ms, &e);
	ck_assert_msg(l != NULL, "%s", e.msg);
	return l;
}

static void open_ping(struct link *l, unsigned deadline_ms)
{
	struct err e = {0};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	open.op_case = SANDGATE__OPEN__OP_PING;
	open.ping = &ping;
	ck_assert_int_eq(link_open(l, &open, deadline_ms, &handlers, NULL, &e), 0);
}

/* A link in state OPEN on a Unix endpoint, and the agent's end of it. */
static struct link *opened(int *fd)
{
	uint8_t wire[64];
	here.kind = TRANSPORT_UNIX;
	struct link *l = create(5000);
	open_ping(l, 5000);
	*fd = accept_now();
	take_open(*fd);
	say(*fd, wire, pack_opened(wire, PROTOCOL_VERSION));
	UNTIL(heard.opened);
	return l;
}

static void setup(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	memset(&heard, 0, sizeof(heard));
	memset(&here, 0, sizeof(here));
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	loop = ev_loop_new(0);
	here.kind = TRANSPORT_HYBRID;
	here.port = 523;
	snprintf(here.path, sizeof(here.path), "%s/s", dir);
	memcpy(a.sun_path, here.path, sizeof(a.sun_path));
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(listener, 64), 0);
}

static void teardown(void)
{
	settle();
	close(listener);
	unlink(here.path);
	rmdir(dir);
	ev_loop_destroy(loop);
}

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

static void expect_end(enum err_code code, const uint8_t *bytes, size_t n)
{
	heard.closed = heard.opened = 0;
	here.kind = TRANSPORT_UNIX;
	open_ping(create(5000), 5000);
	int fd = accept_now();
	take_open(fd);
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

static void on_later(struct ev_loop *el, ev_timer *w, int revents)
{
	(void)el;
	(void)revents;
	w->data = NULL;
}

/* Longer than what the link expects. */
static void let_time_pass(void)
{
	ev_timer later;
	ev_timer_init(&later, on_later, 0.06, 0.);
	later.data = &later;
	ev_timer_start(loop, &later);
	UNTIL(later.data == NULL);
}

START_TEST(nothing_is_due_while_paused_or_when_the_expectation_is_withdrawn)
{
	int fd;
	struct link *l = opened(&fd);
	link_expect(l, 20);
	if (_i == 0)
		link_pause(l);
	else
		link_expect(l, 0);
	let_time_pass();
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
	let_time_pass();
	ck_assert_int_eq(heard.closed, 0);
	g.opening--;
	link_pass_leave(&last);
	int fd = accept_if_any();
	take_open(fd);
	link_destroy(l, false);
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
	Suite *s = suite_create("link");
	TCase *t = tcase_create("link");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, handshake_cut_at_any_byte_is_tried_again);
	tcase_add_test(t, handshake_may_arrive_byte_by_byte);
	tcase_add_test(t, what_answers_but_speaks_no_handshake_is_a_protocol_error);
	tcase_add_test(t, bytes_behind_the_handshake_are_not_lost);
	tcase_add_test(t, guest_that_never_answers_the_handshake_is_unreachable);
	tcase_add_test(t, missing_socket_is_unreachable_after_the_deadline);
	tcase_add_test(t, agent_that_never_says_opened_times_out);
	tcase_add_test(t, open_that_may_have_arrived_is_not_sent_again);
	tcase_add_test(t, dead_spare_is_replaced_without_a_word);
	tcase_add_test(t, spare_that_dies_as_it_is_taken_is_replaced_without_a_word);
	tcase_add_test(t, spare_that_speaks_is_no_spare);
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
	tcase_add_loop_test(t, link_waits_in_line_until_another_has_left, 0, 2);
	tcase_add_test(t, link_that_is_destroyed_in_line_takes_nobodys_turn);
	tcase_add_test(t, link_that_finds_no_room_says_so);
	tcase_add_test(t, link_waits_longer_where_others_are_only_being_opened);
	tcase_add_test(t, request_over_the_cap_is_refused_here);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? 0 : 1;
}
