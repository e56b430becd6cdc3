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

#include "host-bridge/launcher/kvm_trial.h"
#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/image.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/sandbox/sandbox_warm.h"
#include "host-bridge/vm/vm_sweep.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "proto/log.h"

#define PURGE_EVERY_S 3600.
#define SWEEP_EVERY_S 5. /* a shortage may be over by then */
#define ULID_LEN 26

/* ---- the set ---- */

static bool is_of(const struct sandbox_list *list, const char *image)
{
	const struct sandbox *s;
	TAILQ_FOREACH (s, list, entry)
		if (strcmp(s->spec.image, image) == 0)
			return true;
	return false;
}

static bool has_image(const char *key, void *arg)
{
	struct sandbox_set *set = arg;
	struct snapshot *n;
	TAILQ_FOREACH (n, &set->snapshots, entry)
		if (strcmp(n->image, key) == 0)
			return true;
	return is_of(&set->all, key) || is_of(&set->warm, key);
}

void sandbox_set_sweep_images(struct sandbox_set *set)
{
	if (!set->unread)
		image_sweep(set->state_dir, has_image, set);
}

/* What could not be removed when its time had come. */
static void on_sweep(struct ev_loop *loop, ev_timer *w, int revents)
{
	static const char *const dirs[] = {"baked", "hibernated", "snapshots", "vm"};
	struct sandbox_set *set = w->data;
	char path[PATH_MAX];
	(void)loop;
	(void)revents;
	for (size_t i = 0; i < sizeof(dirs) / sizeof(*dirs); i++) {
		snprintf(path, sizeof(path), "%s/%s", set->state_dir, dirs[i]);
		vm_sweep_discarded(path);
	}
}

static void on_purge(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct sandbox_set *set = w->data;
	(void)loop;
	(void)revents;
	registry_purge(set->registry, clock_wall_ms() - DELETED_S * 1000ll);
	sandbox_set_sweep_images(set);
}

/* What is outside of the state directory is called after it: other bridges have theirs beside.
 */
static int name_of_state(const struct sandbox_set *set, char out[64], struct err *e)
{
	struct stat st;
	if (stat(set->state_dir, &st) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "the state directory");
	snprintf(out, 64, "sandgate-%llx-%llx", (unsigned long long)st.st_dev,
	         (unsigned long long)st.st_ino);
	return 0;
}

/* On a file system in memory, when there is one of some size (a container's has 64 MiB); on a
 * disk the kernel would write all that guests do to their memory back to it. */
static int make_memory_dir(struct sandbox_set *set, const char *name, struct err *e)
{
	struct statfs fs;
	bool shm = statfs("/dev/shm", &fs) == 0 && fs.f_type == TMPFS_MAGIC &&
	           fs.f_blocks * (unsigned long long)fs.f_bsize >
	               SHM_MIN_MIB * (unsigned long long)MIB;
	if (shm)
		snprintf(set->memory_dir, sizeof(set->memory_dir), "/dev/shm/%s", name);
	else if ((size_t)snprintf(set->memory_dir, sizeof(set->memory_dir), "%s/memory",
	                          set->state_dir) >= sizeof(set->memory_dir))
		return err_set(e, ERR_INTERNAL, "the state directory's path is too long");
	set->memory_on_disk = !shm;
	if (mkdir(set->memory_dir, 0711) < 0 && errno != EEXIST)
		return err_errno(e, ERR_INTERNAL, errno, "%s", set->memory_dir);
	return 0;
}

/* Everything a VM's processes name is named absolutely: they run in directories of their
 * own. */
static int make_paths(struct sandbox_set *set, const struct sandbox_set_config *c,
                      struct err *e)
{
	char vm_dir[PATH_MAX], saved_dirs[PATH_MAX], name[64];
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
	sandbox_saved_dir(set, NULL, saved_dirs);
	if (mkdir(saved_dirs, 0700) < 0 && errno != EEXIST)
		return err_errno(e, ERR_INTERNAL, errno, "%s", saved_dirs);
	if (name_of_state(set, name, e) < 0 || make_memory_dir(set, name, e) < 0)
		return -1;
	if (vm_cgroup_open(set->cgroups, name, e) < 0)
		return -1;
	if (baked_sweep(set->state_dir, e) < 0)
		return -1;
	set->host.rootfs_dir = set->rootfs_dir;
	set->host.agent_path = set->agent_path;
	return 0;
}

struct sandbox_set *sandbox_set_create(struct ev_loop *loop, const struct sandbox_set_config *c,
                                       struct err *e)
{
	struct sandbox_set *set = calloc(1, sizeof(*set));
	if (set == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	set->loop = loop;
	TAILQ_INIT(&set->all);
	TAILQ_INIT(&set->warm);
	set->warm_pool = c->warm_pool;
	TAILQ_INIT(&set->snapshots);
	ev_timer_init(&set->purge, on_purge, 0., PURGE_EVERY_S);
	ev_timer_init(&set->sweep, on_sweep, SWEEP_EVERY_S, SWEEP_EVERY_S);
	set->purge.data = set->sweep.data = set;
	set->registry = registry_open(c->state_dir, e);
	set->events = event_log_create();
	if (set->events == NULL)
		err_set(e, ERR_CAPACITY, "out of memory");
	if (set->events == NULL || set->registry == NULL ||
	    vm_uids_open(&set->uids, c->vm_uids, e) < 0 || make_paths(set, c, e) < 0 ||
	    snapshot_load_all(set, e) < 0) {
		sandbox_set_destroy(set);
		return NULL;
	}
	ev_timer_start(loop, &set->purge);
	ev_timer_start(loop, &set->sweep);
	return set;
}

void sandbox_set_drain(struct sandbox_set *set)
{
	set->warm_pool = 0;
	sandbox_warm_drop_all(set);
}

void sandbox_set_destroy(struct sandbox_set *set)
{
	struct sandbox *s;
	if (set == NULL)
		return;
	while ((s = TAILQ_FIRST(&set->all)) != NULL)
		sandbox_free(s);
	sandbox_warm_drop_all(set);
	snapshot_forget_all(set);
	kvm_trial_cancel(set->kvm_trial);
	rmdir(set->memory_dir); /* unless a VM lives on */
	vm_cgroup_close(set->cgroups);
	ev_timer_stop(set->loop, &set->purge);
	ev_timer_stop(set->loop, &set->sweep);
	registry_close(set->registry);
	event_log_destroy(set->events);
	free(set->state_dir);
	free(set->rootfs_dir);
	free(set->agent_path);
	free(set->node);
	free(set->launcher);
	free(set);
}

void sandbox_set_on_create(struct sandbox_set *set,
                           int (*admit)(const struct sandbox_spec *spec, void *arg,
                                        struct err *e),
                           void *arg)
{
	set->admit = admit;
	set->admit_arg = arg;
}

json_t *sandbox_set_templates(struct sandbox_set *set)
{
	return template_list(set->rootfs_dir);
}

struct event_log *sandbox_set_events(struct sandbox_set *set)
{
	return set->events;
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
	if (sandbox_find_ending(set, id, workspace) != NULL ||
	    sandbox_was_deleted(set, id, workspace))
		err_set(e, ERR_SANDBOX_GONE, "the sandbox was deleted, or has expired");
	else
		err_set(e, ERR_SANDBOX_NOT_FOUND, "there is no such sandbox");
	return NULL;
}

struct sandbox *sandbox_find_ending(struct sandbox_set *set, const char *id,
                                    const char *workspace)
{
	struct sandbox *s;
	TAILQ_FOREACH (s, &set->all, entry)
		if (s->deleted && !s->gone && strcmp(s->id, id) == 0 &&
		    (workspace == NULL || strcmp(s->spec.workspace, workspace) == 0))
			break;
	return s;
}

bool sandbox_was_deleted(struct sandbox_set *set, const char *id, const char *workspace)
{
	return registry_was_deleted(set->registry, id, workspace);
}

struct sandbox *sandbox_find_key(struct sandbox_set *set, const char *workspace,
                                 const char *key, struct err *e)
{
	struct sandbox *s;
	int64_t since = clock_wall_ms() - IDEMPOTENCY_S * 1000ll;
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
		err_set(e, ERR_SANDBOX_GONE,
		        "the sandbox of this Idempotency-Key was deleted, or has expired");
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

/* ---- names ---- */

/* A ULID (github.com/ulid/spec): 48 bits of time, 80 of chance, in Crockford's base 32. */
static int make_ulid(char out[ULID_LEN + 1])
{
	static const char digits[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
	uint8_t chance[10];
	uint64_t ms = (uint64_t)clock_wall_ms();
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

int sandbox_set_new_id(const struct sandbox_set *set, const char *kind, char *out, size_t room,
                       struct err *e)
{
	char ulid[ULID_LEN + 1];
	if (make_ulid(ulid) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "getrandom");
	snprintf(out, room, "%s-%s-%s", kind, set->node, ulid);
	return 0;
}

static const char *ulid_of(const char *id)
{
	size_t len = strlen(id);
	return len > ULID_LEN ? id + len - ULID_LEN : id;
}

/* A VM's directory is short: sockets in it must fit sun_path. */
const char *sandbox_set_vm_dir(const struct sandbox_set *set, const char *id, char *out,
                               size_t room)
{
	snprintf(out, room, "%s/vm/%s", set->state_dir, ulid_of(id));
	return out;
}

const char *sandbox_set_cgroup(const struct sandbox_set *set, const char *id,
                               char out[PATH_MAX])
{
	out[0] = '\0';
	if (set->cgroups[0] != '\0')
		snprintf(out, PATH_MAX, "%.*s/%s", PATH_MAX / 2, set->cgroups, ulid_of(id));
	return out;
}

const char *sandbox_set_memory(const struct sandbox_set *set, const char *id, char *out,
                               size_t room)
{
	snprintf(out, room, "%s/%s", set->memory_dir, ulid_of(id));
	return out;
}
