/* The snapshots of templates on disk. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "host-bridge/sandbox/baked.h"
#include "proto/limits.h"
#include "tests/suite_fixture.h"

static char dir[] = "/tmp/check-baked-XXXXXX";
static struct launcher_request request;
static struct launcher launcher;
static struct launcher_host host;

static const char *isolation(const struct launcher_host *h)
{
	return h->kvm ? "kvm" : "tcg";
}

static void make_file(char out[PATH_MAX], const char *name, const char *text)
{
	snprintf(out, PATH_MAX, "%s/%s", dir, name);
	int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	ck_assert_int_eq(write(fd, text, strlen(text)), (int)strlen(text));
	close(fd);
}

static void setup(void)
{
	struct err e = {0};
	static char program[PATH_MAX];
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	make_file(request.template.kernel, "kernel", "a kernel");
	make_file(request.template.initrd, "initrd", "an image");
	make_file(program, "vmm", "a program");
	ck_assert_int_eq(chmod(program, 0700), 0);
	request.vcpus = 1;
	request.memory_mib = 256;
	request.disk_mib = 0;
	request.template.root[0] = '\0';
	host.kvm = NULL;
	launcher =
	    (struct launcher){.name = "some", .program = program, .isolation = isolation};
	ck_assert_int_eq(baked_sweep(dir, &e), 0); /* makes the directory */
}

static void teardown(void)
{
	remove_tree(dir);
}

static void path_now(char out[PATH_MAX])
{
	struct err e = {0};
	ck_assert_int_eq(baked_path(dir, &launcher, &host, &request, out, &e), 0);
}

START_TEST(the_same_request_has_the_same_place)
{
	char a[PATH_MAX], b[PATH_MAX];
	path_now(a);
	path_now(b);
	ck_assert_str_eq(a, b);
}
END_TEST

static void other_memory(void)
{
	request.memory_mib = 512;
}

static void other_cpus(void)
{
	request.vcpus = 2;
}

static void other_isolation(void)
{
	host.kvm = &launcher;
}

static void other_image(void)
{
	make_file(request.template.initrd, "initrd", "another image");
}

static void other_launcher(void)
{
	launcher.name = "other";
}

static void other_disk(void)
{
	request.disk_mib = 64;
}

static void other_root(void)
{
	make_file(request.template.root, "root", "an image of its root");
}

static void (*const changes[])(void) = {other_memory, other_cpus, other_isolation,
                                        other_image,  other_disk, other_launcher,
                                        other_root};

START_TEST(whatever_the_guest_depends_on_changes_the_place)
{
	char before[PATH_MAX], after[PATH_MAX];
	path_now(before);
	changes[_i]();
	path_now(after);
	ck_assert_str_ne(before, after);
}
END_TEST

START_TEST(one_is_made_at_a_time_and_is_there_when_it_is_whole)
{
	char path[PATH_MAX], part[PATH_MAX], second[PATH_MAX];
	struct err e = {0};
	path_now(path);
	ck_assert_int_eq(baked_begin(path, part, &e), 0);
	ck_assert(!baked_exists(path));
	ck_assert_int_eq(baked_begin(path, second, &e), -1);
	ck_assert_int_eq(e.code, ERR_INVALID_STATE);
	ck_assert_int_eq(baked_keep(path, &e), 0);
	ck_assert(baked_exists(path));
	ck_assert_int_eq(access(part, F_OK), -1);
}
END_TEST

START_TEST(what_was_not_finished_is_swept)
{
	char path[PATH_MAX], part[PATH_MAX];
	struct err e = {0};
	path_now(path);
	ck_assert_int_eq(baked_begin(path, part, &e), 0);
	ck_assert_int_eq(baked_sweep(dir, &e), 0);
	ck_assert_int_eq(access(part, F_OK), -1);
	ck_assert_int_eq(baked_begin(path, part, &e), 0);
	baked_drop(path);
	ck_assert_int_eq(access(part, F_OK), -1);
}
END_TEST

START_TEST(what_nobody_has_used_for_long_is_swept)
{
	char path[PATH_MAX], part[PATH_MAX];
	struct err e = {0};
	struct timespec old[2] = {{.tv_sec = time(NULL) - BAKED_KEPT_S - 60},
	                          {.tv_sec = time(NULL) - BAKED_KEPT_S - 60}};
	path_now(path);
	ck_assert_int_eq(baked_begin(path, part, &e), 0);
	ck_assert_int_eq(baked_keep(path, &e), 0);
	ck_assert_int_eq(utimensat(AT_FDCWD, path, old, 0), 0);
	baked_used(path);
	ck_assert_int_eq(baked_sweep(dir, &e), 0);
	ck_assert(baked_exists(path));
	ck_assert_int_eq(utimensat(AT_FDCWD, path, old, 0), 0);
	ck_assert_int_eq(baked_sweep(dir, &e), 0);
	ck_assert(!baked_exists(path));
}
END_TEST

int main(void)
{
	TCase *t = new_case("baked", setup, teardown);
	tcase_add_test(t, the_same_request_has_the_same_place);
	tcase_add_loop_test(t, whatever_the_guest_depends_on_changes_the_place, 0,
	                    (int)(sizeof(changes) / sizeof(*changes)));
	tcase_add_test(t, one_is_made_at_a_time_and_is_there_when_it_is_whole);
	tcase_add_test(t, what_was_not_finished_is_swept);
	tcase_add_test(t, what_nobody_has_used_for_long_is_swept);
	return run_suite("baked", t) != 0;
}
