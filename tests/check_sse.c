/* Server-sent events: characters cut by chunks, ids that lose nothing, the terminal event. */
#include <check.h>
#include <string.h>

#include "host-bridge/api/sse.h"
#include "tests/suite_fixture.h"

static struct json_out out;
static struct sse_text text;

static void setup(void)
{
	out = (struct json_out){0};
	sse_text_init(&text, "x", false, 0);
}

static void teardown(void)
{
	json_out_free(&out);
}

static void feed(Sandgate__Stream stream, uint64_t at, const char *bytes)
{
	Sandgate__Output o = SANDGATE__OUTPUT__INIT;
	o.stream = stream;
	o.sequence = at;
	o.data.data = (uint8_t *)(uintptr_t)bytes;
	o.data.len = strlen(bytes);
	sse_chunk(&text, &out, &o);
}

static void expect(const char *events)
{
	ck_assert_uint_eq(out.len, strlen(events));
	ck_assert_mem_eq(out.data, events, out.len);
	json_out_reset(&out);
}

#define OUT SANDGATE__STREAM__STREAM_STDOUT
#define ERR SANDGATE__STREAM__STREAM_STDERR
#define EVENT(id, name, rest) \
	"id: x:" id "\nevent: " name "\ndata: {\"type\":\"" name "\"," rest "}\n\n"
#define CHUNK(id, name, text) EVENT(id, name, "\"chunk\":\"" text "\"")

START_TEST(half_a_character_waits_for_its_rest)
{
	feed(OUT, 0, "a\xe2");
	expect(CHUNK("1", "stdout", "a"));
	feed(OUT, 2, "\x82");
	expect("");
	ck_assert_uint_eq(sse_text_id(&text), 1);
	feed(OUT, 3,
	     "\xac"
	     "b");
	expect(CHUNK("4", "stdout", "\xe2\x82\xac") CHUNK("5", "stdout", "b"));
}
END_TEST

START_TEST(the_other_stream_does_not_break_it)
{
	feed(OUT, 0, "\xe2\x82");
	feed(ERR, 2, "e");
	expect(CHUNK("0", "stderr", "e")); /* a resume from here loses nothing */
	feed(OUT, 3, "\xac");
	expect(CHUNK("4", "stdout", "\xe2\x82\xac"));
}
END_TEST

START_TEST(a_broken_character_is_repaired)
{
	feed(OUT, 0, "\xe2\x82");
	feed(OUT, 2, "z");
	expect(CHUNK("2", "stdout", "\xef\xbf\xbd") CHUNK("3", "stdout", "z"));
	feed(OUT, 3, "\xff");
	expect(CHUNK("4", "stdout", "\xef\xbf\xbd"));
}
END_TEST

START_TEST(every_cut_of_a_text_joins_again)
{
	static const char whole[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
	size_t len = strlen(whole);
	for (size_t i = 0; i <= len; i++) {
		for (size_t j = i; j <= len; j++) {
			char part[3][16] = {{0}};
			memcpy(part[0], whole, i);
			memcpy(part[1], whole + i, j - i);
			memcpy(part[2], whole + j, len - j);
			sse_text_init(&text, "x", false, 0);
			feed(OUT, 0, part[0]);
			feed(OUT, i, part[1]);
			feed(OUT, j, part[2]);
			json_out_raw(&out, "", 1);
			char joined[64] = "";
			for (char *p = out.data; (p = strstr(p, "\"chunk\":\"")) != NULL;) {
				p += strlen("\"chunk\":\"");
				strncat(joined, p, strcspn(p, "\""));
			}
			ck_assert_str_eq(joined, whole);
			ck_assert_uint_eq(sse_text_id(&text), len);
			json_out_reset(&out);
		}
	}
}
END_TEST

START_TEST(base64_holds_nothing_back)
{
	sse_text_init(&text, "x", true, 0);
	feed(OUT, 0, "\xe2");
	expect(CHUNK("1", "stdout", "4g=="));
}
END_TEST

static void lose(Sandgate__Stream stream, uint64_t at, uint64_t bytes)
{
	Sandgate__Gap g = SANDGATE__GAP__INIT;
	g.sequence = at;
	g.bytes = bytes;
	g.stream = stream;
	sse_gap(&text, &out, &g);
}

START_TEST(a_gap_moves_on)
{
	lose(OUT, 0, 10);
	expect(EVENT("10", "gap", "\"stream\":\"stdout\",\"bytes\":10"));
	sse_skipped(&text, &out, OUT, 4);
	expect(EVENT("10", "gap", "\"stream\":\"stdout\",\"bytes\":4"));
}
END_TEST

START_TEST(a_gap_of_the_other_stream_cuts_no_character)
{
	feed(OUT, 0, "\xe2");
	lose(ERR, 1, 9);
	expect(EVENT("0", "gap", "\"stream\":\"stderr\",\"bytes\":9"));
	feed(OUT, 10, "\x82\xac");
	expect(CHUNK("12", "stdout", "\xe2\x82\xac"));
}
END_TEST

START_TEST(a_character_that_a_gap_cuts_is_part_of_the_gap)
{
	feed(OUT, 0, "a\xe2");
	expect(CHUNK("1", "stdout", "a"));
	lose(OUT, 2, 8);
	expect(EVENT("10", "gap", "\"stream\":\"stdout\",\"bytes\":9"));
	feed(OUT, 10,
	     "\x82\xac"
	     "b");
	expect(EVENT("12", "gap", "\"stream\":\"stdout\",\"bytes\":2")
	           CHUNK("13", "stdout", "b"));
	feed(OUT, 13, "\x82"); /* no gap's doing */
	expect(CHUNK("14", "stdout", "\xef\xbf\xbd"));
}
END_TEST

START_TEST(the_terminal_id_is_no_other_events)
{
	Sandgate__Result r = SANDGATE__RESULT__INIT;
	static const char front[] =
	    "id: x:3\nevent: exit\ndata: {\"type\":\"exit\",\"exit_code\":7,";
	r.outcome = SANDGATE__OUTCOME__OUTCOME_EXITED;
	r.exit_code = 7;
	feed(OUT, 0, "ab");
	expect(CHUNK("2", "stdout", "ab"));
	sse_exit(&text, &out, &r, false);
	ck_assert_uint_gt(out.len, strlen(front));
	ck_assert_mem_eq(out.data, front, strlen(front));
	ck_assert_ptr_null(memmem(out.data, out.len, "\"stdout\":", 9));
}
END_TEST

static bool ends_lossy(const char *bytes)
{
	Sandgate__Result r = SANDGATE__RESULT__INIT;
	r.outcome = SANDGATE__OUTCOME__OUTCOME_EXITED;
	feed(OUT, 0, bytes);
	sse_exit(&text, &out, &r, false);
	return memmem(out.data, out.len, "\"encoding_lossy\":true", 21) != NULL;
}

START_TEST(the_end_tells_of_repaired_characters)
{
	static const char *const bytes[] = {"\xe2\x82\xac", "a\xff", "cut short \xe2\x82"};
	ck_assert_int_eq(ends_lossy(bytes[_i]), _i > 0);
}
END_TEST

START_TEST(base64_is_never_lossy)
{
	text.base64 = true;
	ck_assert(!ends_lossy("\xff"));
}
END_TEST

START_TEST(an_error_can_be_resumed_from)
{
	struct err e;
	struct api_details d = {0};
	static const char front[] =
	    "id: x:2\nevent: error\ndata: {\"type\":\"error\",\"code\":\"sandbox.lost\",";
	err_set(&e, ERR_SANDBOX_LOST, "lost");
	feed(OUT, 0, "ab");
	json_out_reset(&out);
	sse_error(&text, &out, "req", &e, &d);
	ck_assert_mem_eq(out.data, front, strlen(front));
}
END_TEST

START_TEST(ids_are_parsed_whole)
{
	char id[EXEC_ID_MAX + 1];
	uint64_t n;
	ck_assert_int_eq(sse_parse_id("a.b-c:12", id, &n), 0);
	ck_assert_str_eq(id, "a.b-c");
	ck_assert_uint_eq(n, 12);
	static const char *const bad[] = {
	    "", "x", ":1", "x:", "x:-1", "x:1a", "x: 1", "x:99999999999999999999"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ck_assert_msg(sse_parse_id(bad[i], id, &n) < 0, "%s", bad[i]);
	char longer[EXEC_ID_MAX + 8];
	memset(longer, 'x', sizeof(longer));
	strcpy(longer + EXEC_ID_MAX + 1, ":1");
	ck_assert_int_lt(sse_parse_id(longer, id, &n), 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("sse", setup, teardown);
	tcase_add_test(t, half_a_character_waits_for_its_rest);
	tcase_add_test(t, the_other_stream_does_not_break_it);
	tcase_add_test(t, a_broken_character_is_repaired);
	tcase_add_test(t, every_cut_of_a_text_joins_again);
	tcase_add_test(t, base64_holds_nothing_back);
	tcase_add_test(t, a_gap_moves_on);
	tcase_add_test(t, a_gap_of_the_other_stream_cuts_no_character);
	tcase_add_test(t, a_character_that_a_gap_cuts_is_part_of_the_gap);
	tcase_add_test(t, the_terminal_id_is_no_other_events);
	tcase_add_loop_test(t, the_end_tells_of_repaired_characters, 0, 3);
	tcase_add_test(t, base64_is_never_lossy);
	tcase_add_test(t, an_error_can_be_resumed_from);
	tcase_add_test(t, ids_are_parsed_whole);
	return run_suite("sse", t) != 0;
}
