/* Copies of mounts that nobody can mount on. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "guest-agent/own_mount.h"
#include "tests/suite_fixture.h"

static char dir[32];

/* Mounts of this test's process only, in a tree where each mount comes to every copy. */
static void setup(void)
{
	ck_assert_int_eq(unshare(CLONE_NEWNS), 0);
	ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	strcpy(dir, "/tmp/own-mount-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(mount("below", dir, "tmpfs", 0, NULL), 0);
	ck_assert_int_eq(mount(NULL, dir, NULL, MS_SHARED, NULL), 0);
	ck_assert_int_eq(chdir(dir), 0);
	ck_assert_int_eq(mkdir("sub", 0755), 0);
	close(creat("file", 0644));
}

static void teardown(void)
{
	ck_assert_int_eq(chdir("/"), 0);
	while (umount2(dir, MNT_DETACH) == 0)
		;
	rmdir(dir);
}

static dev_t device_of(int at, const char *name)
{
	struct stat st;
	ck_assert_int_eq(fstatat(at, name, &st, 0), 0);
	return st.st_dev;
}

START_TEST(what_was_mounted_before_is_there)
{
	ck_assert_int_eq(mount("sub", "sub", "tmpfs", 0, NULL), 0);
	int own = own_mount(dir);
	ck_assert_int_ge(own, 0);
	ck_assert_uint_eq(device_of(own, "sub"), device_of(AT_FDCWD, "sub"));
	close(own);
}
END_TEST

START_TEST(what_is_mounted_later_is_not)
{
	int own = own_mount(dir);
	dev_t below = device_of(AT_FDCWD, ".");

	ck_assert_int_eq(mount("sub", "sub", "tmpfs", 0, NULL), 0);
	ck_assert_int_eq(mount("/dev/null", "file", NULL, MS_BIND, NULL), 0);
	ck_assert_uint_ne(device_of(AT_FDCWD, "sub"), below);
	ck_assert_uint_eq(device_of(own, "sub"), below);
	ck_assert_uint_eq(device_of(own, "file"), below);
	ck_assert_int_eq(mount("all", dir, "tmpfs", 0, NULL), 0);
	ck_assert_uint_eq(device_of(own, "file"), below);
	close(own);
}
END_TEST

START_TEST(no_device_opens_in_it)
{
	int own = own_mount(dir);

	ck_assert_int_eq(mknod("null", S_IFCHR | 0666, makedev(1, 3)), 0);
	ck_assert_int_eq(openat(own, "null", O_RDONLY | O_CLOEXEC), -1);
	ck_assert_int_eq(errno, EACCES);
	close(own);
}
END_TEST

START_TEST(the_kernel_goes_on_telling_when_proc_is_covered)
{
	int own = own_proc();

	ck_assert_int_ge(own, 0);
	ck_assert_int_eq(mount("cover", "/proc", "tmpfs", 0, NULL), 0);
	ck_assert_int_ne(access("/proc/self/stat", F_OK), 0);
	ck_assert_int_eq(faccessat(own_proc(), "self/stat", F_OK, 0), 0);
	ck_assert_int_eq(own_proc(), own);
	ck_assert_int_eq(umount2("/proc", MNT_DETACH), 0);
}
END_TEST

START_TEST(nothing_is_no_mount)
{
	ck_assert_int_eq(own_mount("/nonexistent"), -1);
	ck_assert_int_eq(errno, ENOENT);
}
END_TEST

int main(void)
{
	TCase *t = new_case("own_mount", setup, teardown);
	tcase_add_test(t, what_was_mounted_before_is_there);
	tcase_add_test(t, what_is_mounted_later_is_not);
	tcase_add_test(t, no_device_opens_in_it);
	tcase_add_test(t, the_kernel_goes_on_telling_when_proc_is_covered);
	tcase_add_test(t, nothing_is_no_mount);
	return run_suite("own_mount", t) != 0;
}
