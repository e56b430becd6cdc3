/* What a Resume does to a machine's names. The clock has no namespace; guests show it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/renew_fixture.h"

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

START_TEST(a_clone_gets_its_names)
{
	Sandgate__Resume m = clone_message();
	char host[65], before[64];

	put_file("/etc/hostname", "template\n");
	put_file("/etc/machine-id", "00000000000000000000000000000001\n");
	strcpy(before, content(BOOT_ID));
	m.hostname = BYTES("clone-1.example");
	m.machine_id = BYTES("0123456789abcdef");
	ck_assert_int_eq(carry_out(&m), 0);
	gethostname(host, sizeof(host));
	ck_assert_str_eq(host, "clone-1.example");
	ck_assert_str_eq(content("/etc/hostname"), "clone-1.example\n");
	ck_assert_str_eq(content("/etc/machine-id"), "30313233343536373839616263646566\n");
	ck_assert_str_ne(content(BOOT_ID), before);
	ck_assert_uint_eq(strlen(content(BOOT_ID)), strlen(before));
}
END_TEST

START_TEST(names_come_from_the_hosts_bytes_which_the_kernel_never_gets)
{
	Sandgate__Resume m = clone_message();

	put_file("/etc/machine-id", "x\n");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_mem_eq(renewal->instance, entropy, 16);
	/* Bytes 16 to 31 and 32 to 47, with the marks of a random UUID. */
	ck_assert_str_eq(content("/etc/machine-id"), "70777e858c934aa1a8afb6bdc4cbd2d9\n");
	ck_assert_str_eq(content(BOOT_ID), "e0e7eef5-fc03-4a11-981f-262d343b4249\n");
	ck_assert_uint_eq(renewal->entropy_len, RESUME_ENTROPY_MIN - RESUME_ENTROPY_NAMES);
	ck_assert_mem_eq(renewal->entropy, entropy + RESUME_ENTROPY_NAMES,
	                 renewal->entropy_len);
}
END_TEST

START_TEST(a_clone_of_a_clone_gets_its_names_too)
{
	Sandgate__Resume m = clone_message();
	char first[64];

	ck_assert_int_eq(carry_out(&m), 0);
	strcpy(first, content(BOOT_ID));
	entropy[32]++;
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_ne(content(BOOT_ID), first);
	ck_assert(umount(BOOT_ID) == 0);
	ck_assert_msg(umount(BOOT_ID) < 0, "one lies upon the other");
}
END_TEST

START_TEST(files_that_are_not_there_are_not_made)
{
	Sandgate__Resume m = clone_message();
	m.hostname = BYTES("clone");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert(access("/etc/hostname", F_OK) < 0);
	ck_assert(access("/etc/machine-id", F_OK) < 0);
}
END_TEST

START_TEST(a_symbolic_link_is_replaced_and_not_followed)
{
	Sandgate__Resume m = clone_message();
	struct stat st;

	put_file("/etc/target", "mine\n");
	ck_assert(symlink("target", "/etc/machine-id") == 0);
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/target"), "mine\n");
	ck_assert(lstat("/etc/machine-id", &st) == 0 && S_ISREG(st.st_mode));
}
END_TEST

/* Its other name may be a user's. */
START_TEST(a_file_that_has_two_names_is_replaced)
{
	Sandgate__Resume m = clone_message();

	put_file("/etc/machine-id", "old\n");
	ck_assert(link("/etc/machine-id", "/etc/other") == 0);
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/other"), "old\n");
	ck_assert_uint_eq(strlen(content("/etc/machine-id")), 33);
}
END_TEST

START_TEST(a_fifo_is_replaced_and_not_waited_for)
{
	Sandgate__Resume m = clone_message();

	ck_assert(mkfifo("/etc/machine-id", 0644) == 0);
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_uint_eq(strlen(content("/etc/machine-id")), 33);
}
END_TEST

START_TEST(a_longer_text_leaves_no_rest)
{
	Sandgate__Resume m = clone_message();

	put_file("/etc/hostname", "a-name-that-is-longer-than-the-next\n");
	m.hostname = BYTES("short");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/hostname"), "short\n");
}
END_TEST

static unsigned mount_count(void)
{
	char line[512];
	unsigned count = 0;
	FILE *f = fopen("/proc/self/mounts", "re");
	while (fgets(line, sizeof(line), f) != NULL)
		count++;
	fclose(f);
	return count;
}

START_TEST(init_gets_the_boot_id_ready_and_leaves_it_as_it_is)
{
	Sandgate__Resume m = clone_message();
	char before[64];

	strcpy(before, content(BOOT_ID));
	renew_get_ready();
	ck_assert_str_eq(content(BOOT_ID), before);
	unsigned mounts = mount_count();
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_ne(content(BOOT_ID), before);
	ck_assert_uint_eq(mount_count(), mounts);
}
END_TEST

START_TEST(on_a_read_only_root_files_are_covered)
{
	Sandgate__Resume m = clone_message();

	put_file("/etc/hostname", "template\n");
	put_file("/etc/machine-id", "x\n");
	ck_assert(mount(NULL, "/etc", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	m.hostname = BYTES("a-long-name");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/hostname"), "a-long-name\n");
	m.hostname = BYTES("short");
	ck_assert_int_eq(carry_out(&m), 0);
	ck_assert_str_eq(content("/etc/hostname"), "short\n");
}
END_TEST

START_TEST(what_fails_is_told_and_the_rest_is_done)
{
	Sandgate__Resume m = clone_message();
	char host[65];

	put_file("/etc/machine-id", "x\n");
	ck_assert(mount(NULL, "/etc", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	ck_assert(mount(NULL, "/run", NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	m.hostname = BYTES("clone");
	ck_assert_int_eq(carry_out(&m), 1 << RENEW_MACHINE_ID | 1 << RENEW_BOOT_ID);
	gethostname(host, sizeof(host));
	ck_assert_str_eq(host, "clone");
}
END_TEST

/* The generator's ioctl fails on any other device. */
START_TEST(a_clone_without_entropy_stops_there)
{
	Sandgate__Resume m = clone_message();
	char before[65], after[65];

	ck_assert(mount("/dev/null", "/dev/urandom", NULL, MS_BIND, NULL) == 0);
	gethostname(before, sizeof(before));
	m.hostname = BYTES("clone");
	ck_assert_int_eq(carry_out(&m), 1 << RENEW_ENTROPY);
	gethostname(after, sizeof(after));
	ck_assert_str_eq(before, after);
}
END_TEST

static void add_tests(TCase *tc)
{
	tcase_add_test(tc, a_clone_gets_its_names);
	tcase_add_test(tc, names_come_from_the_hosts_bytes_which_the_kernel_never_gets);
	tcase_add_test(tc, a_clone_of_a_clone_gets_its_names_too);
	tcase_add_test(tc, files_that_are_not_there_are_not_made);
	tcase_add_test(tc, a_symbolic_link_is_replaced_and_not_followed);
	tcase_add_test(tc, a_file_that_has_two_names_is_replaced);
	tcase_add_test(tc, a_fifo_is_replaced_and_not_waited_for);
	tcase_add_test(tc, a_longer_text_leaves_no_rest);
	tcase_add_test(tc, init_gets_the_boot_id_ready_and_leaves_it_as_it_is);
	tcase_add_test(tc, on_a_read_only_root_files_are_covered);
	tcase_add_test(tc, what_fails_is_told_and_the_rest_is_done);
	tcase_add_test(tc, a_clone_without_entropy_stops_there);
}

int main(void)
{
	return run_own_machine_suite("renew", add_tests);
}
