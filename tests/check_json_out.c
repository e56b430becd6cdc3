/* The JSON writer, and the UTF-8 and base64 helpers under it. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/http/base64.h"
#include "host-bridge/http/json_out.h"
#include "host-bridge/http/utf8.h"
#include "tests/suite_fixture.h"

#define FFFD "\xef\xbf\xbd"

static void assert_written(struct json_out *j, const char *want)
{
	ck_assert(!j->failed);
	ck_assert_uint_eq(j->len, strlen(want));
	ck_assert_mem_eq(j->data, want, j->len);
	json_out_free(j);
}

START_TEST(commas_and_names_come_by_themselves)
{
	struct json_out j = {0};

	json_out_object(&j, NULL);
	json_out_string(&j, "a", "x");
	json_out_string(&j, "none", NULL);
	json_out_array(&j, "list");
	json_out_int(&j, NULL, INT64_MIN);
	json_out_bool(&j, NULL, true);
	json_out_object(&j, NULL);
	json_out_end(&j, '}');
	json_out_array(&j, NULL);
	json_out_end(&j, ']');
	json_out_string(&j, NULL, "{");
	json_out_null(&j, NULL);
	json_out_end(&j, ']');
	json_out_end(&j, '}');
	assert_written(&j,
	               "{\"a\":\"x\",\"none\":null,\"list\":[-9223372036854775808,true,{},[],"
	               "\"{\",null]}");
}
END_TEST

START_TEST(raw_text_surrounds_a_value)
{
	struct json_out j = {0};

	json_out_raw(&j, "data: ", 6);
	json_out_object(&j, NULL);
	json_out_end(&j, '}');
	json_out_raw(&j, "\n\n", 2);
	assert_written(&j, "data: {}\n\n");
}
END_TEST

START_TEST(control_characters_quotes_and_backslashes_are_escaped)
{
	struct json_out j = {0};

	json_out_bytes(&j, NULL, "a\0b\b\t\n\v\f\r\x1f\"\\/\x7f", 14);
	ck_assert(!j.repaired);
	assert_written(&j, "\"a\\u0000b\\b\\t\\n\\u000b\\f\\r\\u001f\\\"\\\\/\x7f\"");
}
END_TEST

static const struct {
	const char *in, *out; /* out NULL: valid as it is */
} repairs[] = {
    {"\xe2\x82\xac", NULL},
    {"\xf0\x9f\x98\x80", NULL},
    {"\xf4\x8f\xbf\xbf", NULL},
    {"\xed\x9f\xbf", NULL},
    {"a\xff\xfe"
     "b",
     "a" FFFD FFFD "b"},
    {"\xe2\x82", FFFD},
    {"\xe2\x82x", FFFD "x"},
    {"\xc0\xaf", FFFD FFFD},                   /* overlong */
    {"\xe0\x80\xaf", FFFD FFFD FFFD},          /* overlong */
    {"\xed\xa0\x80", FFFD FFFD FFFD},          /* surrogate */
    {"\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD}, /* past U+10FFFF */
    {"\xf0\x9f\x98\xf0\x9f\x98\x80", FFFD "\xf0\x9f\x98\x80"},
    {"\x80", FFFD},
};

START_TEST(broken_utf8_is_repaired_and_told)
{
	struct json_out j = {0};
	const char *in = repairs[_i].in, *out = repairs[_i].out;
	char want[64];

	snprintf(want, sizeof want, "\"%s\"", out ? out : in);
	json_out_string(&j, NULL, in);
	ck_assert_int_eq(j.repaired, out != NULL);
	assert_written(&j, want);
}
END_TEST

START_TEST(a_megabyte_of_three_byte_characters_survives_every_block_edge)
{
	size_t n = 1 << 18, len;
	char *in = malloc(3 * n + 1), *out;
	struct json_out j = {0};

	for (size_t shift = 0; shift < 3; shift++) {
		memset(in, 'x', shift);
		for (size_t i = 0; i < n - 1; i++)
			memcpy(in + shift + 3 * i, "\xe2\x82\xac", 3);
		json_out_bytes(&j, NULL, in, shift + 3 * (n - 1));
		ck_assert(!j.repaired);
		out = json_out_take(&j, &len);
		ck_assert_uint_eq(len, shift + 3 * (n - 1) + 2);
		ck_assert_mem_eq(out + 1, in, len - 2);
		free(out);
	}
	free(in);
}
END_TEST

START_TEST(every_byte_pair_reads_back_as_valid_json)
{
	for (unsigned a = 0; a < 256; a++) {
		for (unsigned b = 0; b < 256; b++) {
			char in[10] = "xxxxxxxx";
			struct json_out j = {0};
			json_t *back;

			in[a % 8] = (char)a;
			in[8] = (char)b;
			json_out_array(&j, NULL);
			json_out_bytes(&j, NULL, in, 9);
			json_out_end(&j, ']');
			back = json_loadb(j.data, j.len, JSON_ALLOW_NUL, NULL);
			ck_assert_msg(back != NULL, "%02x %02x", a, b);
			json_decref(back);
			json_out_free(&j);
		}
	}
}
END_TEST

START_TEST(a_cut_character_is_held_back)
{
	static const struct {
		const char *s;
		size_t held;
	} cases[] = {
	    {"", 0},
	    {"abc", 0},
	    {"a\xe2", 1},
	    {"a\xe2\x82", 2},
	    {"a\xe2\x82\xac", 0},
	    {"\xf0\x9f\x98", 3},
	    {"\xf0\x9f", 2},
	    {"\xf0\x9f\x98\x80", 0},
	    {"\x80\x80\x80", 0},
	    {"\xff", 0},
	    {"\xc0", 0},
	    {"\xed\xa0", 0},
	    {"\xe2\x82\xac\xc3", 1},
	    {"\xf4\x90", 0},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		ck_assert_uint_eq(utf8_split(cases[i].s, strlen(cases[i].s)), cases[i].held);
}
END_TEST

START_TEST(base64_is_that_of_the_rfc)
{
	static const char *const pairs[][2] = {
	    {"", ""},
	    {"f", "Zg=="},
	    {"fo", "Zm8="},
	    {"foo", "Zm9v"},
	    {"foob", "Zm9vYg=="},
	    {"fooba", "Zm9vYmE="},
	    {"foobar", "Zm9vYmFy"},
	    {"\xff\xef\xbe", "/+++"},
	};

	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		size_t len = strlen(pairs[i][0]), coded = strlen(pairs[i][1]);
		char text[16];

		ck_assert_uint_eq(BASE64_LEN(len), coded);
		base64_encode(text, pairs[i][0], len);
		ck_assert_mem_eq(text, pairs[i][1], coded);
	}
}
END_TEST

START_TEST(base64_is_a_string_value)
{
	struct json_out j = {0};

	json_out_object(&j, NULL);
	json_out_base64(&j, "b",
	                "a\xff\xfe"
	                "b\0c",
	                6);
	json_out_base64(&j, "e", NULL, 0);
	json_out_end(&j, '}');
	assert_written(&j, "{\"b\":\"Yf/+YgBj\",\"e\":\"\"}");
}
END_TEST

int main(void)
{
	TCase *t = new_case("json_out", NULL, NULL);
	tcase_add_test(t, commas_and_names_come_by_themselves);
	tcase_add_test(t, raw_text_surrounds_a_value);
	tcase_add_test(t, control_characters_quotes_and_backslashes_are_escaped);
	tcase_add_loop_test(t, broken_utf8_is_repaired_and_told, 0,
	                    sizeof repairs / sizeof *repairs);
	tcase_add_test(t, a_megabyte_of_three_byte_characters_survives_every_block_edge);
	tcase_add_test(t, every_byte_pair_reads_back_as_valid_json);
	tcase_add_test(t, a_cut_character_is_held_back);
	tcase_add_test(t, base64_is_that_of_the_rfc);
	tcase_add_test(t, base64_is_a_string_value);
	return run_suite("json_out", t) != 0;
}
