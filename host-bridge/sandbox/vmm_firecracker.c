/* What Firecracker is asked through its API. It sees files under names in the directory that it
 * runs in, its room, which may be the root of a jail: what it is to read is shown there first
 * and hidden again once it is read; what it writes is moved away. A guest's memory is mapped
 * privately from its snapshot's file: pages are shared, and the file must never change. */
#include "host-bridge/sandbox/vmm_firecracker.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host-bridge/sandbox/sparse.h"
#include "host-bridge/sandbox/task.h"
#include "host-bridge/sandbox/vmm.h"
#include "host-bridge/sandbox/vmm_http.h"
#include "proto/limits.h"

#define GUEST_CID 3 /* of no meaning: each VM's vsock is its own */
#define BOOT_ARGUMENTS                                                        \
	"console=ttyS0 quiet reboot=k panic=-1 pci=off psi=0 init_on_alloc=0" \
	" random.trust_cpu=on cryptomgr.notests i8042.noaux i8042.nomux i8042.dumbkbd"

/* Names in the room. Saved ones are others than those shown: a snapshot is not written over. */
#define KERNEL "kernel"
#define INITRD "initrd"
#define STATE "state"
#define MEMORY "memory"
#define SAVED_STATE "saved-state"
#define SAVED_MEMORY "saved-memory"

#define VERSION(major, minor, patch) ((major)*1000000u + (minor)*1000u + (patch))

struct vmm_call;

/* Begin something, after whose end the next one is due: 1. Nothing to do: 0. -1 with `e`. */
typedef int vmm_step(struct vmm_call *c, struct err *e);

struct vmm_call {
	struct ev_loop *loop;
	char room[PATH_MAX], snapshot[PATH_MAX];
	bool jailed;
	struct vmm_boot boot;
	vmm_step *const *next; /* NULL at the end */
	struct vmm_http *http; /* one of them at most is under way */
	struct task *task;
	unsigned version;
	bool paused;
	void (*on_done)(const struct err *e, void *arg);
	void *arg;
};

static void cancel(struct vmm_call *c)
{
	if (c == NULL)
		return;
	vmm_http_cancel(c->http);
	task_cancel(c->task);
	free(c);
}

static void advance(struct vmm_call *c, const struct err *failure)
{
	struct err e = {0};
	int rc = 0;
	while (failure == NULL && rc == 0 && *c->next != NULL)
		rc = (*c->next++)(c, &e);
	if (rc > 0)
		return;
	void (*on_done)(const struct err *, void *) = c->on_done;
	void *arg = c->arg;
	free(c);
	on_done(rc < 0 ? &e : failure, arg);
}

/* ---- asking ---- */

static void on_answer(const json_t *answer, const struct err *e, void *arg)
{
	struct vmm_call *c = arg;
	unsigned major, minor, patch;
	const char *version = json_string_value(json_object_get(answer, "firecracker_version"));
	const char *state = json_string_value(json_object_get(answer, "state"));
	c->http = NULL;
	if (version != NULL && sscanf(version, "%u.%u.%u", &major, &minor, &patch) == 3)
		c->version = VERSION(major, minor, patch);
	c->paused = state != NULL && strcmp(state, "Paused") == 0;
	advance(c, e);
}

static int ask(struct vmm_call *c, struct vmm_http_script *s, double seconds, struct err *e)
{
	char api[PATH_MAX + sizeof(FIRECRACKER_API)];
	snprintf(api, sizeof(api), "%s/" FIRECRACKER_API, c->room);
	c->http = vmm_http_run(c->loop, api, s, seconds, on_answer, c, e);
	return c->http != NULL ? 1 : -1;
}

/* The first thing to ask of one that has just started: an answer says that its room is there.
 */
static int ask_version(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	vmm_http_add(&s, "GET", "/version", NULL);
	return ask(c, &s, VMM_CALL_S, e);
}

/* It answers when it has written what an earlier bridge asked it to. */
static int ask_state(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	vmm_http_add(&s, "GET", "/", NULL);
	return ask(c, &s, VMM_SAVE_S, e);
}

static int ask_boot(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	vmm_http_add(&s, "PUT", "/boot-source", "{s:s, s:s, s:s}", "kernel_image_path", KERNEL,
	             "initrd_path", INITRD, "boot_args", BOOT_ARGUMENTS);
	vmm_http_add(&s, "PUT", "/machine-config", "{s:i, s:i}", "vcpu_count",
	             (int)c->boot.vcpus, "mem_size_mib", (int)c->boot.memory_mib);
	vmm_http_add(&s, "PUT", "/vsock", "{s:i, s:s}", "guest_cid", GUEST_CID, "uds_path",
	             FIRECRACKER_VSOCK);
	vmm_http_add(&s, "PUT", "/entropy", "{}");
	vmm_http_add(&s, "PUT", "/actions", "{s:s}", "action_type", "InstanceStart");
	return ask(c, &s, VMM_CALL_S, e);
}

/* The socket's recorded path is relative to the room, so that older versions, which refuse to
 * be told another, find it as well. */
static int ask_load(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	json_t *vsock = NULL;
	if (c->version >= VERSION(1, 16, 0))
		vsock = json_pack("{s:s}", "uds_path", FIRECRACKER_VSOCK);
	vmm_http_add(&s, "PUT", "/snapshot/load", "{s:s, s:{s:s, s:s}, s:b, s:o*}",
	             "snapshot_path", STATE, "mem_backend", "backend_type", "File",
	             "backend_path", MEMORY, "resume_vm", 1, "vsock_override", vsock);
	return ask(c, &s, VMM_CALL_S, e);
}

/* A guest restored by 1.16.0 is deaf for ever: none is saved for it. */
static int ask_save(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	if (c->version == VERSION(1, 16, 0))
		return err_set(e, ERR_LIMIT_UNSUPPORTED,
		               "Firecracker 1.16.0 cannot restore snapshots: use 1.16.1");
	vmm_http_add(&s, "PATCH", "/vm", "{s:s}", "state", "Paused");
	vmm_http_add(&s, "PUT", "/snapshot/create", "{s:s, s:s, s:s}", "snapshot_type", "Full",
	             "snapshot_path", SAVED_STATE, "mem_file_path", SAVED_MEMORY);
	return ask(c, &s, VMM_SAVE_S, e);
}

/* 1.16.0 and 1.16.1 lose all connections to come when they are merely paused and resumed. */
static int ask_pause(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	if (c->version == VERSION(1, 16, 0) || c->version == VERSION(1, 16, 1))
		return err_set(e, ERR_LIMIT_UNSUPPORTED,
		               "Firecracker 1.16.0 and 1.16.1 do not survive a pause");
	vmm_http_add(&s, "PATCH", "/vm", "{s:s}", "state", "Paused");
	return ask(c, &s, VMM_CALL_S, e);
}

static int ask_resume(struct vmm_call *c, struct err *e)
{
	struct vmm_http_script s = {0};
	vmm_http_add(&s, "PATCH", "/vm", "{s:s}", "state", "Resumed");
	return ask(c, &s, VMM_CALL_S, e);
}

/* To resume one that runs is no more harmless than to pause it. */
static int ask_resume_if_paused(struct vmm_call *c, struct err *e)
{
	return c->paused ? ask_resume(c, e) : 0;
}

/* ---- files: in a child of the bridge, they may be large ---- */

static void in_room(const struct vmm_call *c, const char *name, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%.*s/%s", PATH_MAX - 32, c->room, name);
}

/* Under that name it sees `path`, which it must not be able to change. Into a jail a link shows
 * what all may read, a copy the rest. The guest has not run yet, so the room is as it was
 * made. */
static int show(const struct vmm_call *c, const char *path, const char *name, struct err *e)
{
	char at[PATH_MAX];
	struct stat st;
	in_room(c, name, at);
	if (!c->jailed && symlink(path, at) == 0)
		return 0;
	if (stat(path, &st) < 0)
		return err_errno(e, ERR_LAUNCHER_FAILED, errno, "%s", name);
	if ((st.st_mode & S_IROTH) && link(path, at) == 0)
		return 0;
	if (sparse_copy(path, at, e) < 0)
		return -1;
	if (chmod(at, 0444) < 0)
		return err_errno(e, ERR_LAUNCHER_FAILED, errno, "%s", name);
	return 0;
}

static int show_boot_files(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	int rc = show(c, c->boot.kernel, KERNEL, e);
	return rc == 0 ? show(c, c->boot.initrd, INITRD, e) : rc;
}

static int show_snapshot_files(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%.*s/" SNAPSHOT_STATE, PATH_MAX - 32, c->snapshot);
	if (show(c, path, STATE, e) < 0)
		return -1;
	snprintf(path, sizeof(path), "%.*s/" SNAPSHOT_MEMORY, PATH_MAX - 32, c->snapshot);
	return show(c, path, MEMORY, e);
}

/* From its room, where a VMM that was taken over may have put anything. From here on nobody
 * changes it. */
static int move(const struct vmm_call *c, const char *name, const char *as, struct err *e)
{
	char from[PATH_MAX], to[PATH_MAX];
	struct stat st;
	in_room(c, name, from);
	snprintf(to, sizeof(to), "%.*s/%s", PATH_MAX - 32, c->snapshot, as);
	if (rename(from, to) < 0)
		return err_errno(e, ERR_LAUNCHER_FAILED, errno, "a snapshot's %s", as);
	int fd = open(to, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return err_errno(e, ERR_LAUNCHER_FAILED, errno, "a snapshot's %s", as);
	int rc = 0;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
		rc = err_set(e, ERR_LAUNCHER_FAILED, "a snapshot's %s is no file", as);
	else if (fchown(fd, geteuid(), getegid()) < 0 || fchmod(fd, 0444) < 0)
		rc = err_errno(e, ERR_LAUNCHER_FAILED, errno, "a snapshot's %s", as);
	close(fd);
	return rc;
}

static int move_saved_files(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	int rc = move(c, SAVED_STATE, SNAPSHOT_STATE, e);
	return rc == 0 ? move(c, SAVED_MEMORY, SNAPSHOT_MEMORY, e) : rc;
}

static void on_task(const struct err *e, void *arg)
{
	struct vmm_call *c = arg;
	c->task = NULL;
	advance(c, e);
}

static int run_task(struct vmm_call *c, int (*work)(const void *input, struct err *e),
                    struct err *e)
{
	c->task = task_start(c->loop, work, c, on_task, c, e);
	return c->task != NULL ? 1 : -1;
}

static int show_boot(struct vmm_call *c, struct err *e)
{
	return run_task(c, show_boot_files, e);
}

static int show_snapshot(struct vmm_call *c, struct err *e)
{
	return run_task(c, show_snapshot_files, e);
}

static int move_saved(struct vmm_call *c, struct err *e)
{
	return run_task(c, move_saved_files, e);
}

/* What it has read, or wrote and nobody moved. */
static int hide(struct vmm_call *c, struct err *e)
{
	static const char *const names[] = {KERNEL, INITRD,      STATE,
	                                    MEMORY, SAVED_STATE, SAVED_MEMORY};
	char path[PATH_MAX];
	(void)e;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		in_room(c, names[i], path);
		unlink(path);
	}
	return 0;
}

/* ---- the calls ---- */

static struct vmm_call *begin(const struct vmm_target *t, const char *snapshot,
                              vmm_step *const *steps,
                              void (*on_done)(const struct err *e, void *arg), void *arg,
                              struct err *e)
{
	char socket[PATH_MAX];
	struct vmm_call *c = calloc(1, sizeof(*c));
	if (c == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	snprintf(socket, sizeof(socket), "%s", t->socket);
	snprintf(c->room, sizeof(c->room), "%s", dirname(socket));
	snprintf(c->snapshot, sizeof(c->snapshot), "%s", snapshot != NULL ? snapshot : "");
	c->jailed = strcmp(c->room, t->dir) != 0;
	c->loop = t->loop;
	c->boot = *t->boot;
	c->next = steps;
	c->on_done = on_done;
	c->arg = arg;
	if ((*c->next++)(c, e) > 0)
		return c;
	free(c);
	return NULL;
}

#define CALL(name, ...)                                                                \
	static struct vmm_call *name(const struct vmm_target *t, const char *snapshot, \
	                             void (*on_done)(const struct err *e, void *arg),  \
	                             void *arg, struct err *e)                         \
	{                                                                              \
		static vmm_step *const steps[] = {__VA_ARGS__, NULL};                  \
		return begin(t, snapshot, steps, on_done, arg, e);                     \
	}

CALL(boot, ask_version, show_boot, ask_boot, hide)
CALL(load, ask_version, show_snapshot, ask_load, hide)
CALL(save, ask_version, ask_save, move_saved)
CALL(go_on, ask_state, ask_resume_if_paused, hide)
CALL(stop, ask_version, ask_pause)
CALL(cont, ask_resume)

const struct vmm_ops vmm_firecracker = {
    .boot = boot,
    .load = load,
    .save = save,
    .go_on = go_on,
    .recover = go_on,
    .pause = stop,
    .resume = cont,
    .cancel = cancel,
};
