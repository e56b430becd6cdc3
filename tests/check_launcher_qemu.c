/* What the launcher of QEMU plans: with KVM and without it, for root and for others. */
#include "tests/launcher_fixture.h"

static struct launcher_host host;

static void setup(void)
{
	setup_request();
	host = (struct launcher_host){.rootfs_dir = "/rootfs"};
	request.memory = "/memory/1";
	request.cgroup = "/cgroup/1";
}

static void teardown(void)
{
	vm_plan_free(&plan);
}

static bool has_word(const struct vm_command *c, const char *word)
{
	for (unsigned i = 0; i < c->argc; i++)
		if (strcmp(c->argv[i], word) == 0)
			return true;
	return false;
}

static const struct vm_command *qemu_plan(void)
{
	int rc = launcher_plan(&launcher_qemu, &host, &request, &plan, &e);
	ck_assert_msg(rc == 0, "%s", e.msg);
	ck_assert_uint_eq(plan.count, 2);
	return &plan.command[1];
}

START_TEST(root_locks_it_up_with_kvm_and_without)
{
	host.kvm = _i == 1 ? &launcher_qemu : NULL;
	const struct vm_command *c = qemu_plan();
	ck_assert(has_word(c, host.kvm ? "kvm" : "tcg"));
	ck_assert_int_eq(c->kvm, host.kvm != NULL);
	ck_assert_uint_gt(c->jailc, 0);
	ck_assert_str_eq(c->writable, "/memory/1");
	ck_assert_uint_eq(c->uid, 70007);
	ck_assert(has_word(&plan.command[0], "70007"));
	ck_assert_uint_eq(plan.uid, 70007);
}
END_TEST

START_TEST(others_start_it_as_they_are)
{
	ck_assert_int_eq(seteuid(VM_UID), 0);
	const struct vm_command *c = qemu_plan();
	ck_assert_int_eq(seteuid(0), 0);
	ck_assert_uint_eq(c->jailc, 0);
	ck_assert_uint_eq(c->uid, 0);
}
END_TEST

START_TEST(its_cgroup_is_bounded_by_what_the_vm_has)
{
	qemu_plan();
	ck_assert_str_eq(plan.cgroup, "/cgroup/1");
	ck_assert(!plan.enters_cgroup);
	ck_assert_uint_eq(plan.size.memory_mib, 256);
	ck_assert_uint_eq(plan.size.vcpus, 2);
}
END_TEST

/* Its words from the first -blockdev on that are about disks, each followed by a blank. */
static const char *disk_words(const struct vm_command *c)
{
	static char text[1024];
	size_t n = 0;
	text[0] = '\0';
	for (unsigned i = 0; i + 1 < c->argc; i++)
		if (strcmp(c->argv[i], "-blockdev") == 0 ||
		    strncmp(c->argv[i + 1], "virtio-blk", 10) == 0)
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s %s ", c->argv[i],
			                      c->argv[i + 1]);
	return text;
}

/* A state that is loaded finds its disks where they were saved. */
START_TEST(disks_are_at_the_same_places_when_it_is_restored)
{
	char booted[1024];
	strcpy(request.template.root, "/state/images/1");
	request.disk_mib = 64;
	const struct vm_command *c = qemu_plan();
	ck_assert_str_eq(disk_words(c),
	                 "-blockdev driver=file,node-name=root,read-only=on,"
	                 "filename=/state/images/1 "
	                 "-device virtio-blk-pci,id=root0,drive=root,addr=0x10 "
	                 "-blockdev driver=file,node-name=disk,cache.no-flush=on,filename=disk "
	                 "-device virtio-blk-pci,id=disk0,drive=disk,addr=0x11,"
	                 "werror=report,rerror=report ");
	strcpy(booted, disk_words(c));
	ck_assert_uint_eq(plan.boot.disk_mib, 64);
	ck_assert_str_eq(plan.boot.root, "/state/images/1");
	ck_assert_uint_eq(plan.boot.disk_owner, 70007);
	vm_plan_free(&plan);
	memset(&plan, 0, sizeof(plan));
	request.restore = "/state/snapshots/s";
	int rc = launcher_plan(&launcher_qemu, &host, &request, &plan, &e);
	ck_assert_msg(rc == 0, "%s", e.msg);
	ck_assert_str_eq(disk_words(&plan.command[0]), booted); /* it starts first */
}
END_TEST

START_TEST(without_disks_it_has_none)
{
	ck_assert_str_eq(disk_words(qemu_plan()), "");
	ck_assert_uint_eq(plan.boot.disk_mib, 0);
}
END_TEST

int main(void)
{
	TCase *t = new_case("launcher_qemu", setup, teardown);
	if (geteuid() == 0) {
		tcase_add_loop_test(t, root_locks_it_up_with_kvm_and_without, 0, 2);
		tcase_add_test(t, others_start_it_as_they_are);
	}
	tcase_add_test(t, its_cgroup_is_bounded_by_what_the_vm_has);
	tcase_add_test(t, disks_are_at_the_same_places_when_it_is_restored);
	tcase_add_test(t, without_disks_it_has_none);
	return run_suite("launcher_qemu", t) != 0;
}
