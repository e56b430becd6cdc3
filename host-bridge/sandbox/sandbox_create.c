/* How a sandbox begins: what it is to have, what it starts from, and its VM. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/image.h"
#include "host-bridge/sandbox/memory_room.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/sandbox/sandbox_warm.h"
#include "proto/limits.h"
#include "proto/log.h"

static unsigned long long memory_of(const struct sandbox_list *list)
{
	unsigned long long mib = 0;
	const struct sandbox *s;
	TAILQ_FOREACH (s, list, entry)
		if (s->vm != NULL && s->launcher->takes_memory)
			mib += s->spec.memory_mib + VM_OVERHEAD_MIB;
	return mib;
}

/* Room for `count` of it beside all living guests; the warm ones make way for others. */
static int check_room(const struct sandbox *s, unsigned count, struct err *e)
{
	struct sandbox_set *set = s->set;
	struct err full = {0};
	unsigned mib = s->spec.memory_mib;
	unsigned long long others = (count - 1) * (mib + VM_OVERHEAD_MIB + 0ull);
	unsigned long long used = others + memory_of(&set->all);
	if (launcher_capacity(s->launcher, mib, used + memory_of(&set->warm), &full) == 0)
		return 0;
	if (full.code == ERR_CAPACITY && !s->warm && sandbox_warm_drop_all(set))
		return launcher_capacity(s->launcher, mib, used, e);
	if (e != NULL)
		*e = full;
	return -1;
}

static int refuse_resource(const char *name, const struct launcher *l, struct err *e)
{
	char field[64];
	snprintf(field, sizeof(field), "resources.%s", name);
	return err_field(e, ERR_LIMIT_UNSUPPORTED, field, "the launcher %s cannot enforce %s",
	                 l->name, field);
}

/* Of a template, for a sandbox that starts from it: the root image that it has now, and the
 * size of the disk unless the request gave one. */
static int settle_disks(struct sandbox *s, const struct template *t, struct err *e)
{
	struct sandbox_spec *spec = &s->spec;
	if (spec->disk_mib == 0)
		spec->disk_mib = t->disk_mib;
	return t->root[0] != '\0' ? image_keep(s->set->state_dir, t->root, spec->image, e) : 0;
}

/* The very image that it was made from: its template may have another by now. */
static int find_image(const struct sandbox *s, struct launcher_request *r, struct err *e)
{
	if (s->spec.image[0] == '\0')
		return 0;
	return image_path(s->set->state_dir, s->spec.image, r->template.root, e);
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
		return check_room(s, 1, e);
	if (template_load(s->set->rootfs_dir, spec->template, l->template_kind, &r->template,
	                  e) < 0)
		return -1;
	if (spec->vcpus == 0)
		spec->vcpus = r->template.vcpus;
	if (spec->memory_mib == 0)
		spec->memory_mib = r->template.memory_mib;
	if (settle_disks(s, &r->template, e) < 0)
		return -1;
	if (spec->vcpus > launcher_host_cpus())
		return err_limit(e, ERR_LIMIT_UNSUPPORTED, "resources.vcpus",
		                 launcher_host_cpus(), "this host has %u CPUs",
		                 launcher_host_cpus());
	return check_room(s, 1, e);
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
	s->serves = r->template.start != NULL;
	if (s->restored || (r->template.start == NULL && r->template.ready == NULL))
		return 0;
	s->start = sandbox_start_new(s, &r->template);
	return s->start != NULL ? 0 : err_set(e, ERR_CAPACITY, "out of memory");
}

/* What was saved runs on nothing but the like of what it was saved on. */
static bool runs_on(const char *launcher, const char *isolation, const struct launcher *l,
                    const struct launcher_host *host)
{
	return strcmp(launcher, l->name) == 0 && strcmp(isolation, l->isolation(host)) == 0;
}

/* A snapshot brings all that it was made of. */
static int take_source(struct sandbox *s, struct err *e)
{
	struct sandbox_spec *spec = &s->spec;
	if (spec->snapshot[0] == '\0')
		return 0;
	struct snapshot *n = snapshot_find(s->set, spec->snapshot, NULL, e);
	if (n == NULL)
		return -1;
	if (!runs_on(n->launcher, n->isolation, s->launcher, &s->set->host))
		return err_field(
		    e, ERR_INVALID_STATE, "from_snapshot",
		    "the snapshot was made on %s (%s), and sandboxes run on %s here",
		    n->launcher, n->isolation, s->launcher->name);
	if (spec->template[0] != '\0' && strcmp(spec->template, n->template) != 0)
		return err_field(e, ERR_INVALID_FIELD, "template",
		                 "the snapshot is of the template %s", n->template);
	if ((spec->vcpus != 0 && spec->vcpus != n->vcpus) ||
	    (spec->memory_mib != 0 && spec->memory_mib != n->memory_mib) ||
	    (spec->disk_mib != 0 && spec->disk_mib != n->disk_mib))
		return err_field(e, ERR_INVALID_FIELD, "resources",
		                 "the snapshot has %u vcpus, %u MiB and a disk of %u MiB,"
		                 " which cannot change",
		                 n->vcpus, n->memory_mib, n->disk_mib);
	spec->vcpus = n->vcpus;
	spec->memory_mib = n->memory_mib;
	spec->disk_mib = n->disk_mib;
	snprintf(spec->image, sizeof(spec->image), "%s", n->image);
	snprintf(spec->template, sizeof(spec->template), "%s", n->template);
	if (spec->exec_defaults == NULL &&
	    doc_copy(&spec->exec_defaults, n->exec_defaults, e) < 0)
		return -1;
	snapshot_hold(n);
	s->source = n;
	return 0;
}

static bool has_uid(const struct sandbox_list *list, uid_t uid)
{
	const struct sandbox *s;
	TAILQ_FOREACH (s, list, entry)
		if (s->vm != NULL && s->uid == uid)
			return true;
	return false;
}

static bool is_taken(uid_t uid, void *arg)
{
	struct sandbox_set *set = arg;
	return has_uid(&set->all, uid) || has_uid(&set->warm, uid);
}

/* Where RAM is to be, for so much more of it. */
static int check_memory(struct sandbox *s, unsigned mib, struct err *e)
{
	struct sandbox_set *set = s->set;
	if (memory_room_check(set->memory_dir, mib, e) == 0)
		return 0;
	if (s->warm || !sandbox_warm_drop_all(set))
		return -1;
	return memory_room_check(set->memory_dir, mib, e);
}

static uid_t pick_uid(const struct sandbox *s, struct err *e)
{
	struct sandbox_set *set = s->set;
	uid_t uid = vm_uids_pick(&set->uids, is_taken, set, e);
	if (uid == 0 && !s->warm && sandbox_warm_drop_all(set))
		uid = vm_uids_pick(&set->uids, is_taken, set, e);
	return uid;
}

/* Start what `r` says, which lacks what is the sandbox's own. */
static int start_vm(struct sandbox *s, const struct launcher_host *host,
                    struct launcher_request *r, struct err *e)
{
	struct vm_plan plan = {0};
	char dir[PATH_MAX], memory[PATH_MAX], cgroup[PATH_MAX];
	s->uid = pick_uid(s, e);
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
	if (launcher_plan(s->launcher, host, r, &plan, e) < 0) {
		vm_plan_free(&plan);
		return -1;
	}
	plan.memory_reserved = s->set->memory_on_disk;
	if (plan.memory[0] != '\0' && !plan.memory_reserved &&
	    check_memory(s, plan.memory_mib, e) < 0) {
		vm_plan_free(&plan);
		return -1;
	}
	s->isolation = s->launcher->isolation(host);
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
	struct launcher_host host = s->set->host;
	/* A state fits what it was saved under, whatever has been found out about KVM since. */
	host.kvm = strcmp(s->isolation, "kvm") == 0 ? s->launcher : NULL;
	r.restore = saved;
	if (check_room(s, 1, e) < 0 || find_image(s, &r, e) < 0)
		return -1;
	return start_vm(s, &host, &r, e) == 0 ? 0 : -1;
}

static int admit(const struct sandbox *s, struct err *e)
{
	const struct sandbox_set *set = s->set;
	return set->admit != NULL ? set->admit(&s->spec, set->admit_arg, e) : 0;
}

/* Nobody has heard of it: it goes without its creator being told. */
static int undo(struct sandbox *s)
{
	struct sandbox_waiter *creator = SLIST_FIRST(&s->ready_waiters);
	SLIST_REMOVE_HEAD(&s->ready_waiters, entry);
	free(creator);
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_NONE, NULL, NULL);
	return 1;
}

static void tell_created(struct sandbox *s)
{
	sandbox_event(s, "created", NULL, NULL);
	sandbox_event(s, "booting", NULL, s->restored ? "restore" : "boot");
}

/* From the warm pool. */
static int take(struct sandbox *s, struct err *e)
{
	if (sandbox_save(s, e) < 0)
		return undo(s);
	tell_created(s);
	if (s->warmed)
		sandbox_running(s);
	return 0;
}

static int settle(struct sandbox *s, struct launcher_request *r, char restore[PATH_MAX],
                  struct err *e)
{
	int rc = take_source(s, e) < 0 || settle_resources(s, r, e) < 0 ||
	                 find_image(s, r, e) < 0 || choose_boot(s, r, restore, e) < 0
	             ? -1
	             : 0;
	template_free(&r->template);
	return rc;
}

/* Everything that can be refused is refused before the sandbox is written down. -1: it is to be
 * freed, 1: it goes by itself. */
static int launch(struct sandbox **at, struct err *e)
{
	static struct launcher_request none;
	struct launcher_request r = none;
	struct sandbox *s = *at, *warm;
	char restore[PATH_MAX];
	if (settle(s, &r, restore, e) < 0 || admit(s, e) < 0)
		return -1;
	warm = sandbox_warm_claim(s);
	if (warm != NULL) {
		*at = warm;
		return take(warm, e);
	}
	int rc = start_vm(s, &s->set->host, &r, e);
	if (rc == 0)
		tell_created(s);
	return rc > 0 ? undo(s) : rc;
}

static const struct launcher *choose(struct sandbox_set *set, bool attach, struct err *e)
{
	const struct launcher *l =
	    launcher_choose(attach ? "attach" : set->launcher, &set->host, e);
	if (l == NULL && set->kvm_trial != NULL)
		err_set(e, ERR_CAPACITY,
		        "KVM is being tried, and nothing runs here without it");
	return l;
}

int sandbox_check_fork(struct sandbox *s, unsigned count, struct err *e)
{
	struct sandbox_set *set = s->set;
	char memory[PATH_MAX];
	const struct launcher *l = choose(set, s->spec.attach, e);
	if (l == NULL)
		return -1;
	if (!runs_on(s->launcher->name, s->isolation, l, &set->host))
		return err_set(e, ERR_INVALID_STATE,
		               "the sandbox runs on %s (%s), and new ones run on %s (%s) here",
		               s->launcher->name, s->isolation, l->name,
		               l->isolation(&set->host));
	if (check_room(s, count, e) < 0)
		return -1;
	sandbox_set_memory(set, s->id, memory, sizeof(memory));
	return access(memory, F_OK) == 0 ? check_memory(s, count * s->spec.memory_mib, e) : 0;
}

struct sandbox *sandbox_create(struct sandbox_set *set, const struct sandbox_spec *spec,
                               void (*on_ready)(struct sandbox *s, const struct err *e,
                                                void *arg),
                               void *arg, struct err *e)
{
	struct sandbox_waiter creator = {.on_ready = on_ready, .arg = arg, .creator = true};
	char id[128];
	const struct launcher *l = choose(set, spec->attach, e);
	if (l == NULL)
		return NULL;
	if (sandbox_set_new_id(set, "sb", id, sizeof(id), e) < 0)
		return NULL;
	struct sandbox *s = sandbox_new(set, id);
	if (s == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	s->launcher = l;
	if (sandbox_copy_spec(&s->spec, spec) < 0 ||
	    sandbox_add_waiter(&s->ready_waiters, &creator, e) < 0) {
		err_set(e, ERR_CAPACITY, "out of memory");
		sandbox_free(s);
		return NULL;
	}
	int rc = launch(&s, e);
	if (rc < 0)
		sandbox_free(s);
	return rc == 0 ? s : NULL;
}
