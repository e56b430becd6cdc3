/* The cgroups of VMs, with processes that stand for them. What the cgroup v2 of the machine has
 * not (memory, pids, cpu) is skipped and said: this program is run inside a guest, too. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host-bridge/vm/vm_cgroup.h"
#include "host-bridge/vm/vm_spawn.h"
#include "proto/limits.h"
#include "tests/suite_fixture.h"

#define PATIENCE_MS 10000

static char tree[PATH_MAX], leaf[PATH_MAX], name[64];
static const struct vm_cgroup_size size = {.memory_mib = 64, .vcpus = 2};
static struct err e;

static void setup(void)
{
	snprintf(name, sizeof(name), "sandgate-check-%d", (int)getpid());
	e = (struct err){0};
	ck_assert_int_eq(vm_cgroup_open(tree, name, &e), 0);
	snprintf(leaf, sizeof(leaf), "%.*s/01ABC", PATH_MAX / 2, tree);
}

static void teardown(void)
{
	vm_cgroup_close(tree);
	ck_assert_int_lt(access(tree, F_OK), 0);
}

static void read_text(const char *dir, const char *file, char *out, size_t room)
{
	char path[PATH_MAX + 64];
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, out, room - 1) : -1;
	if (fd >= 0)
		close(fd);
	out[n > 0 ? n : 0] = '\0';
	out[strcspn(out, "\n")] = '\0';
}

static void write_text(const char *dir, const char *file, const char *text)
{
	char path[PATH_MAX + 64];
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ck_assert_msg(fd >= 0 && write(fd, text, strlen(text)) > 0, "%s: %s", path,
	              strerror(errno));
	close(fd);
}

/* A process that leaves another one behind, out of its session, once both are there. */
static struct vm_pid start_in(const char *cgroup)
{
	struct vm_command c = {0};
	struct vm_pid p;
	int fds[2];
	char byte;
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	vm_command_arg(&c, "/bin/sh");
	vm_command_arg(&c, "-c");
	vm_command_arg(&c, "setsid sleep 1000 & echo x; exec sleep 1000");
	ck_assert_msg(vm_spawn(&c, "/", cgroup, fds[1], &p, &e) == 0, "%s", e.msg);
	close(fds[1]);
	ck_assert_int_eq(read(fds[0], &byte, 1), 1);
	close(fds[0]);
	vm_command_free(&c);
	return p;
}

/* Its line in the hierarchy of v2. */
static void cgroup_of(pid_t pid, char line[PATH_MAX])
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
	FILE *f = fopen(path, "re");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, PATH_MAX, f) != NULL && strncmp(line, "0::", 3) != 0)
		;
	fclose(f);
}

static void wait_for(struct vm_pid *p)
{
	struct pollfd ended = {.fd = p->fd, .events = POLLIN};
	ck_assert_int_eq(poll(&ended, 1, PATIENCE_MS), 1);
	waitpid(p->pid, NULL, 0);
	close(p->fd);
}

static void wait_removed(const char *dir)
{
	for (int i = 0; i < PATIENCE_MS && !vm_cgroup_remove(dir); i++)
		poll(NULL, 0, 1);
	ck_assert_int_lt(access(dir, F_OK), 0);
}

START_TEST(a_process_is_born_in_its_leaf_and_goes_with_all_that_it_started)
{
	char wanted[128], group[PATH_MAX] = "";
	ck_assert_msg(vm_cgroup_make(leaf, &size, &e) == 0, "%s", e.msg);
	struct vm_pid p = start_in(leaf);
	cgroup_of(p.pid, group);
	snprintf(wanted, sizeof(wanted), "/%s/01ABC\n", name);
	ck_assert_msg(strstr(group, wanted) != NULL, "%s", group);
	ck_assert(!vm_cgroup_remove(leaf));
	vm_cgroup_kill(leaf);
	wait_for(&p);
	wait_removed(leaf);
}
END_TEST

START_TEST(a_leaf_that_has_become_a_tree_is_removed_whole)
{
	char below[PATH_MAX + 16];
	ck_assert_int_eq(vm_cgroup_make(leaf, &size, &e), 0);
	snprintf(below, sizeof(below), "%s/a", leaf);
	ck_assert_int_eq(vm_cgroup_make(below, &size, &e), 0);
	strcat(below, "/b");
	ck_assert_int_eq(vm_cgroup_make(below, &size, &e), 0);
	struct vm_pid p = start_in(below);
	ck_assert(!vm_cgroup_remove(leaf));
	vm_cgroup_kill(leaf);
	wait_for(&p);
	wait_removed(leaf);
	ck_assert(vm_cgroup_remove(leaf)); /* what is gone is gone */
}
END_TEST

static bool is_leaf(const char *path, void *arg)
{
	(void)arg;
	return strcmp(path, leaf) == 0;
}

START_TEST(what_nobody_owns_is_swept_and_what_is_known_stays)
{
	char orphan[PATH_MAX];
	snprintf(orphan, sizeof(orphan), "%.*s/01XYZ", PATH_MAX / 2, tree);
	ck_assert_int_eq(vm_cgroup_make(leaf, &size, &e), 0);
	ck_assert_int_eq(vm_cgroup_make(orphan, &size, &e), 0);
	struct vm_pid kept = start_in(leaf), lost = start_in(orphan);
	vm_cgroup_close(tree); /* its owner ends without knowing better */
	ck_assert_int_eq(vm_cgroup_open(tree, name, &e), 0);
	ck_assert_int_eq(vm_cgroup_sweep(tree, is_leaf, NULL, &e), 0);
	wait_for(&lost);
	ck_assert_int_lt(access(orphan, F_OK), 0);
	ck_assert_int_eq(waitpid(kept.pid, NULL, WNOHANG), 0);
	vm_cgroup_kill(leaf);
	wait_for(&kept);
	wait_removed(leaf);
}
END_TEST

START_TEST(without_the_right_there_is_no_tree)
{
	char none[PATH_MAX];
	snprintf(name, sizeof(name), "sandgate-check-none");
	ck_assert_int_eq(seteuid(65534), 0);
	ck_assert_int_eq(vm_cgroup_open(none, name, &e), 0);
	ck_assert_int_eq(vm_cgroup_sweep(none, is_leaf, NULL, &e), 0);
	vm_cgroup_close(none);
	ck_assert_int_eq(seteuid(0), 0);
	ck_assert_str_eq(none, "");
	ck_assert(vm_cgroup_remove(none)); /* a VM without one has nothing to remove */
	vm_cgroup_kill(none);
}
END_TEST

/* ---- where there are controllers ---- */

static bool has_bounds(void)
{
	char text[256];
	read_text(tree, "cgroup.subtree_control", text, sizeof(text));
	if (strstr(text, "memory") != NULL && strstr(text, "pids") != NULL)
		return true;
	printf("skipped: no memory and pids controllers in %s\n", tree);
	return false;
}

START_TEST(bounds_follow_from_the_size_and_can_be_set_again)
{
	char text[64], wanted[64];
	if (!has_bounds())
		return;
	ck_assert_int_eq(vm_cgroup_make(leaf, &size, &e), 0);
	for (int i = 0; i < 2; i++) {
		read_text(leaf, "memory.max", text, sizeof(text));
		snprintf(wanted, sizeof(wanted), "%llu",
		         (2ull * 64 + VM_CGROUP_MEMORY_MIB) * MIB);
		ck_assert_str_eq(text, wanted);
		read_text(leaf, "memory.oom.group", text, sizeof(text));
		ck_assert_str_eq(text, "1");
		read_text(leaf, "pids.max", text, sizeof(text));
		ck_assert_int_eq(atoi(text), VM_CGROUP_PIDS);
		read_text(leaf, "cpu.max", text, sizeof(text));
		ck_assert_str_eq(text, "300000 100000");
		write_text(leaf, "memory.max", "max");
		write_text(leaf, "memory.oom.group", "0");
		write_text(leaf, "pids.max", "max");
		write_text(leaf, "cpu.max", "max");
		ck_assert_int_eq(vm_cgroup_bound(leaf, &size, &e), 0);
	}
	wait_removed(leaf);
	ck_assert_int_eq(vm_cgroup_make(leaf, &(struct vm_cgroup_size){0, 0}, &e), 0);
	read_text(leaf, "memory.max", text, sizeof(text));
	ck_assert_str_eq(text, "max");
	wait_removed(leaf);
}
END_TEST

/* What stands for the root of a unit that systemd has delegated. */
static void enter_delegated(char base[PATH_MAX])
{
	char *end;
	snprintf(base, PATH_MAX, "%s", tree);
	end = strrchr(base, '/');
	snprintf(end, (size_t)(base + PATH_MAX - end), "/check-unit-%d", (int)getpid());
	ck_assert_int_eq(mkdir(base, 0755), 0);
	write_text(base, "cgroup.procs", "0");
}

static void leave_delegated(const char *base)
{
	char root[PATH_MAX];
	snprintf(root, sizeof(root), "%s", base);
	*strrchr(root, '/') = '\0';
	write_text(root, "cgroup.procs", "0");
	wait_removed(base);
}

START_TEST(the_bridge_leaves_its_cgroup_to_the_tree_and_the_next_finds_both)
{
	char base[PATH_MAX], wanted[PATH_MAX + 64], text[256], again[PATH_MAX];
	if (!has_bounds())
		return;
	enter_delegated(base);
	ck_assert_int_eq(vm_cgroup_open(again, "sandgate-check-unit", &e), 0);
	snprintf(wanted, sizeof(wanted), "%s/sandgate-check-unit", base);
	ck_assert_str_eq(again, wanted);
	read_text(again, "cgroup.subtree_control", text, sizeof(text));
	ck_assert_ptr_nonnull(strstr(text, "memory"));
	read_text(base, "sandgate-bridge/cgroup.procs", text, sizeof(text));
	ck_assert_int_eq(atoi(text), getpid());
	ck_assert_int_eq(vm_cgroup_open(again, "sandgate-check-unit", &e),
	                 0); /* from where it is now */
	ck_assert_str_eq(again, wanted);
	vm_cgroup_close(again);
	leave_delegated(base);
}
END_TEST

START_TEST(it_stays_where_others_are_and_vms_are_grouped_all_the_same)
{
	char base[PATH_MAX], other[PATH_MAX], text[256];
	if (!has_bounds())
		return;
	enter_delegated(base);
	pid_t neighbour = fork();
	if (neighbour == 0)
		for (;;)
			pause();
	ck_assert_int_eq(vm_cgroup_open(other, "sandgate-check-unit", &e), 0);
	ck_assert_str_ne(other, "");
	read_text(other, "cgroup.subtree_control", text, sizeof(text));
	ck_assert_str_eq(text, "");
	snprintf(text, sizeof(text), "%.200s/sandgate-bridge", base);
	ck_assert_int_lt(access(text, F_OK), 0);
	vm_cgroup_close(other);
	kill(neighbour, SIGKILL);
	waitpid(neighbour, NULL, 0);
	leave_delegated(base);
}
END_TEST

int main(void)
{
	TCase *t = new_case("vm_cgroup", setup, teardown);
	char found[PATH_MAX];
	vm_cgroup_open(found, "sandgate-check", &e);
	vm_cgroup_close(found);
	if (found[0] != '\0') {
		tcase_add_test(t,
		               a_process_is_born_in_its_leaf_and_goes_with_all_that_it_started);
		tcase_add_test(t, a_leaf_that_has_become_a_tree_is_removed_whole);
		tcase_add_test(t, what_nobody_owns_is_swept_and_what_is_known_stays);
		tcase_add_test(t, without_the_right_there_is_no_tree);
		tcase_add_test(t, bounds_follow_from_the_size_and_can_be_set_again);
		tcase_add_test(
		    t, the_bridge_leaves_its_cgroup_to_the_tree_and_the_next_finds_both);
		tcase_add_test(t, it_stays_where_others_are_and_vms_are_grouped_all_the_same);
	} else {
		printf("skipped: no cgroups can be made here\n");
	}
	return run_suite("vm_cgroup", t) != 0;
}
