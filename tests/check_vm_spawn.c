/* Processes of VMs: what one finds in its jail, and who it is there. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host-bridge/vm/vm_spawn.h"
#include "tests/suite_fixture.h"

#define UID 70007

static char dir[] = "/tmp/check_spawn.XXXXXX";
static struct vm_command command;
static struct err e;

static void setup(void)
{
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	ck_assert_int_eq(chown(dir, UID, UID), 0);
	command = (struct vm_command){
	    .uid = UID,
	    .namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET,
	};
	vm_command_jail(&command, "/bin/busybox");
}

static void teardown(void)
{
	vm_command_free(&command);
	remove_tree(dir);
}

/* What `script` prints in the jail. */
static const char *said(const char *script)
{
	static char text[4096];
	struct vm_pid p;
	int fds[2];
	size_t len = 0;
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	vm_command_arg(&command, "/bin/busybox");
	vm_command_arg(&command, "sh");
	vm_command_arg(&command, "-c");
	vm_command_arg(&command, "%s", script);
	ck_assert_msg(vm_spawn(&command, dir, NULL, fds[1], &p, &e) == 0, "%s", e.msg);
	close(fds[1]);
	for (ssize_t n; (n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0;)
		len += (size_t)n;
	text[len] = '\0';
	close(fds[0]);
	waitpid(p.pid, NULL, 0);
	close(p.fd);
	return text;
}

START_TEST(a_jail_holds_what_was_shown_and_nothing_else)
{
	char wanted[128];
	snprintf(wanted, sizeof(wanted), "%d:%d 1\n/bin\n/tmp\n", UID, UID);
	const char *text =
	    said("echo $(busybox id -u):$(busybox id -g) $$;"
	         "for f in /bin /tmp /dev /etc /proc /root; do [ ! -e $f ] || echo $f; done;"
	         "busybox touch /bin/x 2>&- && echo written");
	ck_assert_str_eq(text, wanted);
}
END_TEST

/* One is left, which its pidfd takes. */
START_TEST(a_process_that_no_later_bridge_could_find_again_is_not_started)
{
	struct vm_pid p;
	vm_command_arg(&command, "/bin/busybox");
	struct rlimit all = limit_descriptors(1);
	int rc = vm_spawn(&command, dir, NULL, STDERR_FILENO, &p, &e);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &all), 0);
	ck_assert_int_eq(rc, -1);
	ck_assert_int_eq(e.code, ERR_CAPACITY);
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	ck_assert_int_eq(errno, ECHILD);
}
END_TEST

START_TEST(kvm_can_be_opened_in_a_jail_by_one_who_may_not_open_the_hosts)
{
	struct stat st;
	char wanted[128];
	if (stat("/dev/kvm", &st) < 0) {
		printf("skipped: there is no /dev/kvm\n");
		return;
	}
	command.kvm = true;
	snprintf(wanted, sizeof(wanted), "kvm\nurandom\nc 600 %d:%d a:e8\nopened\n", UID, UID);
	const char *text = said("cd /dev; busybox ls; "
	                        "busybox stat -c 'c %a %u:%g %t:%T' kvm;"
	                        ": <>kvm && echo opened; (: >x) 2>&- && echo written");
	ck_assert_str_eq(text, wanted);
}
END_TEST

int main(void)
{
	TCase *t = new_case("vm_spawn", setup, teardown);
	if (geteuid() == 0) {
		tcase_add_test(t, a_jail_holds_what_was_shown_and_nothing_else);
		tcase_add_test(t,
		               a_process_that_no_later_bridge_could_find_again_is_not_started);
		tcase_add_test(t,
		               kvm_can_be_opened_in_a_jail_by_one_who_may_not_open_the_hosts);
	} else {
		printf("skipped: a jail needs root\n");
	}
	return run_suite("vm_spawn", t) != 0;
}
