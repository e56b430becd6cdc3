#include "host-bridge/sandbox/sandbox_set.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/kvm_trial.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/limits.h"
#include "proto/log.h"

#define PURGE_EVERY_S 3600.
#define ULID_LEN 26

/* ---- the set ---- */

static void on_purge(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct sandbox_set *set = w->data;
	(void)loop;
	(void)revents;
	registry_purge(set->registry, sandbox_wall_ms() - DELETED_S * 1000ll);
}

/* On a file system in memory, when there is one of some size (a container's has 64 MiB); on a
 * disk the kernel would write all that guests do to their memory back to it. */
static int make_memory_dir(struct sandbox_set *set, struct err *e)
{
	struct statfs fs;
	struct stat st;
	if (stat(set->state_dir, &st) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "the state directory");
	bool shm = statfs("/dev/shm", &fs) == 0 && fs.f_type == TMPFS_MAGIC &&
	           fs.f_blocks * (unsigned long long)fs.f_bsize >
	               SHM_MIN_MIB * (unsigned long long)MIB;
	if (shm)
		snprintf(set->memory_dir, sizeof(set->memory_dir),
		         "/dev/shm/sandgate-%llx-%llx", (unsigned long long)st.st_dev,
		         (unsigned long long)st.st_ino);
	else if ((size_t)snprintf(set->memory_dir, sizeof(set->memory_dir), "%s/memory",
	                          set->state_dir) >= sizeof(set->memory_dir))
		return err_set(e, ERR_INTERNAL, "the state directory's path is too long");
	if (mkdir(set->memory_dir, 0711) < 0 && errno != EEXIST)
		return err_errno(e, ERR_INTERNAL, errno, "%s", set->memory_dir);
	return 0;
}

/* Everything a VM's processes name is named absolutely: they run in directories of their
 * own. */
static int make_paths(struct sandbox_set *set, const struct sandbox_set_config *c,
                      struct err *e)
{
	char vm_dir[PATH_MAX];
	set->state_dir = realpath(c->state_dir, NULL);
	set->rootfs_dir = realpath(c->rootfs_dir, NULL);
	set->agent_path = realpath(c->agent_path, NULL);
	if (set->rootfs_dir == NULL)
		set->rootfs_dir = strdup(c->rootfs_dir); /* not built: creates will say so */
	if (set->agent_path == NULL)
		set->agent_path = strdup(c->agent_path);
	set->node = strdup(c->node);
	set->launcher = strdup(c->launcher);
	if (set->state_dir == NULL || set->rootfs_dir == NULL || set->agent_path == NULL ||
	    set->node == NULL || set->launcher == NULL)
		return err_set(e, ERR_INTERNAL, "the state directory or memory is missing");
	snprintf(vm_dir, sizeof(vm_dir), "%s/vm", set->state_dir);
	if (mkdir(vm_dir, 0711) < 0 && errno != EEXIST)
		return err_errno(e, ERR_INTERNAL, errno, "%s", vm_dir);
	if (make_memory_dir(set, e) < 0)
		return -1;
	baked_sweep(set->state_dir);
	set->host.rootfs_dir = set->rootfs_dir;
	set->host.agent_path = set->agent_path;
	return 0;
}

struct sandbox_set *sandbox_set_create(struct ev_loop *loop, const struct sandbox_set_config *c,
                                       struct err *e)
{
	struct sandbox_set *set = calloc(1, sizeof(*set));
	if (set == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	set->loop = loop;
	TAILQ_INIT(&set->all);
	ev_timer_init(&set->purge, on_purge, 0., PURGE_EVERY_S);
	set->purge.data = set;
	set->registry = registry_open(c->state_dir, e);
	if (set->registry == NULL || make_paths(set, c, e) < 0) {
		sandbox_set_destroy(set);
		return NULL;
	}
	ev_timer_start(loop, &set->purge);
	return set;
}

void sandbox_set_destroy(struct sandbox_set *set)
{
	struct sandbox *s;
	if (set == NULL)
		return;
	while ((s = TAILQ_FIRST(&set->all)) != NULL)
		sandbox_free(s);
	kvm_trial_cancel(set->kvm_trial);
	rmdir(set->memory_dir); /* unless a VM lives on */
	ev_timer_stop(set->loop, &set->purge);
	registry_close(set->registry);
	free(set->state_dir);
	free(set->rootfs_dir);
	free(set->agent_path);
	free(set->node);
	free(set->launcher);
	free(set);
}

/* ---- finding ---- */

struct sandbox *sandbox_find(struct sandbox_set *set, const char *id, const char *workspace,
                             struct err *e)
{
	struct sandbox *s;
	TAILQ_FOREACH (s, &set->all, entry) {
		if (strcmp(s->id, id) != 0 || s->deleted)
			continue;
		if (workspace == NULL || strcmp(s->spec.workspace, workspace) == 0)
			return s;
	}
	if (sandbox_was_deleted(set, id, workspace))
		err_set(e, ERR_SANDBOX_GONE, "the sandbox was deleted");
	else
		err_set(e, ERR_SANDBOX_NOT_FOUND, "there is no such sandbox");
	return NULL;
}

bool sandbox_was_deleted(struct sandbox_set *set, const char *id, const char *workspace)
{
	return registry_was_deleted(set->registry, id, workspace);
}

struct sandbox *sandbox_find_key(struct sandbox_set *set, const char *workspace,
                                 const char *key, struct err *e)
{
	struct sandbox *s;
	int64_t since = sandbox_wall_ms() - IDEMPOTENCY_S * 1000ll;
	if (key[0] == '\0')
		return NULL;
	TAILQ_FOREACH (s, &set->all, entry) {
		if (s->deleted || strcmp(s->spec.idempotency_key, key) != 0 ||
		    strcmp(s->spec.workspace, workspace) != 0 || s->created_ms < since)
			continue;
		s->orphan_due = 0;
		sandbox_update_timer(s);
		return s;
	}
	if (registry_key_was_deleted(set->registry, workspace, key, since))
		err_set(e, ERR_SANDBOX_GONE, "the sandbox of this Idempotency-Key was deleted");
	return NULL;
}

struct sandbox *sandbox_next(struct sandbox_set *set, const struct sandbox *after)
{
	struct sandbox *s = after != NULL ? TAILQ_NEXT(after, entry) : TAILQ_FIRST(&set->all);
	while (s != NULL && s->deleted)
		s = TAILQ_NEXT(s, entry);
	return s;
}

size_t sandbox_count(struct sandbox_set *set, const char *workspace)
{
	size_t n = 0;
	for (struct sandbox *s = NULL; (s = sandbox_next(set, s)) != NULL;)
		n += s->status != SANDBOX_FAILED &&
		     (workspace == NULL || strcmp(s->spec.workspace, workspace) == 0);
	return n;
}

/* ---- making ---- */

/* A ULID (github.com/ulid/spec): 48 bits of time, 80 of chance, in Crockford's base 32. */
static int make_ulid(char out[ULID_LEN + 1])
{
	static const char digits[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
	uint8_t chance[10];
	uint64_t ms = (uint64_t)sandbox_wall_ms();
	if (getrandom(chance, sizeof(chance), 0) != sizeof(chance))
		return -1;
	for (int i = 9; i >= 0; i--, ms >>= 5)
		out[i] = digits[ms & 31];
	for (int i = 0; i < 16; i++) {
		unsigned bit = (unsigned)i * 5, byte = bit / 8;
		unsigned pair =
		    (unsigned)chance[byte] << 8 | (byte + 1 < 10 ? chance[byte + 1] : 0);
		out[10 + i] = digits[pair >> (11 - bit % 8) & 31];
	}
	out[ULID_LEN] = '\0';
	return 0;
}

/* A VM's directory is short: sockets in it must fit sun_path. */
const char *sandbox_set_vm_dir(const struct sandbox_set *set, const char *id, char *out,
                               size_t room)
{
	size_t len = strlen(id);
	snprintf(out, room, "%s/vm/%s", set->state_dir,
	         len > ULID_LEN ? id + len - ULID_LEN : id);
	return out;
}

static const char *memory_file(const struct sandbox_set *set, const char *id, char *out,
                               size_t room)
{
	size_t len = strlen(id);
	snprintf(out, room, "%s/%s", set->memory_dir,
	         len > ULID_LEN ? id + len - ULID_LEN : id);
	return out;
}

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
	if (spec->disk_mib != 0)
		return refuse_resource("disk_mib", l, e);
	if (!l->takes_memory && spec->vcpus != 0)
		return refuse_resource("vcpus", l, e);
	if (!l->takes_memory && spec->memory_mib != 0)
		return refuse_resource("memory_mib", l, e);
	if (l->template_kind == NULL) {
		if (!spec->attach && strcmp(spec->template, "base") != 0)
			return err_field(e, ERR_TEMPLATE_NOT_FOUND, "template",
			                 "the launcher %s has only the template base", l->name);
		return 0;
	}
	if (template_load(s->set->rootfs_dir, spec->template, l->template_kind, &r->template,
	                  e) < 0)
		return -1;
	if (spec->vcpus == 0)
		spec->vcpus = r->template.vcpus;
	if (spec->memory_mib == 0)
		spec->memory_mib = r->template.memory_mib;
	if (spec->vcpus > VCPUS_MAX)
		return err_field(e, ERR_INVALID_FIELD, "resources.vcpus", "at most %u",
		                 VCPUS_MAX);
	if (spec->memory_mib < MEMORY_MIN_MIB || spec->memory_mib > MEMORY_MAX_MIB)
		return err_field(e, ERR_INVALID_FIELD, "resources.memory_mib",
		                 "between %u and %u", MEMORY_MIN_MIB, MEMORY_MAX_MIB);
	if (spec->vcpus > launcher_host_cpus())
		return err_set(e, ERR_CAPACITY, "this host has %u CPUs", launcher_host_cpus());
	return launcher_capacity(l, spec->memory_mib, committed_memory(s->set), e);
}

/* From the template's snapshot, when there is one; else it is to leave one. */
static int choose_boot(struct sandbox *s, struct launcher_request *r, struct err *e)
{
	struct sandbox_set *set = s->set;
	if (s->launcher->vmm == NULL)
		return 0;
	if (baked_path(set->state_dir, s->launcher, &set->host, r, s->baked, e) < 0)
		return -1;
	s->restored = baked_exists(s->baked);
	r->restore = s->restored ? s->baked : NULL;
	return 0;
}

/* Everything that can be refused is refused before the sandbox is written down. */
static int launch(struct sandbox *s, struct err *e)
{
	static struct launcher_request none;
	struct launcher_request r = none;
	struct vm_plan plan = {0};
	char dir[PATH_MAX], memory[PATH_MAX];
	if (settle_resources(s, &r, e) < 0 || choose_boot(s, &r, e) < 0)
		return -1;
	r.id = s->id;
	r.dir = sandbox_set_vm_dir(s->set, s->id, dir, sizeof(dir));
	r.memory = memory_file(s->set, s->id, memory, sizeof(memory));
	r.vcpus = s->spec.vcpus;
	r.memory_mib = s->spec.memory_mib;
	r.attach = s->spec.attach ? &s->spec.endpoint : NULL;
	if (s->launcher->plan(&s->set->host, &r, &plan, e) < 0) {
		vm_plan_free(&plan);
		return -1;
	}
	s->isolation = s->launcher->isolation(&s->set->host);
	s->endpoint = plan.endpoint;
	if (sandbox_save(s, e) < 0) {
		vm_plan_free(&plan);
		return -1;
	}
	s->vm = vm_start(s->set->loop, s->id, dir, &plan, &sandbox_vm_handlers, s, e);
	if (s->vm != NULL && sandbox_save(s, e) == 0)
		return 0;
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
	char ulid[ULID_LEN + 1], id[128];
	const struct launcher *l =
	    launcher_choose(spec->attach ? "attach" : set->launcher, &set->host, e);
	if (l == NULL)
		return NULL;
	if (make_ulid(ulid) < 0) {
		err_errno(e, ERR_INTERNAL, errno, "getrandom");
		return NULL;
	}
	snprintf(id, sizeof(id), "sb-%s-%s", set->node, ulid);
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
