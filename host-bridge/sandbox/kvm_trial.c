#include "host-bridge/sandbox/kvm_trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/link/link.h"
#include "proto/limits.h"
#include "proto/log.h"

struct kvm_trial {
	struct ev_loop *loop;
	char file[PATH_MAX];
	struct vm *vm;
	struct link *link;
	ev_timer deadline;
	bool answered, usable;
	void (*on_answer)(bool usable, void *arg);
	void *arg;
};

/* This boot of the host; "" when it cannot be told. */
static void boot_id(char out[64])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	if (f == NULL || fscanf(f, "%63s", out) != 1)
		out[0] = '\0';
	if (f != NULL)
		fclose(f);
}

static void answer_file(char *out, size_t room, const char *state_dir)
{
	snprintf(out, room, "%s/kvm", state_dir);
}

int kvm_trial_known(const char *state_dir)
{
	char path[PATH_MAX], now[64], then[64] = "", answer[8] = "";
	answer_file(path, sizeof(path), state_dir);
	boot_id(now);
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return -1;
	int n = fscanf(f, "%63s %7s", then, answer);
	fclose(f);
	if (n != 2 || strcmp(now, then) != 0)
		return -1;
	return strcmp(answer, "yes") == 0;
}

static void keep(const struct kvm_trial *t)
{
	char now[64];
	boot_id(now);
	FILE *f = fopen(t->file, "we");
	if (f == NULL || fprintf(f, "%s %s\n", now, t->usable ? "yes" : "no") < 0)
		log_warn("kvm", NULL, "the answer could not be kept");
	if (f != NULL)
		fclose(f);
}

static void on_gone(void *arg)
{
	struct kvm_trial *t = arg;
	void (*on_answer)(bool, void *) = t->on_answer;
	void *owner = t->arg;
	bool usable = t->usable;
	free(t);
	on_answer(usable, owner);
}

static void settle(struct kvm_trial *t, bool usable)
{
	if (t->answered)
		return;
	t->answered = true;
	t->usable = usable;
	log_info("kvm", NULL, "a trial boot says that KVM is %s here",
	         usable ? "usable" : "not usable");
	keep(t);
	ev_timer_stop(t->loop, &t->deadline);
	link_destroy(t->link, false);
	t->link = NULL;
	vm_stop(t->vm, on_gone, t);
}

static void on_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	settle(w->data, false);
}

static void on_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	(void)l;
	settle(owner, f->body_case == SANDGATE__GUEST_FRAME__BODY_PONG);
}

static void on_closed(struct link *l, const struct err *why, bool sent,
                      const Sandgate__Refused *refused, void *owner)
{
	struct kvm_trial *t = owner;
	(void)l;
	(void)why;
	(void)sent;
	(void)refused;
	t->link = NULL;
	settle(t, false);
}

static void on_changed(struct vm *vm, void *arg)
{
	(void)vm;
	(void)arg;
}

static void on_up(struct vm *vm, void *arg)
{
	static const struct link_handlers handlers = {.on_frame = on_frame,
	                                              .on_closed = on_closed};
	struct kvm_trial *t = arg;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	open.op_case = SANDGATE__OPEN__OP_PING;
	open.ping = &ping;
	t->link = link_create(t->loop, vm_endpoint(vm), KVM_TRIAL_S * 1000, NULL);
	if (t->link == NULL ||
	    link_open(t->link, &open, KVM_TRIAL_S * 1000, &handlers, t, NULL) < 0)
		settle(t, false);
}

static void on_down(struct vm *vm, const struct err *why, void *arg)
{
	(void)vm;
	(void)why;
	settle(arg, false);
}

struct kvm_trial *kvm_trial_start(struct ev_loop *loop, const struct launcher_host *host,
                                  const char *state_dir, const char *dir,
                                  void (*on_answer)(bool usable, void *arg), void *arg)
{
	static const struct vm_handlers handlers = {on_changed, on_up, on_down};
	struct launcher_host with = *host;
	struct launcher_request r = {
	    .id = "kvm-trial", .dir = dir, .vcpus = 1, .uid = VM_UID, .cgroup = ""};
	struct vm_plan plan = {0};
	struct err e = {0};
	char memory[PATH_MAX];
	snprintf(memory, sizeof(memory), "%s/memory", dir);
	r.memory = memory;
	with.kvm = true;
	if (access("/dev/kvm", R_OK | W_OK) < 0 ||
	    template_load(host->rootfs_dir, "base", launcher_qemu.template_kind, &r.template,
	                  &e) < 0)
		return NULL;
	struct kvm_trial *t = calloc(1, sizeof(*t));
	r.memory_mib = r.template.memory_mib;
	template_free(&r.template);
	if (t == NULL || launcher_plan(&launcher_qemu, &with, &r, &plan, &e) < 0) {
		vm_plan_free(&plan);
		free(t);
		return NULL;
	}
	t->loop = loop;
	t->on_answer = on_answer;
	t->arg = arg;
	answer_file(t->file, sizeof(t->file), state_dir);
	ev_timer_init(&t->deadline, on_deadline, KVM_TRIAL_S, 0.);
	t->deadline.data = t;
	t->vm = vm_start(loop, r.id, dir, &plan, &handlers, t, &e);
	if (t->vm == NULL) {
		free(t);
		return NULL;
	}
	ev_timer_start(loop, &t->deadline);
	return t;
}

void kvm_trial_cancel(struct kvm_trial *t)
{
	if (t == NULL)
		return;
	ev_timer_stop(t->loop, &t->deadline);
	link_destroy(t->link, false);
	vm_stop(t->vm, NULL, NULL);
	vm_forget(t->vm);
	free(t);
}
