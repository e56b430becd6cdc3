/*
 * The life of one VM on this host: up to two processes started one after the other, watched
 * through pidfds, killed together, found again after a restart of the bridge. It owns the
 * VM's directory (sockets and all), its memory and its cgroup. sandbox.c calls it
 * with a plan that a launcher made; it knows nothing of agents.
 *
 *   vm_start ─► starting ─► up ─► (a process ended) down
 *   vm_stop from any of these ─► every process and file gone ─► on_gone; vm is freed
 */
#ifndef SANDGATE_VM_H
#define SANDGATE_VM_H

#include <ev.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#include "host-bridge/link/transport.h"
#include "host-bridge/vm/vm_cgroup.h"
#include "host-bridge/vm/vm_spawn.h"
#include "host-bridge/vm/vmm.h"
#include "proto/err.h"

#define VM_PROCESSES_MAX 2

struct vm;

/* How to make a VM; filled in by a launcher. No process at all: somebody else's VM. */
struct vm_plan {
	struct vm_command command[VM_PROCESSES_MAX];
	unsigned count;
	struct endpoint endpoint; /* where its agent will listen */
	char cgroup[PATH_MAX];    /* a cgroup to make, and to remove at the end; or "" */
	bool enters_cgroup;       /* its processes do that themselves, and are not born there */
	struct vm_cgroup_size size; /* that the VM has; the cgroup is bounded by it */
	uid_t uid;                  /* owner of the VM's directory when we are root; 0: root */
	char memory[PATH_MAX];      /* a file to make for its RAM, and to remove; or "" */
	unsigned memory_mib;
	bool memory_reserved;   /* the disk sets that much aside: a guest whose RAM is a file on
	                         * a full disk dies of the next page that it writes */
	char restore[PATH_MAX]; /* a snapshot to load, once the processes run; or "" */
	struct vmm_boot boot;   /* else what `vmm` is to boot, if it has to be told */
	const struct vmm_ops *vmm; /* NULL: it can be asked nothing */
};

void vm_plan_free(struct vm_plan *p);

struct vm_handlers {
	/* vm_state() has changed: write it down before anything else happens. */
	void (*on_changed)(struct vm *vm, void *arg);
	/* Every process runs: the agent may be asked for. */
	void (*on_up)(struct vm *vm, void *arg);
	/* A process ended, or could not start, unasked. Once. vm_stop is still due. */
	void (*on_down)(struct vm *vm, const struct err *why, void *arg);
};

/* Make `dir` and start. The plan is taken over, also on failure. No handler is called from
 * inside. `id` is for the log. NULL with `e`: nothing of it is left; where something is,
 * on_down tells. */
struct vm *vm_start(struct ev_loop *loop, const char *id, const char *dir, struct vm_plan *plan,
                    const struct vm_handlers *h, void *arg, struct err *e);
/* Take up a VM that an earlier bridge started, from its vm_state(). `*whole` says whether
 * everything that it is made of is still there; if not, on_down will not come: vm_stop it. NULL
 * with ERR_CAPACITY: that cannot be found out now, and it is left as it is. */
struct vm *vm_adopt(struct ev_loop *loop, const char *id, const json_t *state,
                    const struct vmm_ops *vmm, const struct vm_handlers *h, void *arg,
                    bool *whole, struct err *e);
/* What a later bridge needs to find all this again. New reference. */
json_t *vm_state(const struct vm *vm);
const struct endpoint *vm_endpoint(const struct vm *vm);
/* The VM of a plan without processes is to be reached elsewhere from now on. */
void vm_move(struct vm *vm, const struct endpoint *to);
/* The agent has answered: whether the guest has all its files, as far as its kernel has said.
 * -1 with ERR_LAUNCHER_FAILED: some did not fit into its memory. */
int vm_check_boot(struct vm *vm, struct err *e);
/* It is of use: output of the VM is not listened to any more. */
void vm_booted(struct vm *vm);

/* Ask its VMM, one thing at a time; a plan without `vmm` must not be asked. -1 with `e` when
 * nothing was begun, else `on_done` once, never inside, err NULL on success; not when the VM is
 * stopped meanwhile. What the requests mean is in vmm.h; `snapshot` is for the first two.
 * VM_SAVE_LAST: to be stopped right after, or else to go on. VM_GO_ON and VM_RECOVER do not
 * fail for want of descriptors: they wait for some. */
enum vm_request { VM_SAVE, VM_SAVE_LAST, VM_GO_ON, VM_RECOVER, VM_PAUSE, VM_RESUME };
int vm_ask(struct vm *vm, enum vm_request what, const char *snapshot,
           void (*on_done)(const struct err *e, void *arg), void *arg, struct err *e);

/* Break off what it is asked, if anything: the answer is not told. */
void vm_ask_cancel(struct vm *vm);

/* Kill it and remove what it left. `on_gone` once, never inside; the vm is freed then. */
void vm_stop(struct vm *vm, void (*on_gone)(void *arg), void *arg);
/* Kill it and remove what it left before this returns, or as soon as it can be; nothing may
 * come to be in its place meanwhile. NULL is fine. */
void vm_destroy(struct vm *vm);
/* Stop watching; the VM lives on. */
void vm_forget(struct vm *vm);

#endif
