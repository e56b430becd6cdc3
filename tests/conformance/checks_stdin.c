/* Input: the initial bytes, later frames, offsets, acknowledgements, end. */
#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"
#include "tests/conformance/ask.h"

static void feed(struct conn *c, Sandgate__Uint64Value *offset, const char *data, size_t len)
{
	Sandgate__HostFrame frame = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Stdin body = SANDGATE__STDIN__INIT;

	body.offset = offset;
	body.data.data = (uint8_t *)data;
	body.data.len = len;
	frame.body_case = SANDGATE__HOST_FRAME__BODY_STDIN;
	frame.stdin = &body;
	conn_send(c, &frame);
}

static void close_input(struct conn *c)
{
	Sandgate__HostFrame frame = SANDGATE__HOST_FRAME__INIT;
	Sandgate__CloseStdin body = SANDGATE__CLOSE_STDIN__INIT;

	frame.body_case = SANDGATE__HOST_FRAME__BODY_CLOSE_STDIN;
	frame.close_stdin = &body;
	conn_send(c, &frame);
}

static Sandgate__StdinAck *next_ack(struct conn *c)
{
	return ask_next(c, SANDGATE__GUEST_FRAME__BODY_STDIN_ACK)->stdin_ack;
}

/* A control session on a running exec, its ExecState taken. */
static struct conn *control(const struct target *t, const char *id)
{
	struct conn *c = ask_attach(t, id, SANDGATE__ROLE__ROLE_CONTROL, 0);

	ask_next(c, SANDGATE__GUEST_FRAME__BODY_EXEC_STATE);
	return c;
}

static void none_is_end(const struct target *t)
{
	struct ask_end end = ask_run_sh(t, "cat; echo done");

	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "done\n");
}

static void initial(const struct target *t)
{
	Sandgate__Exec e = ask_sh("cat; echo done");

	e.stdin = ask_text("abc");
	struct ask_end end = ask_run(t, &e);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "abcdone\n");
}

static void much(const struct target *t)
{
	static const char *const cmds[] = {"wc -c", "cat", "true"};
	size_t len = MIB;
	uint8_t *data = malloc(len);

	expect(data, "out of memory");
	memset(data, 'x', len);
	for (size_t i = 0; i < 3; i++) {
		Sandgate__Exec e = ask_sh(cmds[i]);
		e.stdin.data = data;
		e.stdin.len = len;
		struct ask_end end = ask_run(t, &e);
		ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
		if (i == 0)
			expect(strtoul((char *)end.bytes[0], NULL, 10) == len, "wc says %s",
			       (char *)end.bytes[0]);
		if (i == 1)
			expect(end.len[0] == len, "cat gave %zu bytes", end.len[0]);
	}
}

static void frames(const struct target *t)
{
	Sandgate__Exec e = ask_sh("cat");

	e.stdin_open = true;
	e.stdin = ask_text("one ");
	struct conn *c = ask_start_until(t, &e, "one ");
	struct conn *side = control(t, e.exec_id);
	feed(side, ask_number(4), "two ", 4);
	expect(next_ack(side)->offset == 8, "another offset after the second piece");
	feed(side, NULL, "three", 5);
	expect(next_ack(side)->offset == 13, "another offset after the third piece");
	close_input(side);
	expect(next_ack(side)->closed, "the close was not acknowledged");
	struct ask_end end = ask_end(c, 4);
	ask_expect(&end, SANDGATE__OUTCOME__OUTCOME_EXITED, 0);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "two three");
}

static void wrong_offset(const struct target *t)
{
	static const uint64_t offsets[] = {0, 2, 4, 1000};
	Sandgate__Exec e = ask_sh("cat");

	e.stdin_open = true;
	e.stdin = ask_text("abc");
	struct conn *c = ask_start_until(t, &e, "abc");
	for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		struct conn *side = control(t, e.exec_id);
		feed(side, ask_number(offsets[i]), "xyz", 3);
		Sandgate__Refused *r = ask_next_refused(side, ERR_STDIN_OFFSET);
		expect(r->offset && r->offset->value == 3, "the right offset is not told");
	}
	struct conn *side = control(t, e.exec_id);
	close_input(side);
	struct ask_end end = ask_end(c, 3);
	ask_expect_text(&end, SANDGATE__STREAM__STREAM_STDOUT, "");
}

/* A process that does not read is fed no more than the window, and stalls nobody. */
static void unread(const struct target *t)
{
	static char data[CHUNK_MAX];
	Sandgate__Exec e = ask_sh("sleep 60");

	e.stdin_open = true;
	ask_start(t, &e);
	struct conn *side = control(t, e.exec_id);
	for (int i = 0; i < 5; i++)
		feed(side, NULL, data, sizeof(data));
	ask_alive(t);
	uint64_t taken = ask_state(t, e.exec_id)->stdin_offset;
	expect(taken <= STDIN_WINDOW + 2 * CHUNK_MAX, "%llu bytes were taken",
	       (unsigned long long)taken);
	ask_forget(t, e.exec_id);
}

static void reader_closes(const struct target *t)
{
	static char data[CHUNK_MAX];
	Sandgate__Exec e = ask_sh("exec 0<&-; echo closed; sleep 5");

	e.stdin_open = true;
	ask_start_until(t, &e, "closed");
	struct conn *side = control(t, e.exec_id);
	feed(side, NULL, data, sizeof(data));
	bool closed = next_ack(side)->closed;
	for (int i = 0; i < 5 && !closed; i++) {
		feed(side, NULL, data, sizeof(data));
		closed = next_ack(side)->closed;
	}
	expect(closed, "input that nobody can read is still taken");
	ask_forget(t, e.exec_id);
}

static void after_close(const struct target *t)
{
	Sandgate__Exec e = ask_sh("cat >/dev/null; echo eof; sleep 5");

	e.stdin_open = true;
	struct conn *c = ask_start(t, &e);
	struct conn *side = control(t, e.exec_id);
	close_input(side);
	expect(next_ack(side)->closed, "the close was not acknowledged");
	ask_until(c, "eof");
	feed(side, NULL, "late", 4);
	expect(next_ack(side)->closed, "input after the end is taken");
	ask_forget(t, e.exec_id);
}

static const struct check checks[] = {
    {25, "without input the end comes at once", none_is_end},
    {25, "initial input is followed by the end", initial},
    {25, "a MiB of input is read, echoed or ignored", much},
    {71, "later input is acknowledged with the offset", frames},
    {72, "a wrong offset is refused with the right one", wrong_offset},
    {71, "input that is not read waits, and stalls nobody", unread},
    {73, "a process that closes its input ends it", reader_closes},
    {73, "input after the end is not taken", after_close},
};
CHECK_TABLE(checks_stdin, checks);
