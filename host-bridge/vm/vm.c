#include "host-bridge/vm/vm_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host-bridge/steady.h"
#include "host-bridge/vm/disk.h"
#include "host-bridge/vm/task.h"
#include "host-bridge/vm/vm_sweep.h"
#include "proto/limits.h"
#include "proto/log.h"

/* How often a cgroup is tried that what was killed may be about to leave. */
#define DESTROY_TRIES 50

void vm_plan_free(struct vm_plan *p)
{
	for (unsigned i = 0; i < VM_PROCESSES_MAX; i++)
		vm_command_free(&p->command[i]);
	p->count = 0;
}

static void soon(struct vm *vm, double seconds)
{
	ev_timer_stop(vm->loop, &vm->soon);
	ev_timer_set(&vm->soon, seconds, 0.);
	ev_timer_start(vm->loop, &vm->soon);
}

static unsigned alive(const struct vm *vm)
{
	unsigned n = 0;
	for (unsigned i = 0; i < vm->started; i++)
		n += ev_is_active(&vm->process[i].ended);
	return n;
}

void vm_booted(struct vm *vm)
{
	vm_output_close(vm);
	vm_plan_free(&vm->plan);
}

void vm_forget(struct vm *vm)
{
	if (vm == NULL)
		return;
	vm_booted(vm);
	vm_ask_cancel(vm);
	task_cancel(vm->format);
	ev_timer_stop(vm->loop, &vm->soon);
	for (unsigned i = 0; i < vm->started; i++) {
		ev_io_stop(vm->loop, &vm->process[i].ended);
		if (vm->process[i].pid.fd >= 0)
			close(vm->process[i].pid.fd);
	}
	free(vm);
}

/* ---- the end ---- */

/* Its cgroup and directory go; false with errno when they may yet. */
static bool clear(struct vm *vm)
{
	return vm_cgroup_remove(vm->plan.cgroup) &&
	       (vm_remove_dir(vm->dir) == 0 || !err_is_shortage(errno));
}

static void gone(struct vm *vm)
{
	void (*on_gone)(void *) = vm->on_gone;
	void *arg = vm->gone_arg;
	if (vm->plan.memory[0] != '\0' && unlink(vm->plan.memory) < 0 && errno != ENOENT)
		log_warn("vm", vm->id, "its memory: %s", strerror(errno));
	vm_forget(vm);
	if (on_gone != NULL)
		on_gone(arg);
}

/* What has ended may be in its cgroup for some moments yet, and what it has started as well. A
 * shortage of the bridge's own is waited out: until then the VM is not gone. */
static void leave(struct vm *vm)
{
	if (clear(vm)) {
		gone(vm);
		return;
	}
	if (err_is_shortage(errno)) {
		soon(vm, SHORTAGE_RETRY_S);
		return;
	}
	if (vm->left == 0.)
		vm->left = steady_now();
	if (steady_now() - vm->left > CLEANUP_WAIT_MS / 1e3) {
		log_warn("vm", vm->id, "%s: it is not empty", vm->plan.cgroup);
		vm_remove_dir(vm->dir);
		gone(vm);
		return;
	}
	vm_cgroup_kill(vm->plan.cgroup);
	soon(vm, CGROUP_LEAVE_MS / 1e3);
}

static void kill_all(struct vm *vm)
{
	vm_cgroup_kill(vm->plan.cgroup);
	for (unsigned i = 0; i < vm->started; i++)
		if (ev_is_active(&vm->process[i].ended))
			vm_pid_kill(&vm->process[i].pid);
}

void vm_stop(struct vm *vm, void (*on_gone)(void *arg), void *arg)
{
	vm_ask_cancel(vm);
	task_cancel(vm->format);
	vm->format = NULL;
	vm->stopping = true;
	vm->on_gone = on_gone;
	vm->gone_arg = arg;
	kill_all(vm);
	ev_timer_stop(vm->loop, &vm->soon);
	if (alive(vm) == 0)
		soon(vm, 0.);
}

/* What was killed is waited for: nothing that a process does can delay that for long. */
void vm_destroy(struct vm *vm)
{
	siginfo_t info;
	if (vm == NULL)
		return;
	vm_ask_cancel(vm);
	kill_all(vm);
	for (unsigned i = 0; i < vm->started; i++) {
		if (!ev_is_active(&vm->process[i].ended))
			continue;
		waitid(P_PIDFD, (id_t)vm->process[i].pid.fd, &info, WEXITED);
		ev_io_stop(vm->loop, &vm->process[i].ended);
	}
	for (int i = 0; i < DESTROY_TRIES && !vm_cgroup_remove(vm->plan.cgroup); i++)
		usleep(CGROUP_LEAVE_MS * 1000);
	vm->on_gone = NULL;
	if (clear(vm))
		gone(vm);
	else
		vm_stop(vm, NULL, NULL);
}

/* Told once, and never from inside a call of the owner's. */
static void tell_down(struct vm *vm, const struct err *why)
{
	if (vm->stopping || vm->down)
		return;
	vm->down = true;
	if (vm->output >= 0 && vm->tail_len > 0)
		log_warn("vm", vm->id, "%s; its output ended: %s", why->msg,
		         vm->tail + (vm->tail_len > BOOT_TAIL_LOGGED
		                         ? vm->tail_len - BOOT_TAIL_LOGGED
		                         : 0));
	vm->handlers.on_down(vm, why, vm->arg);
}

void vm_down(struct vm *vm, const char *why)
{
	struct err e = {0};
	if (!vm_output_reason(vm, &e))
		err_set(&e, vm->up ? ERR_SANDBOX_LOST : ERR_LAUNCHER_FAILED, "%s", why);
	tell_down(vm, &e);
}

void vm_not_up(struct vm *vm, const struct err *why)
{
	if (why->code == ERR_STORAGE_FULL || why->code == ERR_CAPACITY)
		tell_down(vm, why);
	else
		vm_down(vm, why->msg);
}

static void on_ended(struct ev_loop *loop, ev_io *w, int revents)
{
	struct vm_process *p = w->data;
	struct vm *vm = p->vm;
	siginfo_t info;
	(void)revents;
	/* While the leader is a zombie its number, and so its group's, is still its own. */
	vm_pid_kill(&p->pid);
	waitid(P_PIDFD, (id_t)p->pid.fd, &info, WEXITED | WNOHANG); /* adopted: not ours */
	ev_io_stop(loop, w);
	close(p->pid.fd);
	p->pid.fd = -1;
	vm_output_drain(vm);
	if (vm->stopping && alive(vm) == 0)
		leave(vm);
	else
		vm_down(vm, vm->up ? VM_ENDED : "the VM ended while it was starting");
}

/* ---- the start ---- */

void vm_watch(struct vm *vm, struct vm_process *p)
{
	p->vm = vm;
	ev_io_init(&p->ended, on_ended, p->pid.fd, EV_READ);
	p->ended.data = p;
	ev_io_start(vm->loop, &p->ended);
}

static int start_next(struct vm *vm, struct err *e)
{
	struct vm_process *p = &vm->process[vm->started];
	bool born = vm->plan.cgroup[0] != '\0' && !vm->plan.enters_cgroup;
	if (vm_spawn(&vm->plan.command[vm->started], vm->dir, born ? vm->plan.cgroup : NULL,
	             vm->input, &p->pid, e) < 0)
		return -1;
	bool waits = vm->plan.command[vm->started].says_ready;
	vm->started++;
	vm_watch(vm, p);
	soon(vm, waits ? DEVICE_DEADLINE_MS / 1e3 : 0.);
	return 0;
}

void vm_up(struct vm *vm)
{
	vm->up = true;
	vm->handlers.on_up(vm, vm->arg);
}

/* Go on: start what is next, or tell that all is up. */
static void advance(struct vm *vm)
{
	struct err e = {0};
	if (vm->started < vm->plan.count) {
		if (start_next(vm, &e) < 0)
			vm_not_up(vm, &e);
		else
			vm->handlers.on_changed(vm, vm->arg);
		return;
	}
	vm_bring_up(vm);
}

static void on_soon(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct vm *vm = w->data;
	(void)loop;
	(void)revents;
	if (vm->stopping)
		leave(vm);
	else if (vm->failure.code != ERR_NONE)
		vm_not_up(vm, &vm->failure);
	else if (vm->started > 0 && vm->plan.command[vm->started - 1].says_ready)
		vm_down(vm, "the VM's device did not start in time");
	else
		advance(vm);
}

void vm_ready(struct vm *vm)
{
	ev_timer_stop(vm->loop, &vm->soon);
	advance(vm);
}

static int format_disk(const void *input, struct err *e)
{
	const struct vm *vm = input;
	char path[PATH_MAX + sizeof(DISK_FILE)];
	snprintf(path, sizeof(path), "%s/" DISK_FILE, vm->dir);
	return disk_format(path, e);
}

static void on_formatted(const struct err *e, void *arg)
{
	struct vm *vm = arg;
	vm->format = NULL;
	if (e != NULL)
		vm_not_up(vm, e);
	else
		advance(vm);
}

/* A guest that is restored gets its disk with the rest of what was saved. */
static int begin(struct vm *vm, struct err *e)
{
	if (vm->plan.boot.disk_mib > 0 && vm->plan.restore[0] == '\0') {
		vm->format = task_start(vm->loop, format_disk, vm, on_formatted, vm, e);
		return vm->format != NULL ? 0 : -1;
	}
	if (vm->plan.count > 0)
		return start_next(vm, e);
	soon(vm, 0.);
	return 0;
}

struct vm *vm_create(struct ev_loop *loop, const char *id, const struct vm_handlers *h,
                     void *arg, struct err *e)
{
	struct vm *vm = calloc(1, sizeof(*vm));
	if (vm == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	vm->loop = loop;
	vm->handlers = *h;
	vm->arg = arg;
	snprintf(vm->id, sizeof(vm->id), "%s", id);
	vm_output_init(vm);
	vm_ask_init(vm);
	ev_timer_init(&vm->soon, on_soon, 0., 0.);
	vm->soon.data = vm;
	return vm;
}

/* A guest's RAM: a file, so that a VMM that is no child of ours can be given a copy. */
static int make_memory(const struct vm_plan *p, struct err *e)
{
	int fd = open(p->memory, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		                 "the VM's memory");
	off_t size = (off_t)p->memory_mib * MIB;
	int rc = ftruncate(fd, size);
	if (rc == 0 && p->memory_reserved)
		rc = fallocate(fd, 0, 0, size);
	if (rc == 0 && geteuid() == 0 && p->uid != 0)
		rc = fchown(fd, p->uid, p->uid);
	if (rc < 0)
		err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		          "the VM's memory");
	close(fd);
	return rc;
}

static int make_room(struct vm *vm, const char *dir, struct err *e)
{
	char disk[PATH_MAX + sizeof(DISK_FILE)];
	snprintf(vm->dir, sizeof(vm->dir), "%s", dir);
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		                 "the VM's directory");
	if (geteuid() == 0 && vm->plan.uid != 0 && chown(dir, vm->plan.uid, vm->plan.uid) < 0)
		return err_errno(e, ERR_LAUNCHER_FAILED, errno, "the VM's directory");
	if (vm->plan.cgroup[0] != '\0' &&
	    vm_cgroup_make(vm->plan.cgroup, &vm->plan.size, e) < 0)
		return -1;
	if (vm->plan.memory[0] != '\0' && make_memory(&vm->plan, e) < 0)
		return -1;
	snprintf(disk, sizeof(disk), "%s/" DISK_FILE, dir);
	if (vm->plan.boot.disk_mib > 0 &&
	    disk_make(disk, vm->plan.boot.disk_mib, vm->plan.boot.disk_owner, e) < 0)
		return -1;
	return vm_output_open(vm, e);
}

struct vm *vm_start(struct ev_loop *loop, const char *id, const char *dir, struct vm_plan *plan,
                    const struct vm_handlers *h, void *arg, struct err *e)
{
	struct vm *vm = vm_create(loop, id, h, arg, e);
	if (vm == NULL) {
		vm_plan_free(plan);
		return NULL;
	}
	vm->plan = *plan;
	if (make_room(vm, dir, &vm->failure) == 0 && begin(vm, &vm->failure) == 0)
		return vm;
	if (!clear(vm)) {
		soon(vm, 0.);
		return vm;
	}
	*e = vm->failure;
	gone(vm);
	return NULL;
}
