/* What a bridge does before it serves: take up the sandboxes of the one before it, clean up
 * after creates and deletes that were interrupted, and find out about KVM. */
#include <stdio.h>
#include <string.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/launcher/kvm_trial.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/vm/vm_sweep.h"
#include "proto/limits.h"
#include "proto/log.h"

#define KVM_TRIAL "kvm-trial" /* what its VM is called */

struct adoption {
	struct sandbox_set *set;
	struct err failure; /* a VM could not even be looked for: it may well live */
	json_t *unread;     /* ids of those whose rows say nothing to this bridge */
};

/* In a copy of a state directory VMs are told of that belong to the original's bridge. */
static bool is_ours(const struct sandbox *s, const json_t *vm)
{
	const char *dir = json_string_value(json_object_get(vm, "dir"));
	char own[PATH_MAX];
	return dir != NULL &&
	       strcmp(dir, sandbox_set_vm_dir(s->set, s->id, own, sizeof(own))) == 0;
}

static void adopt_row(const struct registry_row *row, void *arg)
{
	struct adoption *a = arg;
	struct sandbox_set *set = a->set;
	struct err e = {0};
	json_t *state;
	bool whole = false;
	if ((row->deleted_ms != 0 && row->state[0] == '\0') || a->failure.code != ERR_NONE)
		return;
	struct sandbox *s = sandbox_load(set, row, &state, &e);
	if (s == NULL && e.code == ERR_CAPACITY) {
		a->failure = e;
		return;
	}
	if (s == NULL) {
		log_error("sandbox", row->id, "%s", e.msg);
		doc_append(&a->unread, json_string(row->id));
		set->unread = true;
		return;
	}
	e = (struct err){0};
	bool ours = state != NULL && is_ours(s, state);
	if (ours)
		s->vm = vm_adopt(set->loop, s->id, state, s->launcher->vmm,
		                 &sandbox_vm_handlers, s, &whole, &e);
	if (e.code == ERR_CAPACITY)
		a->failure = e;
	if (s->vm != NULL) {
		char token[sizeof(s->endpoint.token)];
		memcpy(token, s->spec.endpoint.token, sizeof(token));
		s->endpoint = *vm_endpoint(s->vm);
		memcpy(s->endpoint.token, token, sizeof(token));
	}
	bool moves = s->launcher->external && s->frozen; /* its owner says where it goes on */
	if ((s->status == SANDBOX_RUNNING || s->status == SANDBOX_PAUSED) && !whole && !moves)
		err_set(&s->failure, ERR_SANDBOX_LOST, "%s",
		        ours || state == NULL ? "the VM ended while no bridge ran"
		                              : "its VM is in another state directory");
	json_decref(state);
}

static void take_up_bracket(struct sandbox *s)
{
	struct err e = {0};
	if (sandbox_enter_bracket(s, &e) < 0)
		sandbox_failed(s, &e);
}

/* What a row says, and what was found of it, decide together. */
static void settle_adopted(struct sandbox *s)
{
	switch (s->status) {
	case SANDBOX_RUNNING:
	case SANDBOX_PAUSED:
		if (s->failure.code != ERR_NONE) {
			struct err why = s->failure;
			sandbox_failed(s, &why);
			return;
		}
		log_info("sandbox", s->id, "adopted from %s", s->launcher->name);
		sandbox_update_timer(s);
		if (s->status == SANDBOX_PAUSED)
			link_gate_close(&s->gate, NULL);
		else if (s->frozen && s->launcher->external)
			take_up_bracket(s);
		else if (s->frozen)
			sandbox_recover(s);
		else
			sandbox_want_spare(s, SPARE_DELAY_MS);
		sandbox_start_watch(s, true);
		return;
	case SANDBOX_HIBERNATED: /* on its way there, or back: what was saved counts */
		if (!sandbox_is_saved(s)) {
			struct err why = {0};
			err_set(&why, ERR_SANDBOX_LOST, "what it was saved to is gone");
			sandbox_failed(s, &why);
			return;
		}
		sandbox_stop_vm(s);
		sandbox_update_timer(s);
		return;
	case SANDBOX_FAILED:
		sandbox_stop_vm(s);
		sandbox_update_timer(s);
		return;
	case SANDBOX_CREATING: /* was interrupted; a repetition of the request makes another */
		s->spec.idempotency_key[0] = '\0';
		sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_NONE, NULL, NULL);
		return;
	default: /* a delete was interrupted */
		sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_NONE, NULL, NULL);
	}
}

/* A VM whose start was cut off may have a process that nobody wrote down: all that is found in
 * its place goes. */
static bool is_whole(const struct sandbox *s)
{
	return s->vm != NULL && s->status != SANDBOX_CREATING;
}

static bool is_known(const char *path, void *arg)
{
	struct sandbox_set *set = arg;
	struct sandbox *s;
	char dir[PATH_MAX], memory[PATH_MAX], cgroup[PATH_MAX];
	TAILQ_FOREACH (s, &set->all, entry)
		if (is_whole(s) &&
		    (strcmp(sandbox_set_vm_dir(set, s->id, dir, sizeof(dir)), path) == 0 ||
		     strcmp(sandbox_set_cgroup(set, s->id, cgroup), path) == 0 ||
		     strcmp(sandbox_set_memory(set, s->id, memory, sizeof(memory)), path) == 0))
			return true;
	return false;
}

/* What a sandbox was saved to is of use while it sleeps, or may be to another bridge. */
static bool is_asleep(const char *path, void *arg)
{
	const struct adoption *a = arg;
	struct sandbox_set *set = a->set;
	struct sandbox *s;
	char dir[PATH_MAX];
	if (doc_has(a->unread, strrchr(path, '/') + 1))
		return true;
	TAILQ_FOREACH (s, &set->all, entry) {
		sandbox_saved_dir(set, s->id, dir);
		if (s->status == SANDBOX_HIBERNATED && strcmp(dir, path) == 0)
			return true;
	}
	return false;
}

static void tell_launcher(const struct sandbox_set *set)
{
	struct err e;
	const struct launcher *l = launcher_choose(set->launcher, &set->host, &e);
	if (l == NULL)
		log_warn("bridge", NULL, "no VM can be started: %s", e.msg);
	else
		log_info("bridge", NULL, "new sandboxes run on %s (%s)", l->name,
		         l->isolation(&set->host));
}

static void on_kvm_answer(const struct launcher *by, void *arg)
{
	struct sandbox_set *set = arg;
	set->kvm_trial = NULL;
	set->host.kvm = by;
	tell_launcher(set);
}

/* KVM is used where it has been proved. */
static void settle_kvm(struct sandbox_set *set)
{
	char dir[PATH_MAX], cgroup[PATH_MAX];
	const struct kvm_trial_place place = {set->state_dir, dir, cgroup};
	if (kvm_trial_known(&set->host, set->launcher, set->state_dir, &set->host.kvm)) {
		tell_launcher(set);
		return;
	}
	sandbox_set_vm_dir(set, KVM_TRIAL, dir, sizeof(dir));
	sandbox_set_cgroup(set, KVM_TRIAL, cgroup);
	set->kvm_trial =
	    kvm_trial_start(set->loop, &set->host, set->launcher, &place, on_kvm_answer, set);
	if (set->kvm_trial == NULL)
		tell_launcher(set);
}

static int adopt_rows(struct adoption *a, struct err *e)
{
	struct sandbox_set *set = a->set;
	char vm_dir[PATH_MAX], saved_dirs[PATH_MAX];
	if (registry_each(set->registry, adopt_row, a, e) < 0)
		return -1;
	if (a->unread == NULL)
		err_set(&a->failure, ERR_CAPACITY, "out of memory");
	if (a->failure.code != ERR_NONE) {
		*e = a->failure;
		return -1;
	}
	snprintf(vm_dir, sizeof(vm_dir), "%s/vm", set->state_dir);
	sandbox_saved_dir(set, NULL, saved_dirs);
	return vm_cgroup_sweep(set->cgroups, is_known, set, e) < 0 ||
	               vm_sweep(vm_dir, is_known, set, e) < 0 ||
	               vm_sweep(set->memory_dir, is_known, set, e) < 0 ||
	               vm_sweep(saved_dirs, is_asleep, a, e) < 0
	           ? -1
	           : 0;
}

int sandbox_set_adopt(struct sandbox_set *set, struct err *e)
{
	struct adoption a = {.set = set, .unread = json_array()};
	struct sandbox *s;
	int rc = adopt_rows(&a, e);
	json_decref(a.unread);
	if (rc < 0)
		return -1;
	sandbox_set_sweep_images(set);
	settle_kvm(set);
	TAILQ_FOREACH (s, &set->all, entry)
		settle_adopted(s);
	return 0;
}
