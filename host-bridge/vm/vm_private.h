/*
 * A VM from the inside, for vm.c (its life), vm_output.c (what it says), vm_calls.c (what its
 * VMM is asked), vm_state.c (across a restart of the bridge) and vm_usage.c (what it takes).
 * Nobody else includes this.
 */
#ifndef SANDGATE_VM_PRIVATE_H
#define SANDGATE_VM_PRIVATE_H

#include <limits.h>

#include "host-bridge/vm/vm.h"
#include "proto/limits.h"

struct vm_process {
	struct vm *vm;
	struct vm_pid pid;
	ev_io ended; /* on the pidfd; active while the process is thought alive */
};

struct vm {
	struct ev_loop *loop;
	char id[64], dir[PATH_MAX];
	struct vm_plan plan; /* commands only while starting */
	struct vm_process process[VM_PROCESSES_MAX];
	unsigned started;
	struct err failure;  /* it could not even begin, nor be removed yet */
	struct task *format; /* its disk is being made */
	ev_timer soon;       /* tells of what was found inside a call; the device's deadline */
	int output, input;   /* the pipe that processes write to; both -1 once booted */
	ev_io on_output;
	char tail[BOOT_TAIL_MAX + 1];
	size_t tail_len;
	bool up, down, stopping;
	ev_tstamp left; /* stopping: no process is watched any more; 0: not yet */
	struct vm_handlers handlers;
	void *arg;
	void (*on_gone)(void *arg);
	void *gone_arg;
	struct vmm_call *call; /* the VMM is asked for something */
	enum vm_request asked;
	bool ask_waits; /* … and is to be asked once more, when descriptors are not short */
	ev_timer ask_again;
	char saves_to[PATH_MAX]; /* … to save the guest there; or "" */
	void (*on_called)(const struct err *e, void *arg);
	void *called_arg;
};

#define VM_ENDED "the VM ended" /* as its users are told it */

/* vm.c */
struct vm *vm_create(struct ev_loop *loop, const char *id, const struct vm_handlers *h,
                     void *arg, struct err *e);
void vm_watch(struct vm *vm, struct vm_process *p);
void vm_up(struct vm *vm);                            /* all is there: tell */
void vm_down(struct vm *vm, const char *why);         /* something is not: tell, once */
void vm_not_up(struct vm *vm, const struct err *why); /* likewise, why it could not start */

void vm_ready(struct vm *vm); /* the process that was started last: go on */

/* vm_output.c: while it starts */
void vm_output_init(struct vm *vm);
int vm_output_open(struct vm *vm, struct err *e);
void vm_output_close(struct vm *vm);
void vm_output_drain(struct vm *vm); /* keep the end of what is there */
/* Why the guest cannot start, as its init, its kernel or its VMM has said; false: none has. */
bool vm_output_reason(struct vm *vm, struct err *e);

/* vm_calls.c */
void vm_ask_init(struct vm *vm);
/* Its processes run: boot the guest, or load it. vm_up or vm_down follows. */
void vm_bring_up(struct vm *vm);

#endif
