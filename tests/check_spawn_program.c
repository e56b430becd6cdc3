/* Which program is run and in which directory: found along PATH, refused, or waited for. */
#include "proto/limits.h"
#include "tests/spawn_fixture.h"

/* ---- programs ---- */

static const char *make_file(const char *name, const char *text, mode_t mode)
{
	static char path[128];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	ck_assert_int_eq(fchmod(fd, mode), 0);
	close(fd);
	return path;
}

static void run_program(struct run *run, const char *program, const char *path)
{
	char *argv[] = {(char *)program, NULL};
	run_init(run, argv);
	run->plan.path = path;
	run->plan.cwd = dir;
	run_all(run);
}

START_TEST(an_absent_program_is_not_found)
{
	static const char *const absent[] = {"no-such-program", "/no/such/program", "./nope",
	                                     ""};
	struct run run;

	run_program(&run, absent[_i], "/nonexistent:/bin");
	assert_failed(&run, "execve", ENOENT);
}
END_TEST

START_TEST(a_program_is_found_along_path)
{
	struct run run;
	make_file("tool", "#!/bin/sh\necho tool\n", 0755);
	run_program(&run, "tool", "/nonexistent:/etc/passwd:/bin:");
	ck_assert_ptr_null(run.result.stage);
	ck_assert_str_eq(run.text, "tool\n"); /* the empty element is the working directory */
}
END_TEST

START_TEST(a_program_that_may_not_run_is_refused)
{
	struct run run;

	run_program(&run, make_file("plain", "#!/bin/sh\n", 0644), NULL);
	assert_failed(&run, "execve", EACCES);
	run_program(&run, "plain", dir);
	assert_failed(&run, "execve", EACCES);
	run_program(&run, dir, NULL);
	assert_failed(&run, "execve", EACCES);
}
END_TEST

START_TEST(a_refusal_is_remembered_while_the_search_goes_on)
{
	struct run run;
	char path[256];

	make_file("true", "not for running", 0644);
	snprintf(path, sizeof(path), "%s:/bin", dir);
	run_program(&run, "true", path);
	ck_assert_ptr_null(run.result.stage);
	snprintf(path, sizeof(path), "%s:/nonexistent", dir);
	run_program(&run, "true", path);
	assert_failed(&run, "execve", EACCES);
}
END_TEST

START_TEST(no_shell_stands_in_for_an_unknown_format)
{
	struct run run;
	run_program(&run, make_file("script", "echo no interpreter line\n", 0755), NULL);
	assert_failed(&run, "execve", ENOEXEC);
}
END_TEST

START_TEST(a_component_that_is_a_file_is_not_a_directory)
{
	struct run run;
	run_program(&run, "/etc/passwd/program", NULL);
	assert_failed(&run, "execve", ENOTDIR);
}
END_TEST

START_TEST(arguments_that_are_too_long_are_refused)
{
	struct run run;
	char *text = malloc(ARG_STRING_MAX + 1);
	char *argv[] = {"/bin/true", text, NULL};

	memset(text, 'x', ARG_STRING_MAX);
	text[ARG_STRING_MAX] = '\0';
	run_init(&run, argv);
	run_all(&run);
	assert_failed(&run, "execve", E2BIG);
	text[ARG_STRING_MAX - 1] = '\0';
	run_init(&run, argv);
	run_all(&run);
	ck_assert_ptr_null(run.result.stage);
	free(text);
}
END_TEST

static void on_close_writer(struct ev_loop *l, ev_timer *w, int revents)
{
	(void)l, (void)revents;
	close(*(int *)w->data);
}

START_TEST(a_program_that_is_being_written_is_waited_for)
{
	struct run run;
	const char *path = make_file("busy", "#!/bin/sh\necho ready\n", 0755);
	int writer = open(path, O_WRONLY | O_CLOEXEC);
	ev_timer timer;

	ev_timer_init(&timer, on_close_writer, 0.02, 0.);
	timer.data = &writer;
	ev_timer_start(loop, &timer);
	run_program(&run, path, NULL);
	ck_assert_ptr_null(run.result.stage);
	ck_assert_str_eq(run.text, "ready\n");

	writer = open(path, O_WRONLY | O_CLOEXEC);
	run_program(&run, path, NULL);
	assert_failed(&run, "execve", ETXTBSY);
	close(writer);
}
END_TEST

/* ---- working directory ---- */

START_TEST(the_working_directory_is_entered)
{
	struct run run;
	run_in(&run, dir, &self);
	ck_assert_ptr_null(run.result.stage);
	ck_assert_mem_eq(run.text, dir, strlen(dir));
}
END_TEST

START_TEST(a_bad_working_directory_is_told_and_nothing_runs)
{
	struct run run;
	run_in(&run, "/nope", &self);
	assert_failed(&run, "chdir", ENOENT);
	run_in(&run, "/etc/passwd", &self);
	assert_failed(&run, "chdir", ENOTDIR);
	run_in(&run, "", &self);
	assert_failed(&run, "chdir", ENOENT);
}
END_TEST

START_TEST(the_working_directory_is_entered_as_the_user)
{
	struct run run;

	if (geteuid() != 0)
		return;
	run_in(&run, dir, &nobody); /* mkdtemp made it 0700 */
	assert_failed(&run, "chdir", EACCES);
}
END_TEST

int main(void)
{
	TCase *t = new_case("program", setup, teardown);
	tcase_add_loop_test(t, an_absent_program_is_not_found, 0, 4);
	tcase_add_test(t, a_program_is_found_along_path);
	tcase_add_test(t, a_program_that_may_not_run_is_refused);
	tcase_add_test(t, a_refusal_is_remembered_while_the_search_goes_on);
	tcase_add_test(t, no_shell_stands_in_for_an_unknown_format);
	tcase_add_test(t, a_component_that_is_a_file_is_not_a_directory);
	tcase_add_test(t, arguments_that_are_too_long_are_refused);
	tcase_add_test(t, a_program_that_is_being_written_is_waited_for);
	tcase_add_test(t, the_working_directory_is_entered);
	tcase_add_test(t, a_bad_working_directory_is_told_and_nothing_runs);
	tcase_add_test(t, the_working_directory_is_entered_as_the_user);
	return run_suite("spawn_program", t) != 0;
}
