/*
 * Launchers: what turns "a sandbox of this size from this template" into a plan that vm.c
 * carries out. One file each, pure functions of the request and of this host; the table is
 * in launcher.c. sandbox_set calls them. They start nothing themselves.
 */
#ifndef SANDGATE_LAUNCHER_H
#define SANDGATE_LAUNCHER_H

#include <stdbool.h>

#include "host-bridge/launcher/template.h"
#include "host-bridge/vm/vm.h"
#include "host-bridge/vm/vm_uids.h"
#include "host-bridge/vm/vmm.h"
#include "proto/err.h"

struct launcher;

/* What is the same for every sandbox of this bridge. */
struct launcher_host {
	const char *rootfs_dir, *agent_path;
	const struct launcher *kvm; /* whose trial boot under KVM has succeeded; or NULL */
};

struct launcher_request {
	const char *id, *dir;     /* the VM's directory, absolute */
	struct template template; /* to restore: its root alone */
	unsigned vcpus, memory_mib;
	unsigned disk_mib;             /* its own disk; 0: none */
	const struct endpoint *attach; /* for the launcher `attach` alone */
	const char *memory;            /* the file that is to be its RAM, absolute */
	const char *restore;           /* a snapshot's directory, or NULL to boot */
	const char *cgroup;            /* for its processes, absolute; "" for none */
	uid_t uid; /* whom its processes become when the bridge is root; its group, too */
};

struct launcher {
	const char *name;
	/* Key in template.json; NULL: needs no files of a template. */
	const char *template_kind;
	bool automatic;            /* `auto` may choose it, in the table's order */
	bool needs_kvm;            /* … where its trial boot under KVM has succeeded */
	bool takes_memory;         /* guests' RAM is host memory set aside for them */
	bool takes_disks;          /* guests can have a root of their template's, and a disk */
	bool external;             /* the VM is somebody else's: never stopped */
	const char *program;       /* the VMM, when snapshots depend on it */
	const struct vmm_ops *vmm; /* NULL: its VMs can be neither paused nor saved */
	/* What stands between a guest and this host: "kvm", "tcg", "uml" or "none". */
	const char *(*isolation)(const struct launcher_host *host);
	/* Whether it can work here at all; cheap. ERR_LAUNCHER_FAILED says what is missing. */
	int (*probe)(const struct launcher_host *host, struct err *e);
	/* Fill in `plan`, which is zeroed. Its owner frees it, also on failure. */
	int (*plan)(const struct launcher_host *host, const struct launcher_request *r,
	            struct vm_plan *plan, struct err *e);
};

/* The n-th launcher, or NULL past the last. */
const struct launcher *launcher_at(unsigned n);
const struct launcher *launcher_find(const char *name);
/* Whether `auto` may choose it here. ERR_LAUNCHER_FAILED says what is missing. */
int launcher_works(const struct launcher *l, const struct launcher_host *host, struct err *e);
/* By name, or the strongest that works here for "auto". NULL with ERR_LAUNCHER_FAILED. */
const struct launcher *launcher_choose(const char *name, const struct launcher_host *host,
                                       struct err *e);
/* What a guest is called: a ULID is the last of a sandbox's id, and unique alone. */
void launcher_hostname(const char *id, char out[64]);
/* Its plan, with what is the same for all launchers. */
int launcher_plan(const struct launcher *l, const struct launcher_host *host,
                  const struct launcher_request *r, struct vm_plan *plan, struct err *e);
/* ERR_CAPACITY unless `memory_mib` more fits beside the `committed_mib` of living guests;
 * ERR_LIMIT_UNSUPPORTED when this host could not have that much if it were empty. */
int launcher_capacity(const struct launcher *l, unsigned memory_mib,
                      unsigned long long committed_mib, struct err *e);
/* This host's memory, in MiB; 0 when it cannot be told. */
unsigned long long launcher_host_memory(void);
unsigned launcher_host_cpus(void); /* that this process may use */

/* For launchers whose VMM has no vsock of its own: the first process of `plan` becomes our
 * vsock device. The VMM connects to DEVICE_SOCKET in its directory. */
int launcher_device(const struct launcher_request *r, struct vm_plan *plan, struct err *e);
/* The disks that `r` asks for, for `plan`. */
void launcher_disks(const struct launcher_request *r, struct vm_plan *plan);
/* For a VMM that is told in `room`, through the socket `api` there, what to boot or to restore,
 * and whose vsock is the socket `vsock` there. */
int launcher_plan_api(const struct launcher_request *r, const char *room, const char *api,
                      const char *vsock, struct vm_plan *plan, struct err *e);
/* `dir`/`name` as a socket's path. ERR_LAUNCHER_FAILED when it is too long for one. */
int launcher_socket(char out[108], const char *dir, const char *name, struct err *e);
/* The path of `program`, without symbolic links; looked for on PATH when it has no slash.
 * ERR_LAUNCHER_FAILED when it is not there or not executable. */
int launcher_program(const char *program, char out[PATH_MAX], struct err *e);

extern const struct launcher launcher_firecracker, launcher_cloud_hypervisor, launcher_qemu,
    launcher_local, launcher_uml, launcher_attach;

#endif
