/*
 * What a VM takes of this host: memory and processor time of its processes and of what these
 * have started. It is read in a child process: a proportional share costs the kernel a walk
 * over all the guest's pages. The API's metrics ask; nothing here disturbs the guest.
 */
#ifndef SANDGATE_VM_USAGE_H
#define SANDGATE_VM_USAGE_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>

#include "host-bridge/vm/vm.h"

struct vm_usage_part {
	bool known; /* false: there is no such process, or /proc tells nothing of it */
	bool has_resident, has_proportional; /* false: the kernel does not tell us */
	uint64_t resident_bytes;
	uint64_t proportional_bytes; /* pages that n processes share count 1/n in each */
	uint64_t cpu_user_ms, cpu_system_ms; /* since their start, ended children included */
};

struct vm_usage {
	struct vm_usage_part vmm, device; /* device: our vsock device, where there is one */
};

struct vm_usage_call;

/* `on_done` once, never inside; the parts of what could not be read are not known. */
struct vm_usage_call *vm_usage_ask(const struct vm *vm,
                                   void (*on_done)(const struct vm_usage *u, void *arg),
                                   void *arg, struct err *e);
/* on_done is not called. NULL is fine. */
void vm_usage_cancel(struct vm_usage_call *c);

#endif
