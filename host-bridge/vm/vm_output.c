/* What a VM's processes say while it starts: one waits for its device's "ready" there, and a
 * failed start is explained by its end. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/vm/tail.h"
#include "host-bridge/vm/vm_private.h"

/* Keep the end of what the processes say. */
void vm_output_drain(struct vm *vm)
{
	char text[BOOT_TAIL_MAX];
	ssize_t n = vm->output >= 0 ? read(vm->output, text, sizeof(text)) : 0;
	if (n <= 0)
		return;
	tail_add(vm->tail, &vm->tail_len, BOOT_TAIL_MAX, text, (size_t)n);
	vm->tail[vm->tail_len] = '\0';
}

/* The last one that was started is waited for. */
static void on_output(struct ev_loop *loop, ev_io *w, int revents)
{
	struct vm *vm = w->data;
	(void)loop;
	(void)revents;
	vm_output_drain(vm);
	if (vm->up || vm->down || vm->stopping || vm->started == 0)
		return;
	struct vm_command *last = &vm->plan.command[vm->started - 1];
	if (last->says_ready && memmem(vm->tail, vm->tail_len, "ready\n", 6) != NULL) {
		last->says_ready = false;
		vm_ready(vm);
	}
}

/* What the guest cannot start of, the cause before its consequences: how the line begins that
 * says so, and the word in it that tells of too little memory. */
static const struct reason {
	const char *mark, *what, *memory;
} reasons[] = {
    {"qemu: initrd is too large, ", "the guest's initramfs is too large", "need"},
    {"Initramfs unpacking failed: ", "the guest's initramfs cannot be unpacked", "write error"},
    {"error init: ", "the guest cannot start", NULL},
    {"Kernel panic - not syncing: ", "the guest's kernel panicked", "memory"},
};
#define UNPACKING 1

/* The last such line. */
static bool says(const struct vm *vm, const struct reason *r, struct err *e)
{
	const char *said = NULL, *next = vm->output >= 0 ? vm->tail : NULL;
	char why[80];
	while (next != NULL && (next = strstr(next, r->mark)) != NULL)
		said = next += strlen(r->mark);
	if (said == NULL)
		return false;
	snprintf(why, sizeof(why), "%.*s", (int)strcspn(said, "\r\n"), said);
	if (r->memory != NULL && strstr(why, r->memory) != NULL)
		err_field(e, ERR_LAUNCHER_FAILED, "resources.memory_mib",
		          "%s: %s; most likely it has too little memory", r->what, why);
	else
		err_set(e, ERR_LAUNCHER_FAILED, "%s: %s", r->what, why);
	return true;
}

bool vm_output_reason(struct vm *vm, struct err *e)
{
	for (size_t i = 0; i < sizeof(reasons) / sizeof(*reasons); i++)
		if (says(vm, &reasons[i], e))
			return true;
	return false;
}

int vm_check_boot(struct vm *vm, struct err *e)
{
	vm_output_drain(vm);
	return says(vm, &reasons[UNPACKING], e) ? -1 : 0;
}

void vm_output_init(struct vm *vm)
{
	vm->output = vm->input = -1;
	ev_init(&vm->on_output, on_output);
	vm->on_output.data = vm;
}

/* The writers never block on a pipe that nobody empties: theirs is the non-blocking end. */
int vm_output_open(struct vm *vm, struct err *e)
{
	int fds[2];
	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno, "pipe");
	vm->output = fds[0];
	vm->input = fds[1];
	ev_io_set(&vm->on_output, vm->output, EV_READ);
	ev_io_start(vm->loop, &vm->on_output);
	return 0;
}

void vm_output_close(struct vm *vm)
{
	ev_io_stop(vm->loop, &vm->on_output);
	if (vm->output >= 0)
		close(vm->output);
	if (vm->input >= 0)
		close(vm->input);
	vm->output = vm->input = -1;
}
