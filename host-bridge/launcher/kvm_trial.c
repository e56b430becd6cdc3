#include "host-bridge/launcher/kvm_trial.h"

#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "host-bridge/link/link.h"
#include "proto/limits.h"
#include "proto/log.h"

#define CANDIDATES_MAX 4

/* Who may run guests under KVM, the strongest first, and their names as one word. */
struct candidates {
	const struct launcher *at[CANDIDATES_MAX];
	unsigned count;
	char names[128];
};

struct kvm_trial {
	struct ev_loop *loop;
	struct launcher_host host;
	struct candidates who;
	unsigned tried;
	char file[PATH_MAX], dir[PATH_MAX], cgroup[PATH_MAX];
	struct vm *vm;
	struct link *link;
	ev_timer deadline;
	bool answered, usable;
	void (*on_answer)(const struct launcher *by, void *arg);
	void *arg;
};

/* ---- who ---- */

static bool is_candidate(const struct launcher *l, const struct launcher_host *host,
                         const char *name)
{
	struct launcher_host with = *host;
	struct err e;
	bool asked = strcmp(name, "auto") == 0 ? l->automatic
	                                       : strcmp(name, l->name) == 0 && !l->needs_kvm;
	with.kvm = l;
	return asked && strcmp(l->isolation(&with), "kvm") == 0 && l->probe(host, &e) == 0;
}

static struct candidates find_candidates(const struct launcher_host *host, const char *name)
{
	struct candidates c = {0};
	const struct launcher *l;
	size_t n = 0;
	for (unsigned i = 0; (l = launcher_at(i)) != NULL && c.count < CANDIDATES_MAX; i++) {
		if (!is_candidate(l, host, name))
			continue;
		c.at[c.count++] = l;
		n += (size_t)snprintf(c.names + n, sizeof(c.names) - n, "%s%s",
		                      n > 0 ? "," : "", l->name);
	}
	return c;
}

static bool kvm_answers(void)
{
	int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	int version = fd >= 0 ? ioctl(fd, KVM_GET_API_VERSION, 0) : -1;
	if (fd >= 0)
		close(fd);
	return version == KVM_API_VERSION;
}

/* ---- the answer that is kept: this boot of the host, the candidates, the one or "-" ---- */

/* "" when it cannot be told. */
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

bool kvm_trial_known(const struct launcher_host *host, const char *name, const char *state_dir,
                     const struct launcher **by)
{
	char path[PATH_MAX], now[64], then[64], names[128], answer[32];
	answer_file(path, sizeof(path), state_dir);
	boot_id(now);
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return false;
	int n = fscanf(f, "%63s %127s %31s", then, names, answer);
	fclose(f);
	if (n != 3 || strcmp(now, then) != 0 ||
	    strcmp(names, find_candidates(host, name).names) != 0)
		return false;
	*by = launcher_find(answer);
	return true;
}

static void keep(const struct kvm_trial *t, const struct launcher *by)
{
	char now[64];
	boot_id(now);
	FILE *f = fopen(t->file, "we");
	if (f == NULL ||
	    fprintf(f, "%s %s %s\n", now, t->who.names, by != NULL ? by->name : "-") < 0)
		log_warn("kvm", NULL, "the answer could not be kept");
	if (f != NULL)
		fclose(f);
}

/* ---- trying ---- */

static bool try_next(struct kvm_trial *t);

static void on_gone(void *arg)
{
	struct kvm_trial *t = arg;
	const struct launcher *by = t->usable ? t->who.at[t->tried - 1] : NULL;
	t->vm = NULL;
	if (by == NULL && try_next(t))
		return;
	void (*on_answer)(const struct launcher *, void *) = t->on_answer;
	void *owner = t->arg;
	if (by != NULL)
		log_info("kvm", NULL, "a trial boot by %s says that KVM is usable here",
		         by->name);
	else
		log_info("kvm", NULL, "trial boots say that KVM is not usable here");
	keep(t, by);
	free(t);
	on_answer(by, owner);
}

/* `why` not: NULL on success. */
static void settle(struct kvm_trial *t, const char *why)
{
	if (t->answered)
		return;
	t->answered = true;
	t->usable = why == NULL;
	if (why != NULL)
		log_info("kvm", NULL, "%s: %s", t->who.at[t->tried - 1]->name, why);
	ev_timer_stop(t->loop, &t->deadline);
	link_destroy(t->link, false);
	t->link = NULL;
	vm_stop(t->vm, on_gone, t);
}

static void on_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	settle(w->data, "no guest has come to life in time");
}

static void on_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	(void)l;
	settle(owner, f->body_case == SANDGATE__GUEST_FRAME__BODY_PONG
	                  ? NULL
	                  : "its guest does not speak the protocol");
}

static void on_closed(struct link *l, const struct err *why, bool sent,
                      const Sandgate__Refused *refused, void *owner)
{
	struct kvm_trial *t = owner;
	(void)l;
	(void)sent;
	(void)refused;
	t->link = NULL;
	settle(t, why->msg);
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
		settle(t, "out of memory");
}

static void on_down(struct vm *vm, const struct err *why, void *arg)
{
	(void)vm;
	settle(arg, why->msg);
}

/* False when it cannot even begin. */
static bool try(struct kvm_trial *t, const struct launcher *l)
{
	static const struct vm_handlers handlers = {on_changed, on_up, on_down};
	struct launcher_request r = {
	    .id = "kvm-trial", .dir = t->dir, .vcpus = 1, .uid = VM_UID, .cgroup = t->cgroup};
	struct vm_plan plan = {0};
	struct err e = {0};
	char memory[PATH_MAX + 16];
	snprintf(memory, sizeof(memory), "%s/memory", t->dir);
	r.memory = memory;
	t->host.kvm = l;
	if (template_load(t->host.rootfs_dir, "base", l->template_kind, &r.template, &e) == 0) {
		r.memory_mib = r.template.memory_mib;
		if (launcher_plan(l, &t->host, &r, &plan, &e) == 0)
			t->vm = vm_start(t->loop, r.id, t->dir, &plan, &handlers, t, &e);
		else
			vm_plan_free(&plan);
		template_free(&r.template);
	}
	if (t->vm == NULL) {
		log_info("kvm", NULL, "%s: %s", l->name, e.msg);
		return false;
	}
	t->answered = t->usable = false;
	ev_timer_set(&t->deadline, KVM_TRIAL_S, 0.);
	ev_timer_start(t->loop, &t->deadline);
	return true;
}

static bool try_next(struct kvm_trial *t)
{
	while (t->tried < t->who.count)
		if (try(t, t->who.at[t->tried++]))
			return true;
	return false;
}

struct kvm_trial *kvm_trial_start(struct ev_loop *loop, const struct launcher_host *host,
                                  const char *name, const struct kvm_trial_place *place,
                                  void (*on_answer)(const struct launcher *by, void *arg),
                                  void *arg)
{
	struct kvm_trial *t = kvm_answers() ? calloc(1, sizeof(*t)) : NULL;
	if (t == NULL)
		return NULL;
	t->loop = loop;
	t->host = *host;
	t->who = find_candidates(host, name);
	t->on_answer = on_answer;
	t->arg = arg;
	answer_file(t->file, sizeof(t->file), place->state_dir);
	snprintf(t->dir, sizeof(t->dir), "%s", place->dir);
	snprintf(t->cgroup, sizeof(t->cgroup), "%s", place->cgroup);
	ev_timer_init(&t->deadline, on_deadline, KVM_TRIAL_S, 0.);
	t->deadline.data = t;
	if (try_next(t))
		return t;
	free(t);
	return NULL;
}

void kvm_trial_cancel(struct kvm_trial *t)
{
	if (t == NULL)
		return;
	ev_timer_stop(t->loop, &t->deadline);
	link_destroy(t->link, false);
	vm_destroy(t->vm);
	free(t);
}
