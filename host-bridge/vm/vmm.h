/*
 * What a running VM can be asked, each VMM in its own way and none of it at once. vm_calls.c
 * calls these for sandbox code; a launcher whose VMM can do none of it (local, uml, attach) has
 * none. A call that cannot be done twice, or in the state that the VM is in, is the caller's
 * fault: sandbox.c keeps the state machine.
 *
 * A snapshot is a directory with the files SNAPSHOT_STATE and SNAPSHOT_MEMORY, DISK_FILE when
 * the VM has a disk of its own, and what a VMM needs besides.
 */
#ifndef SANDGATE_VMM_H
#define SANDGATE_VMM_H

#include <ev.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "proto/err.h"

#define SNAPSHOT_STATE "state"
#define SNAPSHOT_MEMORY "memory"
#define DISK_FILE "disk"
#define SNAPSHOT_AGENT "agent.json" /* not the VMM's: who the agent is */

/* A call in progress. */
struct vmm_call;

/* What a guest boots from, for a VMM that is told after it has started; and the disks of one
 * that is booted or restored, in the order in which it sees them. */
struct vmm_boot {
	char hostname[64]; /* or "" */
	char kernel[PATH_MAX], initrd[PATH_MAX];
	char root[PATH_MAX]; /* the image that is its root, read only; or "" */
	unsigned vcpus, memory_mib;
	unsigned disk_mib; /* its own, DISK_FILE in the VM's directory; 0: none */
	uid_t disk_owner;  /* when we are root */
};

/* What every guest's kernel is told, after its console. One that panics ends at once, and so is
 * seen to be lost; pressure accounting makes every new cgroup a tenth dearer. */
#define VMM_BOOT_ARGUMENTS \
	" quiet panic=-1 psi=0 init_on_alloc=0 random.trust_cpu=on cryptomgr.notests"

/* What else one guest's kernel is told, its name (Linux 6.0) and its disks: "" or words, each
 * after a space. */
#define VMM_WORDS_MAX 160
void vmm_boot_words(const struct vmm_boot *b, char out[VMM_WORDS_MAX]);

/* Valid during the call that begins something. */
struct vmm_target {
	struct ev_loop *loop;
	const char *dir, *memory; /* the VM's directory; the file that is its RAM */
	const char *socket;       /* where its agent is reached */
	const struct vmm_boot *boot;
	bool last; /* to save: the VM is stopped afterwards, unless that fails */
};

/* `on_done` once, never from inside: err NULL on success. NULL with `e`: nothing was begun. */
typedef struct vmm_call *vmm_begin(const struct vmm_target *t, const char *snapshot,
                                   void (*on_done)(const struct err *e, void *arg), void *arg,
                                   struct err *e);

struct vmm_ops {
	/* Its processes have just started, and wait: boot the guest. `snapshot`: NULL. A VMM
	 * whose processes alone bring the guest to life has none. */
	vmm_begin *boot;
	/* Its processes have just started, told to wait: bring back what `snapshot` holds, and
	 * let the guest run. */
	vmm_begin *load;
	/* Stop the guest and write it to `snapshot`, a directory that is there and empty. Its
	 * connections must be closed before. It stays stopped. */
	vmm_begin *save;
	/* After save, or a pause that may have failed: let the guest go on. `snapshot`: NULL.
	 */
	vmm_begin *go_on;
	/* One of these has failed, or its bridge has died, in its middle: let the guest go on,
	 * wherever it is. */
	vmm_begin *recover;
	/* Stop the guest's CPUs; let them run again, unless they do. `snapshot`: NULL. */
	vmm_begin *pause, *resume;
	/* Break a call off; on_done is not called. What the VM is then nobody knows. */
	void (*cancel)(struct vmm_call *c);
};

/* In the VM's directory: our vsock device, which a VMM without one of its own connects to. */
#define DEVICE_SOCKET "device.sock"

extern const struct vmm_ops vmm_firecracker, vmm_cloud_hypervisor, vmm_qemu;

#endif
