#include "host-bridge/vm/vmm_room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host-bridge/vm/disk.h"
#include "host-bridge/vm/sparse.h"
#include "host-bridge/vm/task.h"
#include "proto/limits.h"

struct vmm_call *room_begin(const struct room_vmm *vmm, const struct vmm_target *t,
                            const char *room, bool jailed, const char *snapshot,
                            room_step *const *steps,
                            void (*on_done)(const struct err *e, void *arg), void *arg,
                            struct err *e)
{
	struct vmm_call *c = calloc(1, sizeof(*c));
	if (c == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	snprintf(c->dir, sizeof(c->dir), "%s", t->dir);
	snprintf(c->room, sizeof(c->room), "%s", room);
	snprintf(c->snapshot, sizeof(c->snapshot), "%s", snapshot != NULL ? snapshot : "");
	c->vmm = vmm;
	c->jailed = jailed;
	c->loop = t->loop;
	c->boot = *t->boot;
	c->last = t->last;
	c->next = steps;
	c->on_done = on_done;
	c->arg = arg;
	if ((*c->next++)(c, e) > 0)
		return c;
	free(c);
	return NULL;
}

void room_cancel(struct vmm_call *c)
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

static void take_answer(struct vmm_call *c, const json_t *answer)
{
	unsigned major, minor, patch;
	const char *version = json_string_value(json_object_get(answer, c->vmm->version_key));
	const char *state = json_string_value(json_object_get(answer, "state"));
	if (version != NULL && sscanf(version, "%u.%u.%u", &major, &minor, &patch) == 3)
		c->version = ROOM_VERSION(major, minor, patch);
	c->paused = state != NULL && strcmp(state, "Paused") == 0;
}

static void on_answer(const json_t *answer, const struct err *e, void *arg)
{
	struct vmm_call *c = arg;
	c->http = NULL;
	if (answer != NULL)
		take_answer(c, answer);
	advance(c, e);
}

int room_ask(struct vmm_call *c, struct vmm_http_script *s, double seconds, struct err *e)
{
	char api[PATH_MAX];
	room_path(c, c->vmm->api, api);
	c->http = vmm_http_run(c->loop, api, s, seconds, on_answer, c, e);
	return c->http != NULL ? 1 : -1;
}

static int ask_for(struct vmm_call *c, const char *path, double seconds, struct err *e)
{
	struct vmm_http_script s = {0};
	vmm_http_add(&s, "GET", path, NULL);
	return room_ask(c, &s, seconds, e);
}

int room_ask_version(struct vmm_call *c, struct err *e)
{
	return ask_for(c, c->vmm->version_path, VMM_CALL_S, e);
}

int room_ask_state(struct vmm_call *c, struct err *e)
{
	return ask_for(c, c->vmm->state_path, VMM_SAVE_S, e);
}

int room_resume_if_paused(struct vmm_call *c, struct err *e)
{
	return c->paused ? c->vmm->resume(c, e) : 0;
}

/* ---- files ---- */

void room_path(const struct vmm_call *c, const char *name, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%.*s/%s", PATH_MAX - 64, c->room, name);
}

void room_saved(const struct vmm_call *c, const char *file, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%.*s/%s", PATH_MAX - 64, c->snapshot, file);
}

static void on_task(const struct err *e, void *arg)
{
	struct vmm_call *c = arg;
	c->task = NULL;
	advance(c, e);
}

/* In a child of the bridge: files may be large. */
static int start_work(struct vmm_call *c, int (*work)(const void *call, struct err *e),
                      struct err *e)
{
	c->task = task_start(c->loop, work, c, on_task, c, e);
	return c->task != NULL ? 1 : -1;
}

int room_show_boot(struct vmm_call *c, struct err *e)
{
	return start_work(c, c->vmm->show_boot, e);
}

int room_show_snapshot(struct vmm_call *c, struct err *e)
{
	return start_work(c, c->vmm->show_snapshot, e);
}

int room_move_saved(struct vmm_call *c, struct err *e)
{
	return start_work(c, c->vmm->move_saved, e);
}

/* Into a jail a link shows what all may read, a copy the rest. */
int room_show(const struct vmm_call *c, const char *path, const char *name, struct err *e)
{
	char at[PATH_MAX];
	struct stat st;
	room_path(c, name, at);
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

int room_show_saved(const struct vmm_call *c, const char *file, const char *name, struct err *e)
{
	char path[PATH_MAX];
	room_saved(c, file, path);
	return room_show(c, path, name, e);
}

int room_move(const struct vmm_call *c, const char *name, const char *file, struct err *e)
{
	char from[PATH_MAX], to[PATH_MAX];
	struct stat st;
	room_path(c, name, from);
	room_saved(c, file, to);
	if (rename(from, to) < 0)
		return err_errno(e, ERR_LAUNCHER_FAILED, errno, "a snapshot's %s", file);
	int fd = open(to, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		                 "a snapshot's %s", file);
	int rc = 0;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
		rc = err_set(e, ERR_LAUNCHER_FAILED, "a snapshot's %s is no file", file);
	else if (fchown(fd, geteuid(), getegid()) < 0 || fchmod(fd, 0444) < 0)
		rc = err_errno(e, ERR_LAUNCHER_FAILED, errno, "a snapshot's %s", file);
	close(fd);
	return rc;
}

/* Where the room is the VM's directory it is there. */
int room_take_disk(const struct vmm_call *c, struct err *e)
{
	char from[PATH_MAX], to[PATH_MAX];
	if (c->boot.disk_mib == 0)
		return 0;
	snprintf(from, sizeof(from), "%.*s/" DISK_FILE, PATH_MAX - 64, c->dir);
	room_path(c, DISK_FILE, to);
	return rename(from, to) == 0
	           ? 0
	           : err_errno(e, ERR_LAUNCHER_FAILED, errno, "the VM's disk");
}

int room_save_disk(const struct vmm_call *c, struct err *e)
{
	char from[PATH_MAX], to[PATH_MAX];
	room_path(c, DISK_FILE, from);
	room_saved(c, DISK_FILE, to);
	return c->boot.disk_mib > 0 ? disk_save(from, to, c->last, e) : 0;
}

int room_load_disk(const struct vmm_call *c, struct err *e)
{
	char from[PATH_MAX], to[PATH_MAX];
	room_saved(c, DISK_FILE, from);
	room_path(c, DISK_FILE, to);
	if (room_take_disk(c, e) < 0)
		return -1;
	return c->boot.disk_mib > 0 ? sparse_copy(from, to, e) : 0;
}

int room_hide(struct vmm_call *c, struct err *e)
{
	char path[PATH_MAX];
	(void)e;
	for (const char *const *name = c->vmm->names; *name != NULL; name++) {
		room_path(c, *name, path);
		unlink(path);
	}
	return 0;
}
