/* What the launcher of Firecracker plans, and when it is chosen. Programs stand for it that are
 * never started. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/sandbox/launcher.h"
#include "tests/suite_fixture.h"

static char dir[] = "/tmp/check_fc.XXXXXX";
static char old_path[4096];
static struct vm_plan plan;
static struct launcher_request request;
static struct err e;

static void install(const char *name)
{
	char path[64];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	ck_assert_int_ge(fd, 0);
	close(fd);
}

static void setup(void)
{
	memset(&plan, 0, sizeof(plan));
	memset(&request, 0, sizeof(request));
	memset(&e, 0, sizeof(e));
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(old_path, sizeof(old_path), "%s", getenv("PATH"));
	setenv("PATH", dir, 1);
	install("jailer");
	install("firecracker-v1");
	char link[64];
	snprintf(link, sizeof(link), "%s/firecracker", dir);
	ck_assert_int_eq(symlink("firecracker-v1", link), 0);
	request.id = "sb-1";
	request.dir = "/state/vm/1";
	request.uid = 70007;
	request.vcpus = 2;
	request.memory_mib = 256;
	strcpy(request.template.kernel, "/rootfs/vmlinux");
	strcpy(request.template.initrd, "/rootfs/base.cpio");
}

static void teardown(void)
{
	vm_plan_free(&plan);
	setenv("PATH", old_path, 1);
	remove_tree(dir);
}

static int make_plan(void)
{
	static const struct launcher_host host;
	return launcher_firecracker.plan(&host, &request, &plan, &e);
}

/* Its words, with blanks between them. */
static const char *command(void)
{
	static char text[1024];
	size_t n = 0;
	for (char **word = plan.command[0].argv; *word != NULL; word++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n > 0 ? " " : "",
		                      *word);
	return text;
}

START_TEST(root_starts_it_through_its_jailer)
{
	char wanted[512];
	ck_assert_msg(make_plan() == 0, "%s", e.msg);
	snprintf(wanted, sizeof(wanted),
	         "jailer --id vm --exec-file %s/firecracker-v1 --uid 70007 --gid 70007"
	         " --chroot-base-dir /state/vm/1 -- --api-sock api.sock",
	         dir);
	ck_assert_str_eq(command(), wanted);
	ck_assert_uint_eq(plan.count, 1);
	/* The jail is named after the file itself, not after a link to it. */
	ck_assert_str_eq(plan.endpoint.path, "/state/vm/1/firecracker-v1/vm/root/v.sock");
	ck_assert_int_eq(plan.endpoint.kind, TRANSPORT_HYBRID);
	ck_assert_str_eq(plan.boot.kernel, "/rootfs/vmlinux");
	ck_assert_str_eq(plan.boot.initrd, "/rootfs/base.cpio");
	ck_assert_uint_eq(plan.boot.vcpus, 2);
	ck_assert_str_eq(plan.restore, "");
}
END_TEST

START_TEST(others_start_it_alone)
{
	char wanted[512];
	ck_assert_int_eq(chmod(dir, 0755), 0);
	ck_assert_int_eq(seteuid(VM_UID), 0);
	int rc = make_plan();
	ck_assert_int_eq(seteuid(0), 0);
	ck_assert_msg(rc == 0, "%s", e.msg);
	snprintf(wanted, sizeof(wanted), "%s/firecracker-v1 --api-sock api.sock", dir);
	ck_assert_str_eq(command(), wanted);
	ck_assert_str_eq(plan.endpoint.path, "/state/vm/1/v.sock");
}
END_TEST

START_TEST(what_is_restored_is_not_told_what_to_boot)
{
	request.restore = "/state/snapshots/s";
	ck_assert_msg(make_plan() == 0, "%s", e.msg);
	ck_assert_str_eq(plan.restore, "/state/snapshots/s");
	ck_assert_str_eq(plan.boot.kernel, "");
}
END_TEST

START_TEST(what_it_cannot_be_asked_is_refused)
{
	char deep[128];
	request.vcpus = 33;
	ck_assert_int_lt(make_plan(), 0);
	ck_assert_int_eq(e.code, ERR_INVALID_FIELD);
	ck_assert_str_eq(e.field, "resources.vcpus");
	vm_plan_free(&plan);
	memset(deep, 'd', sizeof(deep));
	memcpy(deep, "/", 1);
	deep[100] = '\0';
	request.vcpus = 1;
	request.dir = deep;
	ck_assert_int_lt(make_plan(), 0);
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
}
END_TEST

START_TEST(auto_takes_it_where_kvm_has_been_proved)
{
	char path[64];
	struct launcher_host host = {.rootfs_dir = dir, .agent_path = "/none", .kvm = true};
	ck_assert_ptr_eq(launcher_choose("auto", &host, &e), &launcher_firecracker);
	host.kvm = false;
	ck_assert_ptr_ne(launcher_choose("auto", &host, &e), &launcher_firecracker);
	ck_assert_int_lt(launcher_works(&launcher_firecracker, &host, &e), 0);
	ck_assert_ptr_eq(launcher_choose("firecracker", &host, &e), &launcher_firecracker);
	host.kvm = true;
	snprintf(path, sizeof(path), "%s/%s", dir, geteuid() == 0 ? "jailer" : "firecracker");
	unlink(path);
	ck_assert_ptr_ne(launcher_choose("auto", &host, &e), &launcher_firecracker);
	ck_assert_ptr_null(launcher_choose("firecracker", &host, &e));
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
}
END_TEST

int main(void)
{
	TCase *t = tcase_create("launcher_firecracker");
	tcase_add_checked_fixture(t, setup, teardown);
	if (geteuid() == 0) {
		tcase_add_test(t, root_starts_it_through_its_jailer);
		tcase_add_test(t, others_start_it_alone);
	}
	tcase_add_test(t, what_is_restored_is_not_told_what_to_boot);
	tcase_add_test(t, what_it_cannot_be_asked_is_refused);
	tcase_add_test(t, auto_takes_it_where_kvm_has_been_proved);
	return run_suite("launcher_firecracker", t) != 0;
}
