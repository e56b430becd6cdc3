/* Cloud Hypervisor: a process that is told through its API what to boot or to restore, and has
 * a hybrid vsock of its own. Started by root it is locked into its VM's directory. */
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "host-bridge/launcher/launcher.h"
#include "host-bridge/vm/vmm_cloud_hypervisor.h"
#include "proto/limits.h"

#define PROGRAM "cloud-hypervisor"

static const char *isolation(const struct launcher_host *host)
{
	(void)host;
	return "kvm";
}

static int probe(const struct launcher_host *host, struct err *e)
{
	char path[PATH_MAX];
	(void)host;
	return launcher_program(PROGRAM, path, e);
}

/* Should a guest take its VMM over, it is a user with nothing in an empty room. The kernel and
 * the snapshot are shown there when they are read; its root stays open, and is not the VM's. */
static void jail(struct vm_command *c, const char *program, const struct launcher_request *r)
{
	c->uid = r->uid;
	c->namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET;
	c->kvm = true;
	vm_command_jail(c, program);
	if (r->template.root[0] != '\0')
		vm_command_jail(c, r->template.root);
}

static int plan(const struct launcher_host *host, const struct launcher_request *r,
                struct vm_plan *plan, struct err *e)
{
	char program[PATH_MAX];
	struct vm_command *c = &plan->command[plan->count++];
	(void)host;
	if (launcher_program(PROGRAM, program, e) < 0)
		return -1;
	vm_command_arg(c, "%s", program);
	vm_command_arg(c, "--api-socket");
	vm_command_arg(c, CLOUD_HYPERVISOR_API);
	plan->uid = r->uid;
	if (geteuid() == 0)
		jail(c, program, r);
	launcher_disks(r, plan);
	plan->vmm = &vmm_cloud_hypervisor;
	return launcher_plan_api(r, r->dir, CLOUD_HYPERVISOR_API, CLOUD_HYPERVISOR_VSOCK, plan,
	                         e);
}

const struct launcher launcher_cloud_hypervisor = {
    .name = "cloud-hypervisor",
    .template_kind = "cloud-hypervisor",
    .automatic = true,
    .needs_kvm = true,
    .takes_memory = true,
    .takes_disks = true,
    .program = PROGRAM,
    .vmm = &vmm_cloud_hypervisor,
    .isolation = isolation,
    .probe = probe,
    .plan = plan,
};
