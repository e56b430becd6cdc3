/* What a VM's monitor is asked, one thing at a time. */
#include <stdio.h>
#include <sys/statvfs.h>

#include "host-bridge/vm/vm_private.h"
#include "proto/log.h"

void vm_ask_cancel(struct vm *vm)
{
	ev_timer_stop(vm->loop, &vm->ask_again);
	vm->ask_waits = false;
	if (vm->call != NULL)
		vm->plan.vmm->cancel(vm->call);
	vm->call = NULL;
}

/* A guest that stands still is lost when it is not let go on: that is asked for as long as this
 * bridge itself is short of something. It may be asked twice. */
static bool ask_later(struct vm *vm, const struct err *e)
{
	bool insists = vm->asked == VM_GO_ON || vm->asked == VM_RECOVER;
	if (!insists || e->code != ERR_CAPACITY)
		return false;
	if (!vm->ask_waits)
		log_warn("vm", vm->id, "its guest is let go on later: %s", e->msg);
	vm->ask_waits = true;
	ev_timer_set(&vm->ask_again, SHORTAGE_RETRY_S, 0.);
	ev_timer_start(vm->loop, &vm->ask_again);
	return true;
}

/* A VMM that could not write a state says no more than that. */
static bool is_full(const char *dir)
{
	struct statvfs fs;
	return dir[0] != '\0' && statvfs(dir, &fs) == 0 &&
	       fs.f_bavail * (unsigned long long)fs.f_frsize < DISK_FULL_BYTES;
}

/* A VMM hangs up when it ends. Which of the two is heard of first is chance, and tells nobody
 * anything: it is the same end. */
static bool has_ended(const struct vm *vm, const struct err *e)
{
	return vm->up && e->code == ERR_SANDBOX_LOST;
}

static void on_called(const struct err *e, void *arg)
{
	struct vm *vm = arg;
	struct err judged = {0};
	vm->call = NULL;
	if (e != NULL && ask_later(vm, e))
		return;
	vm->ask_waits = false;
	if (e != NULL && e->code == ERR_LAUNCHER_FAILED && is_full(vm->saves_to)) {
		err_set(&judged, ERR_STORAGE_FULL, "%.120s: the disk is full", e->msg);
		e = &judged;
	} else if (e != NULL && has_ended(vm, e)) {
		err_set(&judged, ERR_SANDBOX_LOST, VM_ENDED);
		e = &judged;
	}
	vm->on_called(e, vm->called_arg);
}

static int begin(struct vm *vm, vmm_begin *what, bool last, const char *snapshot,
                 void (*on_done)(const struct err *e, void *arg), void *arg, struct err *e)
{
	struct vmm_target t = {
	    .loop = vm->loop,
	    .dir = vm->dir,
	    .memory = vm->plan.memory,
	    .socket = vm->plan.endpoint.path,
	    .boot = &vm->plan.boot,
	    .last = last,
	};
	if (vm->call != NULL || vm->stopping || vm->down)
		return err_set(e, ERR_INVALID_STATE, "the VM is busy");
	vm->on_called = on_done;
	vm->called_arg = arg;
	snprintf(vm->saves_to, sizeof(vm->saves_to), "%s",
	         what == vm->plan.vmm->save ? snapshot : "");
	vm->call = what(&t, snapshot, on_called, vm, e);
	if (vm->call == NULL && has_ended(vm, e))
		err_set(e, ERR_SANDBOX_LOST, VM_ENDED);
	return vm->call != NULL ? 0 : -1;
}

static void on_alive(const struct err *e, void *arg)
{
	struct vm *vm = arg;
	if (e != NULL)
		vm_not_up(vm, e);
	else
		vm_up(vm);
}

void vm_bring_up(struct vm *vm)
{
	const struct vmm_ops *ops = vm->plan.vmm;
	struct err e = {0};
	if (vm->plan.restore[0] != '\0') {
		if (begin(vm, ops->load, false, vm->plan.restore, on_alive, vm, &e) < 0)
			vm_not_up(vm, &e);
	} else if (ops != NULL && ops->boot != NULL) {
		if (begin(vm, ops->boot, false, NULL, on_alive, vm, &e) < 0)
			vm_not_up(vm, &e);
	} else {
		vm_up(vm);
	}
}

static int ask(struct vm *vm, const char *snapshot,
               void (*on_done)(const struct err *e, void *arg), void *arg, struct err *e)
{
	const struct vmm_ops *ops = vm->plan.vmm;
	vmm_begin *const begins[] = {
	    [VM_SAVE] = ops->save,       [VM_SAVE_LAST] = ops->save, [VM_GO_ON] = ops->go_on,
	    [VM_RECOVER] = ops->recover, [VM_PAUSE] = ops->pause,    [VM_RESUME] = ops->resume,
	};
	return begin(vm, begins[vm->asked], vm->asked == VM_SAVE_LAST, snapshot, on_done, arg,
	             e);
}

static void on_ask_again(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct vm *vm = w->data;
	struct err e = {0};
	(void)loop;
	(void)revents;
	if (ask(vm, NULL, vm->on_called, vm->called_arg, &e) < 0)
		on_called(&e, vm);
}

void vm_ask_init(struct vm *vm)
{
	ev_timer_init(&vm->ask_again, on_ask_again, 0., 0.);
	vm->ask_again.data = vm;
}

int vm_ask(struct vm *vm, enum vm_request what, const char *snapshot,
           void (*on_done)(const struct err *e, void *arg), void *arg, struct err *e)
{
	struct err failure = {0};
	if (vm->call != NULL || vm->ask_waits)
		return err_set(e, ERR_INVALID_STATE, "the VM is busy");
	vm->asked = what;
	if (ask(vm, snapshot, on_done, arg, &failure) == 0 || ask_later(vm, &failure))
		return 0;
	*e = failure;
	return -1;
}
