/* What the launcher of Firecracker plans, and when it is chosen. Programs stand for it that are
 * never started. */
#include "tests/launcher_fixture.h"

static void setup(void)
{
	setup_launcher();
	install("jailer", NULL);
	install("firecracker-v1", "firecracker");
}

START_TEST(root_starts_it_through_its_jailer)
{
	char wanted[512];
	ck_assert_msg(make_plan(&launcher_firecracker) == 0, "%s", e.msg);
	snprintf(wanted, sizeof(wanted),
	         "jailer --id vm --exec-file %s/firecracker-v1 --uid 70007 --gid 70007"
	         " --chroot-base-dir /state/vm/1 -- --api-sock api.sock",
	         dir);
	ck_assert_str_eq(command(), wanted);
	/* The jail is named after the file itself, not after a link to it. */
	expect_boot("/state/vm/1/firecracker-v1/vm/root/v.sock");
}
END_TEST

START_TEST(others_start_it_alone)
{
	char wanted[512];
	ck_assert_msg(make_plan_as_nobody(&launcher_firecracker) == 0, "%s", e.msg);
	snprintf(wanted, sizeof(wanted), "%s/firecracker-v1 --api-sock api.sock", dir);
	ck_assert_str_eq(command(), wanted);
	ck_assert_str_eq(plan.endpoint.path, "/state/vm/1/v.sock");
}
END_TEST

START_TEST(what_is_restored_is_told_its_size_and_not_what_to_boot)
{
	expect_restore(&launcher_firecracker);
}
END_TEST

START_TEST(more_vcpus_than_it_can_have_are_refused)
{
	request.vcpus = 33;
	ck_assert_int_lt(make_plan(&launcher_firecracker), 0);
	ck_assert_int_eq(e.code, ERR_INVALID_FIELD);
	ck_assert_str_eq(e.field, "resources.vcpus");
}
END_TEST

START_TEST(a_path_too_long_for_its_sockets_is_refused)
{
	expect_too_deep(&launcher_firecracker, 100);
}
END_TEST

START_TEST(auto_takes_it_where_kvm_has_been_proved)
{
	struct launcher_host host = {
	    .rootfs_dir = dir, .agent_path = "/none", .kvm = &launcher_firecracker};
	ck_assert_ptr_eq(launcher_choose("auto", &host, &e), &launcher_firecracker);
	host.kvm = &launcher_qemu; /* it was tried before, in vain */
	ck_assert_ptr_ne(launcher_choose("auto", &host, &e), &launcher_firecracker);
	host.kvm = NULL;
	ck_assert_ptr_ne(launcher_choose("auto", &host, &e), &launcher_firecracker);
	ck_assert_int_lt(launcher_works(&launcher_firecracker, &host, &e), 0);
	ck_assert_ptr_eq(launcher_choose("firecracker", &host, &e), &launcher_firecracker);
	host.kvm = &launcher_firecracker;
	uninstall(geteuid() == 0 ? "jailer" : "firecracker");
	ck_assert_ptr_ne(launcher_choose("auto", &host, &e), &launcher_firecracker);
	ck_assert_ptr_null(launcher_choose("firecracker", &host, &e));
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
}
END_TEST

int main(void)
{
	TCase *t = new_case("launcher_firecracker", setup, teardown_launcher);
	if (geteuid() == 0) {
		tcase_add_test(t, root_starts_it_through_its_jailer);
		tcase_add_test(t, others_start_it_alone);
	}
	tcase_add_test(t, what_is_restored_is_told_its_size_and_not_what_to_boot);
	tcase_add_test(t, more_vcpus_than_it_can_have_are_refused);
	tcase_add_test(t, a_path_too_long_for_its_sockets_is_refused);
	tcase_add_test(t, auto_takes_it_where_kvm_has_been_proved);
	return run_suite("launcher_firecracker", t) != 0;
}
