/*
 * For check_link.c and check_link_frames.c: links against a fake agent behind a Unix socket.
 * The test is the agent: it accepts, reads and writes byte by byte, and turns the loop.
 */
#ifndef SANDGATE_LINK_FIXTURE_H
#define SANDGATE_LINK_FIXTURE_H

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
#include "tests/loop_fixture.h"
#include "tests/suite_fixture.h"

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

static inline void on_opened(struct link *l, const Sandgate__Opened *o, void *owner)
{
	(void)l;
	(void)o;
	(void)owner;
	heard.opened++;
}

static inline void on_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	(void)owner;
	heard.frames++;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_PONG)
		heard.last_pong = f->pong->monotonic_us;
	if (heard.destroy_in_frame == l)
		link_destroy(l, false);
}

static inline void on_closed(struct link *l, const struct err *why, bool sent,
                             const Sandgate__Refused *refused, void *owner)
{
	(void)l;
	(void)owner;
	heard.closed++;
	heard.why = *why;
	heard.sent = sent;
	heard.had_refused = refused != NULL;
}

static inline void on_room(struct link *l, void *owner)
{
	(void)l;
	(void)owner;
	heard.room++;
}

static inline void on_end(struct link *l, void *arg)
{
	(void)l;
	(void)arg;
	heard.ended++;
}

static const struct link_handlers handlers = {on_opened, on_frame, on_closed, on_room};

static inline int accept_now(void)
{
	int fd;
	UNTIL((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0);
	return fd;
}

/* Read exactly `n` bytes of what the link sent. */
static inline void take(int fd, void *to, size_t n)
{
	size_t got = 0;
	while (got < n) {
		ssize_t r;
		UNTIL((r = read(fd, (char *)to + got, n - got)) >= 0);
		ck_assert_msg(r > 0, "the link hung up");
		got += (size_t)r;
	}
}

static inline Sandgate__HostFrame *take_frame(int fd)
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

static inline void take_open(int fd)
{
	Sandgate__HostFrame *f = take_frame(fd);
	ck_assert_int_eq(f->body_case, SANDGATE__HOST_FRAME__BODY_OPEN);
	ck_assert_uint_eq(f->open->protocol_version, PROTOCOL_VERSION);
	sandgate__host_frame__free_unpacked(f, NULL);
}

/* The next connection, up to its Open. */
static inline int accept_open(void)
{
	int fd = accept_now();
	take_open(fd);
	return fd;
}

static inline void take_connect(int fd)
{
	char line[12];
	take(fd, line, sizeof(line));
	ck_assert_mem_eq(line, "CONNECT 523\n", 12);
}

static inline void say(int fd, const void *bytes, size_t n)
{
	ck_assert_int_eq(write(fd, bytes, n), (ssize_t)n);
}

static inline size_t pack(uint8_t *out, Sandgate__GuestFrame__BodyCase which, void *body)
{
	Sandgate__GuestFrame f = SANDGATE__GUEST_FRAME__INIT;
	f.body_case = which;
	f.opened = body; /* a union of pointers */
	return frame_write(&f.base, out);
}

static inline size_t pack_opened(uint8_t *out, uint32_t version)
{
	Sandgate__Opened o = SANDGATE__OPENED__INIT;
	o.protocol_version = version;
	return pack(out, SANDGATE__GUEST_FRAME__BODY_OPENED, &o);
}

static inline void say_opened(int fd)
{
	uint8_t wire[64];
	say(fd, wire, pack_opened(wire, PROTOCOL_VERSION));
}

static inline size_t pack_pong(uint8_t *out, uint64_t n)
{
	Sandgate__Pong p = SANDGATE__PONG__INIT;
	p.monotonic_us = n;
	return pack(out, SANDGATE__GUEST_FRAME__BODY_PONG, &p);
}

static inline size_t pack_refused(uint8_t *out, uint32_t code, char *message)
{
	Sandgate__Refused r = SANDGATE__REFUSED__INIT;
	r.code = code;
	r.message = message;
	return pack(out, SANDGATE__GUEST_FRAME__BODY_REFUSED, &r);
}

static inline struct link *create(unsigned deadline_ms)
{
	struct err e = {0};
	struct link *l = link_create(loop, &here, deadline_ms, &e);
	ck_assert_msg(l != NULL, "%s", e.msg);
	return l;
}

static inline void open_ping(struct link *l, unsigned deadline_ms)
{
	struct err e = {0};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	open.op_case = SANDGATE__OPEN__OP_PING;
	open.ping = &ping;
	ck_assert_int_eq(link_open(l, &open, deadline_ms, &handlers, NULL, &e), 0);
}

/* A link in state OPEN on a Unix endpoint, and the agent's end of it. */
static inline struct link *opened(int *fd)
{
	here.kind = TRANSPORT_UNIX;
	struct link *l = create(5000);
	open_ping(l, 5000);
	*fd = accept_open();
	say_opened(*fd);
	UNTIL(heard.opened);
	return l;
}

static inline void setup(void)
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

static inline void teardown(void)
{
	settle();
	close(listener);
	unlink(here.path);
	rmdir(dir);
	ev_loop_destroy(loop);
}

#endif
