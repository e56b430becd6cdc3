/*
 * For tests of what a launcher plans: programs on PATH that stand for VMMs and are never
 * started, a request, and the plan made of it.
 */
#ifndef SANDGATE_LAUNCHER_FIXTURE_H
#define SANDGATE_LAUNCHER_FIXTURE_H

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/launcher/launcher.h"
#include "tests/suite_fixture.h"

static char dir[] = "/tmp/check_lau.XXXXXX"; /* all that is on PATH */
static char old_path[4096];
static struct vm_plan plan;
static struct launcher_request request;
static struct err e;

/* A program, and when `link` is given one by that name that leads to it. */
static inline void install(const char *name, const char *link)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	ck_assert_int_ge(fd, 0);
	close(fd);
	snprintf(path, sizeof(path), "%s/%s", dir, link != NULL ? link : "");
	if (link != NULL)
		ck_assert_int_eq(symlink(name, path), 0);
}

static inline void uninstall(const char *name)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	ck_assert_int_eq(unlink(path), 0);
}

static inline void setup_request(void)
{
	memset(&plan, 0, sizeof(plan));
	memset(&request, 0, sizeof(request));
	memset(&e, 0, sizeof(e));
	request.id = "sb-1";
	request.dir = "/state/vm/1";
	request.uid = 70007;
	request.vcpus = 2;
	request.memory_mib = 256;
	strcpy(request.template.kernel, "/rootfs/vmlinux");
	strcpy(request.template.initrd, "/rootfs/base.cpio");
}

static inline void setup_launcher(void)
{
	setup_request();
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(chmod(dir, 0755), 0);
	snprintf(old_path, sizeof(old_path), "%s", getenv("PATH"));
	setenv("PATH", dir, 1);
}

static inline void teardown_launcher(void)
{
	vm_plan_free(&plan);
	setenv("PATH", old_path, 1);
	remove_tree(dir);
}

static inline int make_plan(const struct launcher *l)
{
	static const struct launcher_host host;
	return l->plan(&host, &request, &plan, &e);
}

/* The same for a bridge that is not root. */
static inline int make_plan_as_nobody(const struct launcher *l)
{
	ck_assert_int_eq(seteuid(VM_UID), 0);
	int rc = make_plan(l);
	ck_assert_int_eq(seteuid(0), 0);
	return rc;
}

/* The words of the plan's program, with blanks between them. */
static inline const char *command(void)
{
	static char text[1024];
	size_t n = 0;
	for (char **word = plan.command[0].argv; *word != NULL; word++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n > 0 ? " " : "",
		                      *word);
	return text;
}

/* The plan's VMM is reached there, and told to boot all that was asked for. */
static inline void expect_boot(const char *socket)
{
	ck_assert_uint_eq(plan.count, 1);
	ck_assert_str_eq(plan.endpoint.path, socket);
	ck_assert_int_eq(plan.endpoint.kind, TRANSPORT_HYBRID);
	ck_assert_str_eq(plan.boot.kernel, "/rootfs/vmlinux");
	ck_assert_str_eq(plan.boot.initrd, "/rootfs/base.cpio");
	ck_assert_uint_eq(plan.boot.vcpus, 2);
	ck_assert_str_eq(plan.restore, "");
}

/* A plan to restore tells the VMM its size, and not what to boot. */
static inline void expect_restore(const struct launcher *l)
{
	request.restore = "/state/snapshots/s";
	ck_assert_msg(make_plan(l) == 0, "%s", e.msg);
	ck_assert_str_eq(plan.restore, "/state/snapshots/s");
	ck_assert_str_eq(plan.boot.kernel, "");
	ck_assert_uint_eq(plan.boot.memory_mib, 256);
}

/* A VM's directory whose path is that long leaves no room for those of its sockets. */
static inline void expect_too_deep(const struct launcher *l, size_t length)
{
	char deep[128] = "/";
	memset(deep + 1, 'd', length - 1);
	request.dir = deep;
	ck_assert_int_lt(make_plan(l), 0);
	ck_assert_int_eq(e.code, ERR_LAUNCHER_FAILED);
}

#endif
