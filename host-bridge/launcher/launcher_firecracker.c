/* Firecracker: a process that is told through its API what to boot or to load, and has a
 * hybrid vsock of its own. Started by root it is locked up by its jailer. */
#include <libgen.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/launcher/launcher.h"
#include "host-bridge/vm/vmm_firecracker.h"
#include "proto/limits.h"

#define PROGRAM "firecracker"
#define JAILER "jailer"
#define JAIL_ID "vm" /* in a directory of the VM's own; short, for the sockets' paths */
#define FIRECRACKER_VCPUS_MAX 32

static const char *isolation(const struct launcher_host *host)
{
	(void)host;
	return "kvm";
}

static int probe(const struct launcher_host *host, struct err *e)
{
	char path[PATH_MAX];
	(void)host;
	if (geteuid() == 0 && launcher_program(JAILER, path, e) < 0)
		return -1;
	return launcher_program(PROGRAM, path, e);
}

/* The jailer makes <base>/<name of the program>/<id>/root, which becomes Firecracker's root.
 * Its process becomes Firecracker: nothing is between us and the VMM that is watched and
 * killed. */
static void jail(struct vm_command *c, const char *program, const char *base, uid_t uid)
{
	vm_command_arg(c, JAILER);
	vm_command_arg(c, "--id");
	vm_command_arg(c, JAIL_ID);
	vm_command_arg(c, "--exec-file");
	vm_command_arg(c, "%s", program);
	vm_command_arg(c, "--uid");
	vm_command_arg(c, "%u", uid);
	vm_command_arg(c, "--gid");
	vm_command_arg(c, "%u", uid);
	vm_command_arg(c, "--chroot-base-dir");
	vm_command_arg(c, "%s", base);
	vm_command_arg(c, "--");
	c->namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET;
}

static int plan(const struct launcher_host *host, const struct launcher_request *r,
                struct vm_plan *plan, struct err *e)
{
	char program[PATH_MAX], name[PATH_MAX], room[2 * PATH_MAX];
	struct vm_command *c = &plan->command[plan->count++];
	(void)host;
	if (r->vcpus > FIRECRACKER_VCPUS_MAX)
		return err_field(e, ERR_INVALID_FIELD, "resources.vcpus", "at most %u",
		                 FIRECRACKER_VCPUS_MAX);
	if (launcher_program(PROGRAM, program, e) < 0)
		return -1;
	snprintf(room, sizeof(room), "%s", r->dir);
	if (geteuid() == 0) {
		snprintf(name, sizeof(name), "%s", program);
		snprintf(room, sizeof(room), "%s/%s/" JAIL_ID "/root", r->dir, basename(name));
		jail(c, program, r->dir, r->uid);
	} else {
		vm_command_arg(c, "%s", program);
	}
	vm_command_arg(c, "--api-sock");
	vm_command_arg(c, FIRECRACKER_API);
	plan->vmm = &vmm_firecracker;
	launcher_disks(r, plan);
	return launcher_plan_api(r, room, FIRECRACKER_API, FIRECRACKER_VSOCK, plan, e);
}

const struct launcher launcher_firecracker = {
    .name = "firecracker",
    .template_kind = "firecracker",
    .automatic = true,
    .needs_kvm = true,
    .takes_memory = true,
    .takes_disks = true,
    .program = PROGRAM,
    .vmm = &vmm_firecracker,
    .isolation = isolation,
    .probe = probe,
    .plan = plan,
};
