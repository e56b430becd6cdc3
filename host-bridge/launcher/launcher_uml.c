/* User-mode Linux: a second guest kernel for tests. Its root can reach the host's files as
 * the user that it runs as, so it is no isolation, and nothing chooses it by itself. */
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "host-bridge/launcher/launcher.h"
#include "proto/limits.h"

#define UML_PROGRAM "/usr/bin/linux.uml"
#define VIRTIO_ID_VSOCK 19

static const char *isolation(const struct launcher_host *host)
{
	(void)host;
	return "none";
}

static int probe(const struct launcher_host *host, struct err *e)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/templates", host->rootfs_dir);
	if (access(path, R_OK) < 0)
		return err_set(e, ERR_LAUNCHER_FAILED, "there are no templates in %s",
		               host->rootfs_dir);
	return launcher_program(UML_PROGRAM, path, e);
}

/* UML is many times slower when it moves between CPUs: each guest is given one. */
static int pick_cpu(void)
{
	static unsigned next;
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set) < 0 || CPU_COUNT(&set) == 0)
		return -1;
	int skip = (int)(next++ % (unsigned)CPU_COUNT(&set));
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set) && skip-- == 0)
			return cpu;
	return -1;
}

/* Guest root can mount whatever the VMM's user can see: show it no more than it needs. */
static void jail(struct vm_command *c, const struct launcher_request *r)
{
	const struct template *t = &r->template;
	c->uid = r->uid;
	vm_command_jail(c, t->kernel);
	vm_command_jail(c, t->initrd);
	if (t->preload[0] != '\0')
		vm_command_jail(c, t->preload);
	vm_command_env(c, "TMPDIR=/tmp");
	vm_command_arg(c, "uml_dir=/tmp/");
}

static int plan(const struct launcher_host *host, const struct launcher_request *r,
                struct vm_plan *plan, struct err *e)
{
	(void)host;
	if (launcher_device(r, plan, e) < 0)
		return -1;
	struct vm_command *c = &plan->command[plan->count++];
	vm_command_arg(c, "%s", r->template.kernel);
	vm_command_arg(c, "mem=%uM", r->memory_mib);
	vm_command_arg(c, "initrd=%s", r->template.initrd);
	vm_command_arg(c, "virtio_uml.device=" DEVICE_SOCKET ":%d", VIRTIO_ID_VSOCK);
	vm_command_arg(c, "con0=null,fd:1");
	vm_command_arg(c, "con=null");
	vm_command_arg(c, "quiet");
	vm_command_arg(c, "nohz=off");
	vm_command_arg(c, "panic=-1");
	vm_command_arg(c, "umid=uml");
	vm_command_arg(c, "hostname=%s", plan->boot.hostname);
	c->fixed_addresses = true;
	c->cpu = pick_cpu() + 1;
	if (r->template.preload[0] != '\0')
		vm_command_env(c, "LD_PRELOAD=%s", r->template.preload);
	/* Its processes do not all go with the first one: a pid namespace takes them along. */
	c->namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC;
	if (geteuid() == 0) {
		jail(c, r);
	} else {
		c->namespaces |= CLONE_NEWUSER;
		vm_command_env(c, "TMPDIR=/dev/shm");
		vm_command_arg(c, "uml_dir=%s/", r->dir);
	}
	return 0;
}

const struct launcher launcher_uml = {
    .name = "uml",
    .template_kind = "uml",
    .takes_memory = true,
    .isolation = isolation,
    .probe = probe,
    .plan = plan,
};
