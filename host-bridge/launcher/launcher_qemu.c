/* QEMU: a PCI machine with a vhost-user vsock device that is a process of ours, so that it
 * needs neither KVM nor a kernel module; with KVM where that has proved to work. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/launcher/launcher.h"
#include "host-bridge/vm/qemu_arch.h"

static const char *isolation(const struct launcher_host *host)
{
	return host->kvm ? "kvm" : "tcg";
}

static int probe(const struct launcher_host *host, struct err *e)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/vmlinux", host->rootfs_dir);
	if (access(path, R_OK) < 0)
		return err_set(e, ERR_LAUNCHER_FAILED, "there is no guest kernel in %s",
		               host->rootfs_dir);
	return launcher_program(QEMU_PROGRAM, path, e);
}

/* The frequency of this host's time-stamp counter in kHz, 0 where it has none. Under TCG a
 * guest that is not told it spends its boot measuring, and may hang in that. */
static int tsc_khz(unsigned long *khz, struct err *e)
{
	char line[256];
	FILE *f = fopen("/proc/cpuinfo", "re");
	if (f == NULL)
		return err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		                 "/proc/cpuinfo");
	while (*khz == 0 && fgets(line, sizeof(line), f) != NULL) {
		const char *colon = strchr(line, ':');
		if (strncmp(line, "cpu MHz", 7) == 0 && colon != NULL)
			*khz = (unsigned long)(strtod(colon + 1, NULL) * 1000);
	}
	fclose(f);
	return 0;
}

static int boot_arguments(struct vm_command *c, const struct template *t,
                          const struct vmm_boot *b, bool kvm, struct err *e)
{
	char tsc[64] = "", words[VMM_WORDS_MAX];
	unsigned long khz = 0;
	if (!kvm && tsc_khz(&khz, e) < 0)
		return -1;
	if (khz > 0)
		snprintf(tsc, sizeof(tsc), " tsc=reliable tsc_early_khz=%lu", khz);
	vmm_boot_words(b, words);
	vm_command_arg(c, "-kernel");
	vm_command_arg(c, "%s", t->kernel);
	vm_command_arg(c, "-initrd");
	vm_command_arg(c, "%s", t->initrd);
	vm_command_arg(c, "-append");
	vm_command_arg(c, "console=" QEMU_CONSOLE VMM_BOOT_ARGUMENTS "%s%s%s",
	               kvm ? "" : " mitigations=off", tsc, words);
	return 0;
}

/* On the bus that is there from the start: a device behind a port could be pulled out. The
 * addresses are theirs alone, so that a state finds them again and the guest in this order.
 * What the guest flushes need not reach the host's disk: it lives no longer than its VM. */
static void disk_arguments(struct vm_command *c, const struct vmm_boot *b)
{
	if (b->root[0] != '\0') {
		vm_command_arg(c, "-blockdev");
		vm_command_arg(c, "driver=file,node-name=root,read-only=on,filename=%s",
		               b->root);
		vm_command_arg(c, "-device");
		vm_command_arg(c, "virtio-blk-pci,id=root0,drive=root,addr=0x10");
	}
	if (b->disk_mib > 0) {
		vm_command_arg(c, "-blockdev");
		vm_command_arg(c, "driver=file,node-name=disk,cache.no-flush=on"
		                  ",filename=" DISK_FILE);
		vm_command_arg(c, "-device");
		vm_command_arg(c, "virtio-blk-pci,id=disk0,drive=disk,addr=0x11"
		                  ",werror=report,rerror=report");
	}
}

/* Should a guest take its QEMU over, it is a user with nothing in an empty room. */
static void jail(struct vm_command *c, const struct launcher_request *r)
{
	static const char *const needs[] = {"/usr/bin/" QEMU_PROGRAM, "/usr/share/qemu",
	                                    "/usr/share/seabios"};
	c->uid = r->uid;
	c->namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET;
	if (r->restore == NULL) {
		vm_command_jail(c, r->template.kernel);
		vm_command_jail(c, r->template.initrd);
	}
	if (r->template.root[0] != '\0')
		vm_command_jail(c, r->template.root);
	vm_command_jail_writable(c, r->memory);
	for (size_t i = 0; i < sizeof(needs) / sizeof(*needs); i++)
		if (access(needs[i], F_OK) == 0)
			vm_command_jail(c, needs[i]);
}

static void add_all(struct vm_command *c, const char *const *args, size_t count)
{
	for (size_t i = 0; i < count; i++)
		vm_command_arg(c, "%s", args[i]);
}

/* A QEMU that loads a state needs its device late, and itself takes long to start. */
static void start_at_once(struct vm_plan *plan)
{
	struct vm_command device = plan->command[0];
	plan->command[0] = plan->command[1];
	plan->command[1] = device;
}

/* The program, its machine of the size asked for, and the devices that every guest has. */
static void machine_arguments(struct vm_command *c, const struct launcher_request *r, bool kvm)
{
	static const char *const always[] = {
	    "-nodefaults",
	    "-no-user-config",
	    "-nographic",
	    "-no-reboot",
	    "-sandbox",
	    "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
	    "-chardev",
	    "stdio,id=console,signal=off",
	    "-serial",
	    "chardev:console",
	    "-device",
	    "pcie-root-port,id=port0,chassis=1,slot=1",
	    "-chardev",
	    "socket,id=monitor,fd=3,server=on,wait=off",
	    "-mon",
	    "chardev=monitor,mode=control",
	};
	vm_command_arg(c, QEMU_PROGRAM);
	vm_command_arg(c, "-M");
	vm_command_arg(c, QEMU_MACHINE ",memory-backend=ram");
#ifdef QEMU_FIRMWARE
	vm_command_arg(c, "-bios");
	vm_command_arg(c, QEMU_FIRMWARE);
#endif
	vm_command_arg(c, "-accel");
	vm_command_arg(c, "%s", kvm ? "kvm" : "tcg");
	vm_command_arg(c, "-cpu");
	vm_command_arg(c, "%s", kvm ? "host" : "max,-erms");
	vm_command_arg(c, "-smp");
	vm_command_arg(c, "%u", r->vcpus);
	vm_command_arg(c, "-m");
	vm_command_arg(c, "%uM", r->memory_mib);
	vm_command_arg(c, "-object");
	vm_command_arg(c, "memory-backend-file,id=ram,size=%uM,share=on,mem-path=%s",
	               r->memory_mib, r->memory);
	add_all(c, always, sizeof(always) / sizeof(*always));
}

static int plan(const struct launcher_host *host, const struct launcher_request *r,
                struct vm_plan *plan, struct err *e)
{
	/* A guest whose state is loaded gets its device afterwards: it cannot be saved. */
	static const char *const device[] = {
	    "-chardev",
	    "socket,id=vsock,path=" DEVICE_SOCKET,
	    "-device",
	    QEMU_VSOCK ",chardev=vsock,id=vsock0,bus=port0",
	};
	char monitor[108];
	if (launcher_device(r, plan, e) < 0 ||
	    launcher_socket(monitor, r->dir, QEMU_MONITOR, e) < 0)
		return -1;
	struct vm_command *c = &plan->command[plan->count++];
	machine_arguments(c, r, host->kvm != NULL);
	launcher_disks(r, plan);
	disk_arguments(c, &plan->boot);
	if (r->restore != NULL) {
		vm_command_arg(c, "-incoming");
		vm_command_arg(c, "defer");
	} else if (boot_arguments(c, &r->template, &plan->boot, host->kvm, e) == 0) {
		add_all(c, device, sizeof(device) / sizeof(*device));
	} else {
		return -1;
	}
	vm_command_listen(c, monitor);
	plan->vmm = &vmm_qemu;
	plan->memory_mib = r->memory_mib;
	snprintf(plan->memory, sizeof(plan->memory), "%s", r->memory);
	snprintf(plan->restore, sizeof(plan->restore), "%s",
	         r->restore != NULL ? r->restore : "");
	c->kvm = host->kvm != NULL;
	if (geteuid() == 0)
		jail(c, r);
	if (r->restore != NULL)
		start_at_once(plan);
	return 0;
}

const struct launcher launcher_qemu = {
    .name = "qemu",
    .template_kind = "qemu",
    .automatic = true,
    .takes_memory = true,
    .takes_disks = true,
    .program = QEMU_PROGRAM,
    .vmm = &vmm_qemu,
    .isolation = isolation,
    .probe = probe,
    .plan = plan,
};
