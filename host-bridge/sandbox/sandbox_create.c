/* How a sandbox begins: what it is to have, what it starts from, and its VM. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/limits.h"
#include "proto/log.h"

static unsigned long long committed_memory(struct sandbox_set *set)
{
	unsigned long long mib = 0;
	struct sandbox *s;
	TAILQ_FOREACH (s, &set->all, entry)
		if (s->vm != NULL && s->launcher->takes_memory)
			mib += s->spec.memory_mib + VM_OVERHEAD_MIB;
	return mib;
}

static int refuse_resource(const char *name, const struct launcher *l, struct err *e)
{
	char field[64];
	snprintf(field, sizeof(field), "resources.%s", name);
	return err_field(e, ERR_LIMIT_UNSUPPORTED, field, "the launcher %s cannot enforce %s",
	                 l->name, field);
}

/* The template's defaults, the request's wishes, and what this host can give. */
static int settle_resources(struct sandbox *s, struct launcher_request *r, struct err *e)
{
	const struct launcher *l = s->launcher;
	struct sandbox_spec *spec = &s->spec;
	if (!l->takes_disks && spec->disk_mib != 0)
		return refuse_resource("disk_mib", l, e);
	if (!l->takes_memory && spec->vcpus != 0)
		return refuse_resource("vcpus", l, e);
	if (!l->takes_memory && spec->memory_mib != 0)
		return refuse_resource("memory_mib", l, e);
	if (l->external && !spec->attach)
		return err_field(e, ERR_INVALID_FIELD, "template",
		                 "this bridge starts no VMs: give attach");
	if (l->template_kind == NULL) {
		if (!spec->attach && strcmp(spec->template, "base") != 0)
			return err_field(e, ERR_TEMPLATE_NOT_FOUND, "template",
			                 "the launcher %s has only the template base", l->name);
		return 0;
	}
	if (s->source != NULL)
		return launcher_capacity(l, spec->memory_mib, committed_memory(s->set), e);
	if (template_load(s->set->rootfs_dir, spec->template, l->template_kind, &r->template,
	                  e) < 0)
		return -1;
	if (spec->vcpus == 0)
		spec->vcpus = r->template.vcpus;
	if (spec->memory_mib == 0)
		spec->memory_mib = r->template.memory_mib;
	if (spec->disk_mib == 0)
		spec->disk_mib = r->template.disk_mib;
	if (!l->takes_disks && (spec->disk_mib != 0 || r->template.root[0] != '\0'))
		return err_set(e, ERR_LAUNCHER_FAILED,
		               "the template has a disk, and the launcher %s offers none",
		               l->name);
	r->root = r->template.root[0] != '\0' ? r->template.root : NULL;
	if (spec->vcpus > launcher_host_cpus())
		return err_limit(e, ERR_LIMIT_UNSUPPORTED, "resources.vcpus",
		                 launcher_host_cpus(), "this host has %u CPUs",
		                 launcher_host_cpus());
	return launcher_capacity(l, spec->memory_mib, committed_memory(s->set), e);
}

/* What it starts from: a snapshot that was asked for; else its template's, when there is one;
 * else it boots, and is to leave one. */
static int choose_boot(struct sandbox *s, struct launcher_request *r, char restore[PATH_MAX],
                       struct err *e)
{
	struct sandbox_set *set = s->set;
	if (s->source != NULL) {
		snapshot_dir(set, s->source, false, restore);
		s->restored = true;
	} else if (s->launcher->vmm != NULL) {
		r->vcpus = s->spec.vcpus;
		r->memory_mib = s->spec.memory_mib;
		r->disk_mib = s->spec.disk_mib;
		if (baked_path(set->state_dir, s->launcher, &set->host, r, s->baked, e) < 0)
			return -1;
		snprintf(restore, PATH_MAX, "%s", s->baked);
		s->restored = baked_exists(s->baked);
		if (s->restored)
			baked_used(s->baked);
	}
	r->restore = s->restored ? restore : NULL;
	if (s->restored)
		sandbox_read_agent(s, restore);
	return 0;
}

/* A snapshot brings all that it was made of. */
static int take_source(struct sandbox *s, struct err *e)
{
	struct sandbox_spec *spec = &s->spec;
	const char *workspace = spec->workspace[0] != '\0' ? spec->workspace : NULL;
	if (spec->snapshot[0] == '\0')
		return 0;
	struct snapshot *n = snapshot_find(s->set, spec->snapshot, workspace, e);
	if (n == NULL)
		return -1;
	if (strcmp(n->launcher, s->launcher->name) != 0 ||
	    strcmp(n->isolation, s->launcher->isolation(&s->set->host)) != 0)
		return err_field(
		    e, ERR_INVALID_STATE, "from_snapshot",
		    "the snapshot was made on %s (%s), and sandboxes run on %s here",
		    n->launcher, n->isolation, s->launcher->name);
	if ((spec->vcpus != 0 && spec->vcpus != n->vcpus) ||
	    (spec->memory_mib != 0 && spec->memory_mib != n->memory_mib))
		return err_field(e, ERR_INVALID_FIELD, "resources",
		                 "the snapshot has %u vcpus and %u MiB, which cannot change",
		                 n->vcpus, n->memory_mib);
	spec->vcpus = n->vcpus;
	spec->memory_mib = n->memory_mib;
	snprintf(spec->template, sizeof(spec->template), "%s", n->template);
	if (spec->exec_defaults == NULL && n->exec_defaults != NULL)
		spec->exec_defaults = json_deep_copy(n->exec_defaults);
	snapshot_hold(n);
	s->source = n;
	return 0;
}

static bool is_taken(uid_t uid, void *arg)
{
	struct sandbox_set *set = arg;
	struct sandbox *s;
	TAILQ_FOREACH (s, &set->all, entry)
		if (s->vm != NULL && s->uid == uid)
			return true;
	return false;
}

/* Start what `r` says, which lacks what is the sandbox's own. */
static int start_vm(struct sandbox *s, struct launcher_request *r, struct err *e)
{
	struct vm_plan plan = {0};
	char dir[PATH_MAX], memory[PATH_MAX], cgroup[PATH_MAX];
	s->uid = vm_uids_pick(&s->set->uids, is_taken, s->set, e);
	if (s->uid == 0)
		return -1;
	r->id = s->id;
	r->uid = s->uid;
	r->dir = sandbox_set_vm_dir(s->set, s->id, dir, sizeof(dir));
	r->memory = sandbox_set_memory(s->set, s->id, memory, sizeof(memory));
	r->cgroup = sandbox_set_cgroup(s->set, s->id, cgroup);
	r->vcpus = s->spec.vcpus;
	r->memory_mib = s->spec.memory_mib;
	r->disk_mib = s->spec.disk_mib;
	r->attach = s->spec.attach ? &s->spec.endpoint : NULL;
	if (launcher_plan(s->launcher, &s->set->host, r, &plan, e) < 0) {
		vm_plan_free(&plan);
		return -1;
	}
	plan.memory_reserved = s->set->memory_on_disk;
	s->isolation = s->launcher->isolation(&s->set->host);
	s->endpoint = plan.endpoint;
	if (sandbox_save(s, e) < 0) {
		vm_plan_free(&plan);
		return -1;
	}
	s->vm = vm_start(s->set->loop, s->id, dir, &plan, &sandbox_vm_handlers, s, e);
	return s->vm != NULL && sandbox_save(s, e) == 0 ? 0 : 1;
}

int sandbox_restart(struct sandbox *s, const char *saved, struct err *e)
{
	static struct launcher_request none;
	struct launcher_request r = none;
	r.restore = saved;
	if (launcher_capacity(s->launcher, s->spec.memory_mib, committed_memory(s->set), e) < 0)
		return -1;
	return start_vm(s, &r, e) == 0 ? 0 : -1;
}

static int admit(const struct sandbox *s, struct err *e)
{
	const struct sandbox_set *set = s->set;
	return set->admit != NULL ? set->admit(&s->spec, set->admit_arg, e) : 0;
}

/* Everything that can be refused is refused before the sandbox is written down. */
static int launch(struct sandbox *s, struct err *e)
{
	static struct launcher_request none;
	struct launcher_request r = none;
	char restore[PATH_MAX];
	if (take_source(s, e) < 0 || settle_resources(s, &r, e) < 0 ||
	    choose_boot(s, &r, restore, e) < 0 || admit(s, e) < 0)
		return -1;
	int rc = start_vm(s, &r, e);
	if (rc == 0) {
		sandbox_event(s, "created", NULL, NULL);
		sandbox_event(s, "booting", NULL, s->restored ? "restore" : "boot");
	}
	if (rc <= 0)
		return rc;
	/* Nobody has heard of it: it goes without its creator being told. */
	struct sandbox_waiter *creator = SLIST_FIRST(&s->ready_waiters);
	SLIST_REMOVE_HEAD(&s->ready_waiters, entry);
	free(creator);
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_NONE, NULL, NULL);
	return 1;
}

struct sandbox *sandbox_create(struct sandbox_set *set, const struct sandbox_spec *spec,
                               void (*on_ready)(struct sandbox *s, const struct err *e,
                                                void *arg),
                               void *arg, struct err *e)
{
	struct sandbox_waiter creator = {.on_ready = on_ready, .arg = arg, .creator = true};
	char id[128];
	const struct launcher *l =
	    launcher_choose(spec->attach ? "attach" : set->launcher, &set->host, e);
	if (l == NULL)
		return NULL;
	if (sandbox_set_new_id(set, "sb", id, sizeof(id), e) < 0)
		return NULL;
	struct sandbox *s = sandbox_new(set, id);
	if (s == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	s->launcher = l;
	if (sandbox_copy_spec(&s->spec, spec) < 0 ||
	    sandbox_add_waiter(&s->ready_waiters, &creator, e) < 0) {
		err_set(e, ERR_INTERNAL, "out of memory");
		sandbox_free(s);
		return NULL;
	}
	int rc = launch(s, e);
	if (rc < 0)
		sandbox_free(s);
	return rc == 0 ? s : NULL;
}
