/* Work in a child process of the bridge, and the copies that it is mostly about. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host-bridge/vm/sparse.h"
#include "host-bridge/vm/task.h"
#include "proto/limits.h"
#include "tests/suite_fixture.h"

static struct ev_loop *loop;
static char dir[] = "/tmp/check-task-XXXXXX";
static bool done;
static struct err outcome;

static void setup(void)
{
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	loop = ev_loop_new(EVFLAG_AUTO);
	done = false;
	outcome = (struct err){0};
}

static void teardown(void)
{
	ev_loop_destroy(loop);
	remove_tree(dir);
}

static void on_done(const struct err *e, void *arg)
{
	(void)arg;
	done = true;
	if (e != NULL)
		outcome = *e;
}

static void run(int (*work)(const void *input, struct err *e), const void *input)
{
	struct err e = {0};
	ck_assert_ptr_nonnull(task_start(loop, work, input, on_done, NULL, &e));
	ck_assert(!done);
	ev_run(loop, 0);
	ck_assert(done);
}

static int succeed(const void *input, struct err *e)
{
	(void)e;
	return strcmp(input, "input") == 0 ? 0 : -1;
}

static int refuse(const void *input, struct err *e)
{
	return err_field(e, ERR_STORAGE_FULL, input, "no room");
}

static int crash(const void *input, struct err *e)
{
	(void)input;
	(void)e;
	abort();
}

static int look_for_descriptors(const void *input, struct err *e)
{
	(void)input;
	for (int fd = 4; fd < 256; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			return err_set(e, ERR_INTERNAL, "descriptor %d is open", fd);
	return 0;
}

START_TEST(work_that_succeeds_is_told_and_so_is_its_failure)
{
	run(succeed, "input");
	ck_assert_int_eq(outcome.code, ERR_NONE);
	done = false;
	run(refuse, "memory");
	ck_assert_int_eq(outcome.code, ERR_STORAGE_FULL);
	ck_assert_str_eq(outcome.field, "memory");
	ck_assert_str_eq(outcome.msg, "no room");
}
END_TEST

START_TEST(a_child_that_dies_is_a_failure)
{
	run(crash, NULL);
	ck_assert_int_eq(outcome.code, ERR_INTERNAL);
}
END_TEST

START_TEST(a_child_holds_none_of_the_bridges_descriptors)
{
	int fds[20];
	for (int i = 0; i < 20; i++)
		fds[i] = open("/dev/null", O_RDONLY);
	run(look_for_descriptors, NULL);
	ck_assert_int_eq(outcome.code, ERR_NONE);
	for (int i = 0; i < 20; i++)
		close(fds[i]);
}
END_TEST

static int sleep_long(const void *input, struct err *e)
{
	(void)input;
	(void)e;
	sleep(600);
	return 0;
}

START_TEST(a_cancelled_task_tells_nothing_and_its_child_is_gone)
{
	struct err e = {0};
	struct task *t = task_start(loop, sleep_long, NULL, on_done, NULL, &e);
	ck_assert_ptr_nonnull(t);
	task_cancel(t);
	ev_run(loop, 0); /* until it is reaped */
	ck_assert(!done);
}
END_TEST

/* ---- copies ---- */

static const char *at(const char *name)
{
	static char paths[4][64];
	static unsigned next;
	char *path = paths[next++ % 4];
	snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
	return path;
}

/* 8 MiB with data at the front, in the middle and at the end, some of it zeroes. */
static void make_source(void)
{
	int fd = open(at("from"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	char page[4096];
	ck_assert_int_eq(ftruncate(fd, 8 * MIB), 0);
	for (int i = 0; i < 3; i++) {
		memset(page, 'a' + i, sizeof(page));
		ck_assert_int_eq(pwrite(fd, page, sizeof(page), i * (4 * MIB - 2048)), 4096);
	}
	memset(page, 0, sizeof(page));
	for (int i = 0; i < 256; i++)
		ck_assert_int_eq(pwrite(fd, page, sizeof(page), MIB + i * 4096), 4096);
	close(fd);
}

static bool same(const char *a, const char *b)
{
	char command[160];
	snprintf(command, sizeof(command), "cmp -s %s %s", a, b);
	return system(command) == 0;
}

START_TEST(a_copy_has_the_content_and_no_pages_of_zeroes)
{
	struct err e = {0};
	struct stat from, to;
	make_source();
	ck_assert_int_eq(sparse_copy(at("from"), at("to"), &e), 0);
	ck_assert(same(at("from"), at("to")));
	ck_assert_int_eq(stat(at("from"), &from), 0);
	ck_assert_int_eq(stat(at("to"), &to), 0);
	ck_assert_int_eq(to.st_mode & 0777, 0600);
	ck_assert_int_ge(from.st_blocks * 512, MIB);
	ck_assert_int_le(to.st_blocks * 512, 64 * KIB);
}
END_TEST

START_TEST(a_file_that_is_there_and_empty_is_filled)
{
	struct err e = {0};
	make_source();
	int fd = open(at("to"), O_RDWR | O_CREAT, 0640);
	ck_assert_int_eq(ftruncate(fd, 8 * MIB), 0);
	close(fd);
	ck_assert_int_eq(sparse_copy(at("from"), at("to"), &e), 0);
	ck_assert(same(at("from"), at("to")));
}
END_TEST

START_TEST(what_is_not_there_cannot_be_copied)
{
	struct err e = {0};
	ck_assert_int_eq(sparse_copy(at("none"), at("to"), &e), -1);
	ck_assert_int_eq(e.code, ERR_INTERNAL);
	ck_assert_int_eq(access(at("to"), F_OK), -1);
}
END_TEST

/* A VMM that was taken over may have put them where its disk was. */
START_TEST(neither_a_link_nor_a_pipe_is_copied)
{
	struct err e = {0};
	make_source();
	char *target = strdup(at("from"));
	ck_assert_int_eq(symlink(target, at("link")), 0);
	free(target);
	ck_assert_int_eq(mkfifo(at("pipe"), 0600), 0);
	ck_assert_int_eq(sparse_copy(at("link"), at("to"), &e), -1);
	ck_assert_int_eq(sparse_copy(at("pipe"), at("to"), &e), -1);
	ck_assert_int_eq(access(at("to"), F_OK), -1);
	ck_assert_int_eq(sparse_copy(at("from"), at("link"), &e), -1);
}
END_TEST

/* A small file system of this process's own; false where that may not be made. */
static bool enter_small_disk(void)
{
	return unshare(CLONE_NEWNS) == 0 &&
	       mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mkdir(at("small"), 0700) == 0 &&
	       mount("tmpfs", at("small"), "tmpfs", 0, "size=16k") == 0;
}

START_TEST(a_full_disk_is_told_as_such_and_nothing_half_made_is_left)
{
	struct err e = {0};
	int fd = open(at("from"), O_RDWR | O_CREAT, 0600);
	char data[64 * KIB];
	memset(data, 'x', sizeof(data));
	ck_assert_int_eq(write(fd, data, sizeof(data)), (int)sizeof(data));
	close(fd);
	if (!enter_small_disk())
		return;
	ck_assert_int_eq(sparse_copy(at("from"), at("small/to"), &e), -1);
	ck_assert_int_eq(e.code, ERR_STORAGE_FULL);
	ck_assert_int_eq(access(at("small/to"), F_OK), -1);
	umount(at("small"));
}
END_TEST

int main(void)
{
	TCase *t = new_case("task", setup, teardown);
	tcase_add_test(t, work_that_succeeds_is_told_and_so_is_its_failure);
	tcase_add_test(t, a_child_that_dies_is_a_failure);
	tcase_add_test(t, a_child_holds_none_of_the_bridges_descriptors);
	tcase_add_test(t, a_cancelled_task_tells_nothing_and_its_child_is_gone);
	tcase_add_test(t, a_copy_has_the_content_and_no_pages_of_zeroes);
	tcase_add_test(t, a_file_that_is_there_and_empty_is_filled);
	tcase_add_test(t, what_is_not_there_cannot_be_copied);
	tcase_add_test(t, neither_a_link_nor_a_pipe_is_copied);
	tcase_add_test(t, a_full_disk_is_told_as_such_and_nothing_half_made_is_left);
	return run_suite("task", t) != 0;
}
