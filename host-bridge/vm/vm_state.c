/* What a later bridge needs to find a VM again. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/vm/vm_private.h"

json_t *vm_state(const struct vm *vm)
{
	const struct endpoint *to = &vm->plan.endpoint;
	json_t *processes = json_array();
	for (unsigned i = 0; i < vm->started; i++)
		doc_append(&processes,
		           json_pack("{s:I, s:I}", "pid", (json_int_t)vm->process[i].pid.pid,
		                     "start", (json_int_t)vm->process[i].pid.start));
	return json_pack("{s:s, s:s, s:{s:i, s:i}, s:s, s:i, s:o, s:{s:i, s:s, s:I, s:I}}",
	                 "dir", vm->dir, "cgroup", vm->plan.cgroup, "size", "memory_mib",
	                 (int)vm->plan.size.memory_mib, "vcpus", (int)vm->plan.size.vcpus,
	                 "memory", vm->plan.memory, "disk_mib", (int)vm->plan.boot.disk_mib,
	                 "processes", processes, "endpoint", "kind", (int)to->kind, "path",
	                 to->path, "cid", (json_int_t)to->cid, "port", (json_int_t)to->port);
}

const struct endpoint *vm_endpoint(const struct vm *vm)
{
	return &vm->plan.endpoint;
}

void vm_move(struct vm *vm, const struct endpoint *to)
{
	vm->plan.endpoint = *to;
}

static int read_state(struct vm *vm, const json_t *state)
{
	struct endpoint *to = &vm->plan.endpoint;
	const char *dir, *cgroup, *path, *memory = "";
	json_int_t cid, port;
	int kind, memory_mib = 0, vcpus = 0, disk_mib = 0;
	if (json_unpack((json_t *)state,
	                "{s:s, s:s, s?{s:i, s:i}, s?s, s?i, s:{s:i, s:s, s:I, s:I}}", "dir",
	                &dir, "cgroup", &cgroup, "size", "memory_mib", &memory_mib, "vcpus",
	                &vcpus, "memory", &memory, "disk_mib", &disk_mib, "endpoint", "kind",
	                &kind, "path", &path, "cid", &cid, "port", &port) < 0)
		return -1;
	snprintf(vm->dir, sizeof(vm->dir), "%s", dir);
	snprintf(vm->plan.cgroup, sizeof(vm->plan.cgroup), "%s", cgroup);
	vm->plan.size.memory_mib = (unsigned)memory_mib;
	vm->plan.size.vcpus = (unsigned)vcpus;
	snprintf(vm->plan.memory, sizeof(vm->plan.memory), "%s", memory);
	vm->plan.boot.disk_mib = (unsigned)disk_mib;
	snprintf(to->path, sizeof(to->path), "%s", path);
	to->kind = (enum transport_kind)kind;
	to->cid = (uint32_t)cid;
	to->port = (uint32_t)port;
	return 0;
}

struct vm *vm_adopt(struct ev_loop *loop, const char *id, const json_t *state,
                    const struct vmm_ops *vmm, const struct vm_handlers *h, void *arg,
                    bool *whole, struct err *e)
{
	struct vm *vm = vm_create(loop, id, h, arg, e);
	if (vm == NULL)
		return NULL;
	if (read_state(vm, state) < 0) {
		err_set(e, ERR_INTERNAL, "the registry's state of a VM cannot be read");
		vm_forget(vm);
		return NULL;
	}
	vm->plan.vmm = vmm;
	if (vm_cgroup_bound(vm->plan.cgroup, &vm->plan.size, e) < 0) {
		vm_forget(vm);
		return NULL;
	}
	const json_t *processes = json_object_get(state, "processes");
	*whole = true;
	for (size_t i = 0; i < json_array_size(processes) && i < VM_PROCESSES_MAX; i++) {
		const json_t *row = json_array_get(processes, i);
		struct vm_process *p = &vm->process[vm->started];
		p->pid.pid = (pid_t)json_integer_value(json_object_get(row, "pid"));
		p->pid.start =
		    (unsigned long long)json_integer_value(json_object_get(row, "start"));
		if (vm_pid_open(&p->pid) < 0 && err_is_shortage(errno)) {
			err_errno(e, ERR_CAPACITY, errno, "a VM that was left running");
			vm_forget(vm);
			return NULL;
		}
		if (p->pid.fd < 0) {
			*whole = false;
			continue;
		}
		vm->started++;
		vm_watch(vm, p);
	}
	if (vm->plan.endpoint.kind != TRANSPORT_VSOCK &&
	    access(vm->plan.endpoint.path, F_OK) < 0)
		*whole = false;
	vm->up = true;
	return vm;
}
