/* QEMU's monitor, played by a child process that says what it is told to say. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host-bridge/vm/qmp.h"
#include "proto/limits.h"
#include "tests/suite_fixture.h"

#define GREETING "{\"QMP\": {\"version\": {}}}\r\n"
#define OK "{\"return\": {}}\r\n"

static struct ev_loop *loop;
static char path[64];
static int listening;
static pid_t monitor;
static bool done;
static struct err outcome;

static void setup(void)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	loop = ev_loop_new(EVFLAG_AUTO);
	snprintf(path, sizeof(path), "/tmp/check-qmp-%d", (int)getpid());
	unlink(path);
	strcpy(at.sun_path, path);
	listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(listening, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(listen(listening, 1), 0);
	done = false;
	outcome = (struct err){0};
	monitor = 0;
}

static void teardown(void)
{
	if (monitor > 0) {
		kill(monitor, SIGKILL);
		waitpid(monitor, NULL, 0);
	}
	close(listening);
	unlink(path);
	ev_loop_destroy(loop);
}

/* The replies, one for each command that comes; "" says nothing, NULL hangs up. */
static void play(const char *const *replies)
{
	fflush(NULL);
	monitor = fork();
	if (monitor != 0)
		return;
	char buf[4096];
	int fd = accept(listening, NULL, NULL);
	if (write(fd, GREETING, strlen(GREETING)) < 0)
		_exit(1);
	for (; *replies != NULL; replies++) {
		if (read(fd, buf, sizeof(buf)) <= 0)
			_exit(1);
		if (write(fd, *replies, strlen(*replies)) < 0)
			_exit(1);
	}
	close(fd);
	_exit(0);
}

static void on_done(const struct err *e, void *arg)
{
	(void)arg;
	done = true;
	if (e != NULL)
		outcome = *e;
	ev_break(loop, EVBREAK_ALL);
}

/* Run the script to its end, which is `code`. */
static void run(struct qmp_script *s, double seconds, enum err_code code)
{
	struct err e = {0};
	ck_assert_ptr_nonnull(qmp_run(loop, path, s, seconds, on_done, NULL, &e));
	ck_assert(!done);
	ev_run(loop, 0);
	ck_assert(done);
	ck_assert_int_eq(outcome.code, code);
}

static void add_migration(struct qmp_script *s)
{
	qmp_add(s, "migrate", "{s:s}", "uri", "fd:x")->event = "MIGRATION";
}

static struct qmp_step *add_unplug(struct qmp_script *s)
{
	struct qmp_step *step = qmp_add(s, "device_del", "{s:s}", "id", "mine");
	step->event = "DEVICE_DELETED";
	step->device = "mine";
	return step;
}

START_TEST(commands_follow_each_other_and_events_between_do_not_matter)
{
	const char *const replies[] = {OK, "{\"event\": \"STOP\", \"data\": {}}\r\n" OK, OK,
	                               NULL};
	struct qmp_script s = {0};
	play(replies);
	qmp_add(&s, "stop", NULL);
	qmp_add(&s, "cont", NULL);
	run(&s, 10, ERR_NONE);
}
END_TEST

START_TEST(an_awaited_event_may_come_before_the_answer)
{
	const char *const replies[] = {
	    OK,
	    "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"active\"}}\r\n"
	    "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"completed\"}}\r\n" OK,
	    NULL};
	struct qmp_script s = {0};
	play(replies);
	add_migration(&s);
	run(&s, 10, ERR_NONE);
}
END_TEST

START_TEST(a_failed_migration_is_a_failure)
{
	const char *const replies[] = {
	    OK, OK "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"failed\"}}\r\n", NULL};
	struct qmp_script s = {0};
	play(replies);
	add_migration(&s);
	run(&s, 10, ERR_LAUNCHER_FAILED);
}
END_TEST

START_TEST(another_devices_event_is_not_the_one)
{
	const char *const replies[] = {
	    OK, OK "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"other\"}}\r\n", "",
	    NULL};
	struct qmp_script s = {0};
	play(replies);
	add_unplug(&s);
	run(&s, 0.3, ERR_LAUNCHER_FAILED);
	ck_assert_ptr_nonnull(strstr(outcome.msg, "in time"));
}
END_TEST

START_TEST(a_refusal_is_told_in_qemus_words_and_ends_the_script)
{
	const char *const replies[] = {
	    OK, "{\"error\": {\"class\": \"GenericError\", \"desc\": \"State blocked\"}}\r\n",
	    NULL};
	struct qmp_script s = {0};
	play(replies);
	qmp_add(&s, "migrate", "{s:s}", "uri", "fd:x");
	qmp_add(&s, "cont", NULL);
	run(&s, 10, ERR_LAUNCHER_FAILED);
	ck_assert_ptr_nonnull(strstr(outcome.msg, "State blocked"));
}
END_TEST

START_TEST(a_step_that_may_fail_goes_on_and_an_absent_device_has_no_event)
{
	const char *const replies[] = {
	    OK, "{\"error\": {\"class\": \"DeviceNotFound\", \"desc\": \"no\"}}\r\n", OK, NULL};
	struct qmp_script s = {0};
	play(replies);
	add_unplug(&s)->may_fail = true;
	qmp_add(&s, "cont", NULL);
	run(&s, 10, ERR_NONE);
}
END_TEST

START_TEST(a_step_that_may_fail_still_waits_for_its_event)
{
	const char *const replies[] = {
	    OK,
	    "{\"error\": {\"class\": \"GenericError\", \"desc\": \"in the process\"}}\r\n"
	    "{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"mine\"}}\r\n",
	    OK, NULL};
	struct qmp_script s = {0};
	play(replies);
	add_unplug(&s)->may_fail = true;
	qmp_add(&s, "cont", NULL);
	run(&s, 10, ERR_NONE);
}
END_TEST

/* It answers the greeting, says more, and is gone before the next command is written. */
START_TEST(a_monitor_that_ends_between_two_commands_is_lost)
{
	const char *const replies[] = {OK "{\"event\": \"SHUTDOWN\", \"data\": {}}\r\n", NULL};
	struct qmp_script s = {0};
	struct err e = {0};
	int status;
	play(replies);
	qmp_add(&s, "stop", NULL);
	ck_assert_ptr_nonnull(qmp_run(loop, path, &s, 10, on_done, NULL, &e));
	ev_run(loop, EVRUN_ONCE);
	ck_assert_int_eq(waitpid(monitor, &status, 0), monitor);
	monitor = 0;
	ck_assert_int_eq(status, 0);
	ev_run(loop, 0);
	ck_assert(done);
	ck_assert_int_eq(outcome.code, ERR_SANDBOX_LOST);
}
END_TEST

static const char *const bad_answers[] = {
    "no json at all\r\n",
    "[1, 2]\r\n",
    "{\"return\": ",
};

START_TEST(what_is_no_answer_ends_the_script_in_time)
{
	const char *const replies[] = {OK, bad_answers[_i], NULL};
	struct qmp_script s = {0};
	play(replies);
	qmp_add(&s, "stop", NULL);
	/* After the last two it has said no more when it hangs up. */
	run(&s, 10, _i == 0 ? ERR_LAUNCHER_FAILED : ERR_SANDBOX_LOST);
}
END_TEST

START_TEST(a_line_without_an_end_is_not_read_for_ever)
{
	static char flood[2 * QMP_LINE_MAX];
	memset(flood, 'x', sizeof(flood) - 1);
	const char *const replies[] = {OK, flood, NULL};
	struct qmp_script s = {0};
	play(replies);
	qmp_add(&s, "stop", NULL);
	run(&s, 10, ERR_LAUNCHER_FAILED);
	ck_assert_ptr_nonnull(strstr(outcome.msg, "too much"));
}
END_TEST

START_TEST(nobody_there_is_told_at_once_and_the_descriptor_is_closed)
{
	struct qmp_script s = {0};
	struct err e = {0};
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	qmp_add(&s, "getfd", "{s:s}", "fdname", "x")->fd = fd;
	ck_assert_ptr_null(qmp_run(loop, "/tmp/there-is-no-such", &s, 1, on_done, NULL, &e));
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
	ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
	ck_assert(!done);
}
END_TEST

START_TEST(a_script_that_is_too_long_is_not_run)
{
	struct qmp_script s = {0};
	struct err e = {0};
	for (int i = 0; i < QMP_STEPS_MAX + 1; i++)
		qmp_add(&s, "stop", NULL);
	ck_assert_ptr_null(qmp_run(loop, path, &s, 1, on_done, NULL, &e));
	ck_assert_int_eq(e.code, ERR_INTERNAL);
}
END_TEST

int main(void)
{
	TCase *t = new_case("qmp", setup, teardown);
	tcase_add_test(t, commands_follow_each_other_and_events_between_do_not_matter);
	tcase_add_test(t, an_awaited_event_may_come_before_the_answer);
	tcase_add_test(t, a_failed_migration_is_a_failure);
	tcase_add_test(t, another_devices_event_is_not_the_one);
	tcase_add_test(t, a_refusal_is_told_in_qemus_words_and_ends_the_script);
	tcase_add_test(t, a_step_that_may_fail_goes_on_and_an_absent_device_has_no_event);
	tcase_add_test(t, a_step_that_may_fail_still_waits_for_its_event);
	tcase_add_test(t, a_monitor_that_ends_between_two_commands_is_lost);
	tcase_add_loop_test(t, what_is_no_answer_ends_the_script_in_time, 0,
	                    (int)(sizeof(bad_answers) / sizeof(*bad_answers)));
	tcase_add_test(t, a_line_without_an_end_is_not_read_for_ever);
	tcase_add_test(t, nobody_there_is_told_at_once_and_the_descriptor_is_closed);
	tcase_add_test(t, a_script_that_is_too_long_is_not_run);
	return run_suite("qmp", t) != 0;
}
