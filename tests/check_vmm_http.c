/* A VMM's HTTP API, played by the test: it accepts, reads requests and answers byte by byte. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "host-bridge/vm/vmm_http.h"
#include "proto/limits.h"
#include "tests/loop_fixture.h"
#include "tests/suite_fixture.h"

#define NO_CONTENT "HTTP/1.1 204 \r\nServer: VMM\r\nConnection: keep-alive\r\n\r\n"

static char dir[] = "/tmp/check_vmm_http.XXXXXX";
static char path[64];
static int listener;
static struct vmm_http_script script;

static struct {
	int done;
	struct err why;
	char state[16]; /* of the last answer */
} heard;

static void on_done(const json_t *answer, const struct err *e, void *arg)
{
	const char *state = json_string_value(json_object_get(answer, "state"));
	(void)arg;
	heard.done++;
	if (e != NULL)
		heard.why = *e;
	snprintf(heard.state, sizeof(heard.state), "%s", state != NULL ? state : "");
}

static void bind_socket(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	memcpy(a.sun_path, path, sizeof(path));
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
}

static void setup(void)
{
	memset(&heard, 0, sizeof(heard));
	memset(&script, 0, sizeof(script));
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/s", dir);
	loop = ev_loop_new(0);
	bind_socket();
	ck_assert_int_eq(listen(listener, 4), 0);
}

static void teardown(void)
{
	close(listener);
	unlink(path);
	rmdir(dir);
	ev_loop_destroy(loop);
}

static struct vmm_http *run_script(double seconds)
{
	struct err e = {0};
	struct vmm_http *h = vmm_http_run(loop, path, &script, seconds, on_done, NULL, &e);
	ck_assert_msg(h != NULL, "%s", e.msg);
	memset(&script, 0, sizeof(script));
	return h;
}

static int accept_now(void)
{
	int fd;
	UNTIL((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0);
	return fd;
}

/* Read a request that begins and ends so. */
static void take(int fd, const char *begin, const char *end)
{
	char text[1024] = "";
	size_t len = 0, n = strlen(end);
	while (len < n || memcmp(text + len - n, end, n) != 0) {
		ssize_t r;
		UNTIL((r = read(fd, text + len, sizeof(text) - 1 - len)) >= 0);
		ck_assert_msg(r > 0, "hung up after: %s", text);
		len += (size_t)r;
	}
	ck_assert_msg(strncmp(text, begin, strlen(begin)) == 0, "%s", text);
}

static void say(int fd, const char *text, size_t len)
{
	ck_assert_int_eq(write(fd, text, len), (ssize_t)len);
}

static void answer(int fd, const char *status, const char *body)
{
	char text[512];
	int n = snprintf(text, sizeof(text),
	                 "HTTP/1.1 %s\r\nContent-Type: application/json\r\n"
	                 "Content-Length: %zu\r\n\r\n%s",
	                 status, strlen(body), body);
	say(fd, text, (size_t)n);
}

static void add_two(void)
{
	vmm_http_add(&script, "PUT", "/vsock", "{s:i, s:s}", "guest_cid", 3, "uds_path", "v");
	vmm_http_add(&script, "GET", "/", NULL);
}

START_TEST(requests_follow_one_another_on_one_connection)
{
	add_two();
	run_script(5);
	int fd = accept_now();
	take(fd, "PUT /vsock HTTP/1.1\r\n", "\r\n\r\n{\"guest_cid\":3,\"uds_path\":\"v\"}");
	settle();
	ck_assert_int_lt(recv(fd, (char[1]){0}, 1, 0), 0); /* not before the answer */
	say(fd, NO_CONTENT, strlen(NO_CONTENT));
	take(fd, "GET / HTTP/1.1\r\n", "\r\n\r\n");
	answer(fd, "200 ", "{\"state\":\"Paused\"}");
	UNTIL(heard.done);
	ck_assert_int_eq(heard.why.code, ERR_NONE);
	ck_assert_str_eq(heard.state, "Paused");
	close(fd);
}
END_TEST

START_TEST(answers_may_arrive_in_two_pieces_cut_anywhere)
{
	for (size_t cut = 1; cut < strlen(NO_CONTENT); cut++) {
		heard.done = 0;
		vmm_http_add(&script, "PATCH", "/vm", "{s:s}", "state", "Paused");
		run_script(5);
		int fd = accept_now();
		take(fd, "PATCH /vm", "{\"state\":\"Paused\"}");
		say(fd, NO_CONTENT, cut);
		settle();
		ck_assert_int_eq(heard.done, 0);
		say(fd, NO_CONTENT + cut, strlen(NO_CONTENT) - cut);
		UNTIL(heard.done);
		ck_assert_int_eq(heard.why.code, ERR_NONE);
		close(fd);
	}
}
END_TEST

START_TEST(refusal_ends_the_script_with_the_vmms_words)
{
	add_two();
	run_script(5);
	int fd = accept_now();
	take(fd, "PUT /vsock", "}");
	answer(fd, "400 ", "{\"fault_message\":\"no such thing\"}");
	UNTIL(heard.done);
	ck_assert_int_eq(heard.why.code, ERR_LAUNCHER_FAILED);
	ck_assert_str_eq(heard.why.msg, "the VMM refuses: no such thing");
	ck_assert_int_eq(read(fd, (char[1]){0}, 1), 0);
	close(fd);
}
END_TEST

static const struct {
	const char *body, *msg;
} reasons[] = {
    {"[\"Error from API\",\"The VM could not boot\",\"Cannot open it\",\"No such file\"]",
     "the VMM refuses: Cannot open it: No such file"},
    {"[\"Not Found\"]", "the VMM refuses: Not Found"},
    {"[\"it\",\"failed\\n\\nStack backtrace:\"]", "the VMM refuses: it: failed"},
    {"[1,2]", "the VMM refuses: no reason given"},
    {"[]", "the VMM refuses: no reason given"},
    {"{ \"error\": \"words\nmore\" }", "the VMM refuses: { \"error\": \"words"},
};

START_TEST(of_a_chain_of_reasons_the_last_are_told)
{
	add_two();
	run_script(5);
	int fd = accept_now();
	take(fd, "PUT /vsock", "}");
	answer(fd, "500 ", reasons[_i].body);
	UNTIL(heard.done);
	ck_assert_int_eq(heard.why.code, ERR_LAUNCHER_FAILED);
	ck_assert_str_eq(heard.why.msg, reasons[_i].msg);
	close(fd);
}
END_TEST

static const struct {
	const char *text, *msg;
	enum err_code code;
} wrong[] = {
    {"no HTTP at all\r\n\r\n", "the VMM does not speak HTTP", ERR_LAUNCHER_FAILED},
    {"HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n", "the VMM refuses: no reason given",
     ERR_LAUNCHER_FAILED},
    {"", "the VMM hung up", ERR_SANDBOX_LOST},
};

START_TEST(what_is_no_answer_is_an_error)
{
	add_two();
	run_script(5);
	int fd = accept_now();
	take(fd, "PUT /vsock", "}");
	say(fd, wrong[_i].text, strlen(wrong[_i].text));
	close(fd);
	UNTIL(heard.done);
	ck_assert_int_eq(heard.why.code, wrong[_i].code);
	ck_assert_str_eq(heard.why.msg, wrong[_i].msg);
}
END_TEST

START_TEST(endless_answer_is_refused)
{
	static const char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n";
	char text[1024];
	memset(text, 'x', sizeof(text));
	add_two();
	run_script(5);
	int fd = accept_now();
	take(fd, "PUT /vsock", "}");
	say(fd, head, strlen(head));
	for (size_t sent = 0; !heard.done; sent += sizeof(text)) {
		ck_assert_uint_le(sent, VMM_HTTP_ANSWER_MAX + sizeof(text));
		say(fd, text, sizeof(text));
		settle();
	}
	ck_assert_int_eq(heard.why.code, ERR_LAUNCHER_FAILED);
	close(fd);
}
END_TEST

START_TEST(socket_that_is_not_there_yet_is_waited_for)
{
	close(listener);
	unlink(path);
	vmm_http_add(&script, "GET", "/", NULL);
	run_script(5);
	settle();
	bind_socket(); /* refuses until it listens */
	settle();
	ck_assert_int_eq(heard.done, 0);
	ck_assert_int_eq(listen(listener, 4), 0);
	int fd = accept_now();
	take(fd, "GET /", "\r\n\r\n");
	say(fd, NO_CONTENT, strlen(NO_CONTENT));
	UNTIL(heard.done);
	ck_assert_int_eq(heard.why.code, ERR_NONE);
	close(fd);
}
END_TEST

START_TEST(silence_ends_at_the_deadline)
{
	add_two();
	run_script(.05);
	int fd = accept_now();
	UNTIL(heard.done);
	ck_assert_str_eq(heard.why.msg, "the VMM does not answer in time");
	close(fd);
	close(listener);
	unlink(path);
	heard.done = 0;
	add_two();
	run_script(.05);
	UNTIL(heard.done);
	ck_assert_str_eq(heard.why.msg, "the VMM does not listen in time");
	bind_socket();
}
END_TEST

START_TEST(want_of_a_descriptor_is_waited_out_or_told_at_the_deadline)
{
	add_two();
	struct rlimit all = limit_descriptors(0);
	run_script(.05);
	UNTIL(heard.done);
	ck_assert_int_eq(heard.why.code, ERR_CAPACITY);
	memset(&heard, 0, sizeof(heard));
	vmm_http_add(&script, "GET", "/", NULL);
	run_script(5);
	settle();
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &all), 0);
	int fd = accept_now();
	take(fd, "GET /", "\r\n\r\n");
	say(fd, NO_CONTENT, strlen(NO_CONTENT));
	UNTIL(heard.done);
	ck_assert_int_eq(heard.why.code, ERR_NONE);
	close(fd);
}
END_TEST

START_TEST(script_that_is_broken_off_or_too_long_tells_nothing)
{
	struct err e = {0};
	add_two();
	struct vmm_http *h = run_script(5);
	int fd = accept_now();
	vmm_http_cancel(h);
	settle();
	ck_assert_int_eq(heard.done, 0);
	close(fd);
	for (int i = 0; i <= VMM_HTTP_STEPS_MAX; i++)
		vmm_http_add(&script, "GET", "/", NULL);
	ck_assert_ptr_null(vmm_http_run(loop, path, &script, 5, on_done, NULL, &e));
	ck_assert_int_eq(e.code, ERR_INTERNAL);
	ck_assert_int_eq(heard.done, 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("vmm_http", setup, teardown);
	tcase_add_test(t, requests_follow_one_another_on_one_connection);
	tcase_add_test(t, answers_may_arrive_in_two_pieces_cut_anywhere);
	tcase_add_test(t, refusal_ends_the_script_with_the_vmms_words);
	tcase_add_loop_test(t, of_a_chain_of_reasons_the_last_are_told, 0,
	                    (int)(sizeof(reasons) / sizeof(*reasons)));
	tcase_add_loop_test(t, what_is_no_answer_is_an_error, 0,
	                    (int)(sizeof(wrong) / sizeof(*wrong)));
	tcase_add_test(t, endless_answer_is_refused);
	tcase_add_test(t, socket_that_is_not_there_yet_is_waited_for);
	tcase_add_test(t, silence_ends_at_the_deadline);
	tcase_add_test(t, want_of_a_descriptor_is_waited_out_or_told_at_the_deadline);
	tcase_add_test(t, script_that_is_broken_off_or_too_long_tells_nothing);
	return run_suite("vmm_http", t) != 0;
}
