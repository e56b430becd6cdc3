/* The user ids of VMs: which ranges are taken, and how one is picked. */
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "host-bridge/vm/vm_uids.h"
#include "tests/suite_fixture.h"

static struct vm_uids uids;
static struct err e;
static uid_t taken_from, taken_to; /* the second one is free */

static bool is_taken(uid_t uid, void *arg)
{
	(void)arg;
	return uid >= taken_from && uid < taken_to;
}

static void setup(void)
{
	uids = (struct vm_uids){.first = 70000, .count = 3};
	e = (struct err){0};
	taken_from = taken_to = 0;
}

START_TEST(a_range_is_a_first_id_and_a_count)
{
	ck_assert_int_eq(vm_uids_parse("100000:65536", &uids), 0);
	ck_assert_uint_eq(uids.first, 100000);
	ck_assert_uint_eq(uids.count, 65536);
	ck_assert_int_eq(vm_uids_parse("1000:1", &uids), 0);
	ck_assert_int_eq(vm_uids_parse("65536:10", &uids), 0);
	ck_assert_int_eq(vm_uids_parse("4294967293:1", &uids), 0);
}
END_TEST

START_TEST(ids_that_are_somebodys_are_refused)
{
	static const char *const bad[] = {
	    "",
	    "70000",
	    "70000:",
	    "70000:0",
	    ":5",
	    "x:5",
	    "70000:x",
	    "70000:5x",
	    "70000:-5",
	    "-70000:5",
	    "999:5",
	    "0:5",
	    "65000:535",
	    "65535:1",
	    "4294967293:2",
	    "4294967295:1",
	    "70000:4294967295",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		ck_assert_msg(vm_uids_parse(bad[i], &uids) < 0, "%s", bad[i]);
	ck_assert_uint_eq(uids.first, 70000);
}
END_TEST

START_TEST(ids_go_round_past_those_that_are_taken)
{
	taken_from = 70001;
	taken_to = 70002;
	ck_assert_uint_eq(vm_uids_pick(&uids, is_taken, NULL, &e), 70000);
	ck_assert_uint_eq(vm_uids_pick(&uids, is_taken, NULL, &e), 70002);
	ck_assert_uint_eq(vm_uids_pick(&uids, is_taken, NULL, &e), 70000);
}
END_TEST

START_TEST(a_range_that_is_used_up_is_no_capacity)
{
	taken_from = 70000;
	taken_to = 70003;
	ck_assert_uint_eq(vm_uids_pick(&uids, is_taken, NULL, &e), 0);
	ck_assert_int_eq(e.code, ERR_CAPACITY);
	taken_to = 70002;
	ck_assert_uint_eq(vm_uids_pick(&uids, is_taken, NULL, &e), 70002);
}
END_TEST

START_TEST(without_a_range_or_without_root_vms_are_nobody)
{
	ck_assert_int_eq(seteuid(VM_UID), 0);
	ck_assert_uint_eq(vm_uids_pick(&uids, is_taken, NULL, &e), VM_UID);
	ck_assert_int_eq(seteuid(0), 0);
	uids.count = 0;
	ck_assert_uint_eq(vm_uids_pick(&uids, is_taken, NULL, &e), VM_UID);
}
END_TEST

static void write_line(const char *path, const char *line)
{
	FILE *f = fopen(path, "we");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_ge(fputs(line, f), 0);
	ck_assert_int_eq(fclose(f), 0);
}

/* A user namespace with root alone. */
static void enter_small_namespace(void)
{
	ck_assert_int_eq(unshare(CLONE_NEWUSER), 0);
	write_line("/proc/self/setgroups", "deny");
	write_line("/proc/self/uid_map", "0 0 1");
	write_line("/proc/self/gid_map", "0 0 1");
}

START_TEST(ids_that_a_namespace_lacks_are_refused_when_they_were_asked_for)
{
	ck_assert_int_eq(vm_uids_open(&uids, NULL, &e), 0);
	ck_assert_uint_ge(uids.count, 1024);
	ck_assert_int_eq(vm_uids_open(&uids, "70000:5", &e), 0);
	ck_assert_uint_eq(uids.count, 5);
	enter_small_namespace();
	ck_assert_int_lt(vm_uids_open(&uids, "70000:5", &e), 0);
	ck_assert_str_eq(e.field, "vm-uids");
	ck_assert_int_eq(vm_uids_open(&uids, NULL, &e), 0);
	ck_assert_uint_eq(uids.count, 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("vm_uids", setup, NULL);
	tcase_add_test(t, a_range_is_a_first_id_and_a_count);
	tcase_add_test(t, ids_that_are_somebodys_are_refused);
	if (geteuid() == 0) {
		tcase_add_test(t, ids_go_round_past_those_that_are_taken);
		tcase_add_test(t, a_range_that_is_used_up_is_no_capacity);
		tcase_add_test(t, without_a_range_or_without_root_vms_are_nobody);
		tcase_add_test(t,
		               ids_that_a_namespace_lacks_are_refused_when_they_were_asked_for);
	}
	return run_suite("vm_uids", t) != 0;
}
