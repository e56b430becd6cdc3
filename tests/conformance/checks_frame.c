/* Framing: what a hostile or broken host may send, and that the agent outlives it. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"
#include "proto/limits.h"
#include "tests/conformance/ask.h"

/* The session must end, with or without a refusal, and the agent go on serving. */
static void expect_ended(const struct target *t, struct conn *c)
{
	Sandgate__GuestFrame *m;

	while ((m = conn_recv(c, CONN_WAIT_MS)))
		expect(m->body_case == SANDGATE__GUEST_FRAME__BODY_REFUSED ||
		           m->body_case == SANDGATE__GUEST_FRAME__BODY_OPENED,
		       "broken input was answered by a frame of kind %d", m->body_case);
	conn_close(c);
	ask_alive(t);
}

static void send_bytes(const struct target *t, const void *bytes, size_t len)
{
	struct conn *c = conn_dial(t);

	conn_write(c, bytes, len);
	expect_ended(t, c);
}

static void length_over_cap(const struct target *t)
{
	uint32_t lengths[] = {FRAME_MAX_TO_GUEST + 1, 0x7fffffff, 0xffffffff};

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint32_t header = htonl(lengths[i]);
		send_bytes(t, &header, sizeof(header));
	}
}

/* An exec whose frame is exactly as long as a frame may be. */
static void length_at_cap(const struct target *t)
{
	Sandgate__Exec e = ask_sh("");
	Sandgate__HostFrame *frame = ask_open(t, SANDGATE__OPEN__OP_EXEC, &e);
	static const char tail[] = "\necho ok";
	size_t room = FRAME_MAX_TO_GUEST;

	e.cmd.data = malloc(room);
	expect(e.cmd.data, "out of memory");
	memset(e.cmd.data, '#', room);
	e.cmd.len = room - 4096;
	e.cmd.len += FRAME_HEADER + FRAME_MAX_TO_GUEST - frame_size(&frame->base);
	memcpy(e.cmd.data + e.cmd.len - strlen(tail), tail, strlen(tail));
	expect(frame_size(&frame->base) == FRAME_HEADER + FRAME_MAX_TO_GUEST, "miscounted");

	struct conn *c = conn_dial(t);
	expect(conn_send(c, frame), "the agent closed inside the frame");
	ask_next(c, SANDGATE__GUEST_FRAME__BODY_OPENED);
	struct ask_end end = ask_end(c, 0);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "ok\n");
}

static void empty_frame(const struct target *t)
{
	send_bytes(t, "\0\0\0\0", 4);
}

static void garbage(const struct target *t)
{
	uint8_t bytes[64];
	unsigned state = 1;

	for (int round = 0; round < 50; round++) {
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (uint8_t)((state = state * 1103515245 + 12345) >> 16);
		/* Half of them with a length that makes the rest one whole message. */
		if (round % 2)
			memcpy(bytes, (uint8_t[]){0, 0, 0, sizeof(bytes) - 4}, 4);
		else
			bytes[0] |= 1;
		send_bytes(t, bytes, sizeof(bytes));
	}
}

static void truncated(const struct target *t)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	Sandgate__HostFrame *frame = ask_open(t, SANDGATE__OPEN__OP_PING, &ping);
	size_t size = frame_size(&frame->base);
	uint8_t *bytes = malloc(size);

	expect(bytes, "out of memory");
	frame_write(&frame->base, bytes);
	for (size_t cut = 0; cut < size; cut++) {
		struct conn *c = conn_dial(t);
		conn_write(c, bytes, cut);
		conn_close(c);
	}
	ask_alive(t);
}

static void split_at_every_byte(const struct target *t)
{
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	Sandgate__HostFrame *frame = ask_open(t, SANDGATE__OPEN__OP_PING, &ping);
	size_t size = frame_size(&frame->base);
	uint8_t *bytes = malloc(size);
	struct conn *c = conn_dial(t);

	expect(bytes, "out of memory");
	frame_write(&frame->base, bytes);
	for (size_t i = 0; i < size; i++, ask_pause())
		expect(conn_write(c, bytes + i, 1), "the agent closed inside a slow frame");
	ask_next(c, SANDGATE__GUEST_FRAME__BODY_OPENED);
	ask_next(c, SANDGATE__GUEST_FRAME__BODY_PONG);
}

static void unknown_field(const struct target *t)
{
	/* Field 1000, varint 7, appended to a frame of a whole Ping. */
	static const uint8_t extra[] = {0xc0, 0x3e, 0x07};
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	Sandgate__HostFrame *frame = ask_open(t, SANDGATE__OPEN__OP_PING, &ping);
	uint8_t bytes[512];

	size_t size = frame_write(&frame->base, bytes);
	memcpy(bytes + size, extra, sizeof(extra));
	size += sizeof(extra);
	uint32_t header = htonl((uint32_t)(size - FRAME_HEADER));
	memcpy(bytes, &header, sizeof(header));

	struct conn *c = conn_dial(t);
	expect(conn_write(c, bytes, size), "the agent closed");
	ask_next(c, SANDGATE__GUEST_FRAME__BODY_OPENED);
	ask_next(c, SANDGATE__GUEST_FRAME__BODY_PONG);
}

/* A session that began to open and stalls must not be held for ever. */
static void half_an_open(const struct target *t)
{
	struct conn *c = conn_dial(t);

	conn_write(c, "\0\0\0\x20", 4);
	expect(conn_readable(c, (OPEN_DEADLINE_S + 5) * 1000),
	       "half an Open is still awaited after %d s", OPEN_DEADLINE_S + 5);
	expect_ended(t, c);
}

static const struct check checks[] = {
    {3, "a length over the cap is refused from the header alone", length_over_cap},
    {3, "a frame of exactly the cap is taken", length_at_cap},
    {4, "a frame without a body ends the session only", empty_frame},
    {4, "garbage ends the session only", garbage},
    {2, "a frame cut off at any byte ends the session only", truncated},
    {2, "a frame that comes byte by byte is taken", split_at_every_byte},
    {4, "an unknown field is ignored", unknown_field},
    {6, "half an Open is given up after the deadline", half_an_open},
};
CHECK_TABLE(checks_frame, checks);
