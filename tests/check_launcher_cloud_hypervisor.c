/* What the launcher of Cloud Hypervisor plans, when it is chosen, and what the VMM is told. */
#include "host-bridge/http/doc.h"
#include "host-bridge/vm/vmm_cloud_hypervisor.h"
#include "host-bridge/vm/vmm_room.h"
#include "tests/launcher_fixture.h"

#define NOW ROOM_VERSION(53, 0, 0)

static struct vmm_boot boot;
static json_t *config;

static void setup(void)
{
	setup_launcher();
	install("ch-v53", "cloud-hypervisor");
	memset(&boot, 0, sizeof(boot));
	boot.vcpus = 2;
	boot.memory_mib = 256;
	config = NULL;
}

static void teardown(void)
{
	json_decref(config);
	teardown_launcher();
}

static const char *text_at(const char *object, const char *key)
{
	return json_string_value(json_object_get(json_object_get(config, object), key));
}

static const char *disk_path(size_t n)
{
	const json_t *disk = json_array_get(json_object_get(config, "disks"), n);
	return json_string_value(json_object_get(disk, "path"));
}

static void add_disks(void)
{
	strcpy(boot.root, "/rootfs/root.ext4");
	boot.disk_mib = 64;
}

/* ---- the plan ---- */

START_TEST(root_locks_it_up_as_the_vms_user_with_a_kvm_of_its_own)
{
	char wanted[128];
	strcpy(request.template.root, "/rootfs/root.ext4");
	ck_assert_msg(make_plan(&launcher_cloud_hypervisor) == 0, "%s", e.msg);
	snprintf(wanted, sizeof(wanted), "%s/ch-v53 --api-socket api.sock", dir);
	ck_assert_str_eq(command(), wanted);
	expect_boot("/state/vm/1/v.sock");
	ck_assert_uint_eq(plan.command[0].uid, 70007);
	ck_assert_uint_eq(plan.uid, 70007);
	ck_assert(plan.command[0].kvm);
	/* What it sees is the program itself, not a link to it, and the image, not the kernel.
	 */
	ck_assert_uint_eq(plan.command[0].jailc, 2);
	ck_assert_int_eq(strncmp(plan.command[0].jail[0], wanted, strlen(dir) + 7), 0);
	ck_assert_str_eq(plan.command[0].jail[1], "/rootfs/root.ext4");
}
END_TEST

START_TEST(others_start_it_alone)
{
	char wanted[128];
	ck_assert_msg(make_plan_as_nobody(&launcher_cloud_hypervisor) == 0, "%s", e.msg);
	snprintf(wanted, sizeof(wanted), "%s/ch-v53 --api-socket api.sock", dir);
	ck_assert_str_eq(command(), wanted);
	ck_assert_uint_eq(plan.command[0].jailc, 0);
	ck_assert_uint_eq(plan.command[0].namespaces, 0);
}
END_TEST

START_TEST(what_is_restored_is_told_its_size_and_not_what_to_boot)
{
	expect_restore(&launcher_cloud_hypervisor);
}
END_TEST

START_TEST(a_path_too_long_for_its_sockets_is_refused)
{
	expect_too_deep(&launcher_cloud_hypervisor, 105);
}
END_TEST

START_TEST(auto_takes_it_where_its_trial_of_kvm_has_succeeded)
{
	struct launcher_host host = {.rootfs_dir = dir, .agent_path = "/none"};
	host.kvm = &launcher_cloud_hypervisor;
	ck_assert_ptr_eq(launcher_choose("auto", &host, &e), &launcher_cloud_hypervisor);
	host.kvm = &launcher_firecracker;
	ck_assert_ptr_ne(launcher_choose("auto", &host, &e), &launcher_cloud_hypervisor);
	host.kvm = NULL;
	ck_assert_ptr_ne(launcher_choose("auto", &host, &e), &launcher_cloud_hypervisor);
	ck_assert_ptr_eq(launcher_choose("cloud-hypervisor", &host, &e),
	                 &launcher_cloud_hypervisor);
	host.kvm = &launcher_cloud_hypervisor;
	uninstall("cloud-hypervisor");
	ck_assert_ptr_ne(launcher_choose("auto", &host, &e), &launcher_cloud_hypervisor);
	ck_assert_ptr_null(launcher_choose("cloud-hypervisor", &host, &e));
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
}
END_TEST

START_TEST(it_comes_after_firecracker_and_before_qemu)
{
	unsigned n = 0;
	while (launcher_at(n) != &launcher_cloud_hypervisor)
		n++;
	ck_assert_uint_gt(n, 0);
	ck_assert_ptr_eq(launcher_at(n - 1), &launcher_firecracker);
	ck_assert_ptr_eq(launcher_at(n + 1), &launcher_qemu);
}
END_TEST

/* ---- what it is told ---- */

START_TEST(vm_is_created_with_all_that_it_has)
{
	add_disks();
	config = cloud_hypervisor_config(&boot, NOW);
	ck_assert_ptr_nonnull(config);
	const char *arguments = text_at("payload", "cmdline");
	ck_assert_msg(strstr(arguments, "console=tty") == arguments, "%s", arguments);
	ck_assert_ptr_nonnull(strstr(arguments, " panic=-1 "));
	ck_assert_ptr_nonnull(strstr(arguments, " sandgate.root=/dev/vda"));
	ck_assert_ptr_nonnull(strstr(arguments, " sandgate.disk=/dev/vdb"));
	char *text = doc_text(config, JSON_COMPACT | JSON_SORT_KEYS);
	char wanted[1024];
	snprintf(wanted, sizeof(wanted),
	         "{\"console\":{\"mode\":\"Off\"},"
	         "\"cpus\":{\"boot_vcpus\":2,\"max_vcpus\":2,\"nested\":false},"
	         "\"disks\":[{\"image_type\":\"Raw\",\"path\":\"/rootfs/root.ext4\","
	         "\"readonly\":true},{\"image_type\":\"Raw\",\"path\":\"disk\","
	         "\"readonly\":false}],\"memory\":{\"shared\":true,\"size\":268435456},"
	         "\"payload\":{\"cmdline\":\"%s\",\"initramfs\":\"initrd\","
	         "\"kernel\":\"kernel\"},\"serial\":{\"mode\":\"Tty\"},"
	         "\"vsock\":{\"cid\":3,\"socket\":\"v.sock\"}}",
	         arguments);
	ck_assert_str_eq(text, wanted);
	free(text);
}
END_TEST

START_TEST(fields_that_a_version_does_not_know_are_not_sent)
{
	add_disks();
	config = cloud_hypervisor_config(&boot, ROOM_VERSION(50, 2, 0));
	ck_assert_ptr_null(json_object_get(json_object_get(config, "cpus"), "nested"));
	ck_assert_ptr_null(
	    json_object_get(json_array_get(json_object_get(config, "disks"), 0), "image_type"));
}
END_TEST

START_TEST(a_restored_vm_gets_its_own_socket_and_disks_and_keeps_the_rest)
{
	config = json_loads(
	    "{\"payload\":{\"kernel\":\"k\",\"cmdline\":\"c\",\"initramfs\":\"i\"},"
	    "\"vsock\":{\"id\":\"_vsock0\",\"cid\":3,\"socket\":\"/elsewhere\"},"
	    "\"disks\":[{\"id\":\"_disk0\",\"path\":\"/old/root\",\"readonly\":true},"
	    "{\"id\":\"_disk1\",\"path\":\"/other/vm/disk\"}],\"memory\":{\"size\":5}}",
	    0, NULL);
	add_disks();
	ck_assert_int_eq(cloud_hypervisor_edit(config, &boot), 0);
	ck_assert_str_eq(text_at("vsock", "socket"), "v.sock");
	ck_assert_str_eq(text_at("vsock", "id"), "_vsock0");
	ck_assert_int_eq(
	    json_integer_value(json_object_get(json_object_get(config, "vsock"), "cid")), 3);
	ck_assert_str_eq(disk_path(0), "/rootfs/root.ext4");
	ck_assert_str_eq(disk_path(1), "disk");
	ck_assert_str_eq(text_at("payload", "cmdline"), "c");
	ck_assert_ptr_null(text_at("payload", "initramfs"));
	ck_assert_int_eq(
	    json_integer_value(json_object_get(json_object_get(config, "memory"), "size")), 5);
}
END_TEST

static const char *const no_configs[] = {
    "[]",
    "{}",
    "{\"payload\":{\"kernel\":\"k\"}}",
    "{\"vsock\":{}}",
    "{\"payload\":{},\"vsock\":5}",
    "{\"payload\":{},\"vsock\":{},\"disks\":[{},{}]}",
    "{\"payload\":{},\"vsock\":{},\"disks\":[5]}",
};

START_TEST(what_is_no_configuration_is_not_edited)
{
	config = json_loads(no_configs[_i], 0, NULL);
	boot.disk_mib = _i >= 5 ? 64 : 0;
	ck_assert_int_eq(cloud_hypervisor_edit(config, &boot), -1);
	ck_assert_int_eq(cloud_hypervisor_edit(NULL, &boot), -1);
}
END_TEST

START_TEST(a_configuration_without_disks_needs_none)
{
	config = json_loads("{\"payload\":{},\"vsock\":{}}", 0, NULL);
	ck_assert_int_eq(cloud_hypervisor_edit(config, &boot), 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("launcher_cloud_hypervisor", setup, teardown);
	if (geteuid() == 0) {
		tcase_add_test(t, root_locks_it_up_as_the_vms_user_with_a_kvm_of_its_own);
		tcase_add_test(t, others_start_it_alone);
	}
	tcase_add_test(t, what_is_restored_is_told_its_size_and_not_what_to_boot);
	tcase_add_test(t, a_path_too_long_for_its_sockets_is_refused);
	tcase_add_test(t, auto_takes_it_where_its_trial_of_kvm_has_succeeded);
	tcase_add_test(t, it_comes_after_firecracker_and_before_qemu);
	tcase_add_test(t, vm_is_created_with_all_that_it_has);
	tcase_add_test(t, fields_that_a_version_does_not_know_are_not_sent);
	tcase_add_test(t, a_restored_vm_gets_its_own_socket_and_disks_and_keeps_the_rest);
	tcase_add_loop_test(t, what_is_no_configuration_is_not_edited, 0,
	                    (int)(sizeof(no_configs) / sizeof(*no_configs)));
	tcase_add_test(t, a_configuration_without_disks_needs_none);
	return run_suite("launcher_cloud_hypervisor", t) != 0;
}
