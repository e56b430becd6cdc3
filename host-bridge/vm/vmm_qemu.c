/* What QEMU is asked through its monitor. The vsock device cannot be saved: it is unplugged
 * before the state is written and plugged in again when the guest goes on, and a guest is
 * loaded without it. The guest's memory is a file that is no part of the state. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/steady.h"
#include "host-bridge/vm/disk.h"
#include "host-bridge/vm/qemu_arch.h"
#include "host-bridge/vm/qmp.h"
#include "host-bridge/vm/sparse.h"
#include "host-bridge/vm/task.h"
#include "host-bridge/vm/vmm.h"
#include "proto/limits.h"

#define RECOVER_PAUSE_S 0.1

struct vmm_call {
	struct vmm_target target;
	char monitor[PATH_MAX];
	char snapshot[PATH_MAX]; /* to load, or to save to */
	struct qmp *qmp;
	struct task *copy;
	struct err failure; /* the first */
	double until;       /* to recover by, in the loop's time */
	ev_timer again;     /* before the next */
	/* When neither a conversation nor a copy is under way: what is next. NULL: done. */
	void (*next)(struct vmm_call *c);
	void (*on_done)(const struct err *e, void *arg);
	void *arg;
};

static void on_again(struct ev_loop *loop, ev_timer *w, int revents);
static void on_recovered(const struct err *e, void *arg);

static void cancel(struct vmm_call *c)
{
	if (c == NULL)
		return;
	ev_timer_stop(c->target.loop, &c->again);
	qmp_cancel(c->qmp);
	task_cancel(c->copy);
	free(c);
}

static void advance(struct vmm_call *c)
{
	if (c->qmp != NULL || c->copy != NULL)
		return;
	void (*next)(struct vmm_call *) = c->next;
	if (next != NULL && c->failure.code == ERR_NONE) {
		c->next = NULL;
		next(c);
		return;
	}
	void (*on_done)(const struct err *, void *) = c->on_done;
	void *arg = c->arg;
	struct err failure = c->failure;
	free(c);
	on_done(failure.code != ERR_NONE ? &failure : NULL, arg);
}

static void note(struct vmm_call *c, const struct err *e)
{
	if (e != NULL && c->failure.code == ERR_NONE)
		c->failure = *e;
}

static void on_script(const struct err *e, void *arg)
{
	struct vmm_call *c = arg;
	c->qmp = NULL;
	note(c, e);
	advance(c);
}

static void on_copied(const struct err *e, void *arg)
{
	struct vmm_call *c = arg;
	c->copy = NULL;
	note(c, e);
	advance(c);
}

/* ---- the parts of scripts ---- */

static void add_settings(struct qmp_script *s)
{
	qmp_add(s, "migrate-set-capabilities", "{s:[{s:s, s:b}, {s:s, s:b}]}", "capabilities",
	        "capability", "x-ignore-shared", "state", 1, "capability", "events", "state",
	        1);
}

/* QEMU gets the file as a descriptor: from where it is locked up it sees no snapshots. */
static int add_file(struct qmp_script *s, const char *dir, int flags, struct err *e)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/" SNAPSHOT_STATE, dir);
	int fd = open(path, flags | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_errno(e, err_of_errno(errno, ERR_LAUNCHER_FAILED), errno,
		                 "a snapshot's state");
	qmp_add(s, "getfd", "{s:s}", "fdname", "state")->fd = fd;
	return 0;
}

static void add_plug(struct qmp_script *s)
{
	qmp_add(s, "chardev-add", "{s:s, s:{s:s, s:{s:b, s:{s:s, s:{s:s}}}}}", "id", "vsock",
	        "backend", "type", "socket", "data", "server", 0, "addr", "type", "unix",
	        "data", "path", DEVICE_SOCKET);
	qmp_add(s, "device_add", "{s:s, s:s, s:s, s:s}", "driver", QEMU_VSOCK, "id", "vsock0",
	        "chardev", "vsock", "bus", "port0");
}

static void add_unplug(struct qmp_script *s)
{
	struct qmp_step *step = qmp_add(s, "device_del", "{s:s}", "id", "vsock0");
	step->event = "DEVICE_DELETED";
	step->device = "vsock0";
	qmp_add(s, "chardev-remove", "{s:s}", "id", "vsock");
}

static int run(struct vmm_call *c, struct qmp_script *s, struct err *e)
{
	c->qmp = qmp_run(c->target.loop, c->monitor, s, VMM_CALL_S, on_script, c, e);
	return c->qmp != NULL ? 0 : -1;
}

static void run_or_note(struct vmm_call *c, struct qmp_script *s)
{
	if (run(c, s, &c->failure) < 0)
		advance(c);
}

static void file_in(const char *dir, const char *name, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%.*s/%s", PATH_MAX - 64, dir, name);
}

static int copy_in(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	char saved[PATH_MAX], disk[PATH_MAX];
	file_in(c->snapshot, SNAPSHOT_MEMORY, saved);
	if (sparse_copy(saved, c->target.memory, e) < 0)
		return -1;
	file_in(c->snapshot, DISK_FILE, saved);
	file_in(c->target.dir, DISK_FILE, disk);
	return c->target.boot->disk_mib > 0 ? sparse_copy(saved, disk, e) : 0;
}

static int copy_out(const void *input, struct err *e)
{
	const struct vmm_call *c = input;
	char saved[PATH_MAX], disk[PATH_MAX];
	file_in(c->snapshot, SNAPSHOT_MEMORY, saved);
	if (sparse_copy(c->target.memory, saved, e) < 0)
		return -1;
	file_in(c->snapshot, DISK_FILE, saved);
	file_in(c->target.dir, DISK_FILE, disk);
	return c->target.boot->disk_mib > 0 ? disk_save(disk, saved, c->target.last, e) : 0;
}

static int start_copy(struct vmm_call *c, int (*copy)(const void *call, struct err *e),
                      struct err *e)
{
	c->copy = task_start(c->target.loop, copy, c, on_copied, c, e);
	return c->copy != NULL ? 0 : -1;
}

static struct vmm_call *create(const struct vmm_target *t, const char *snapshot,
                               void (*on_done)(const struct err *e, void *arg), void *arg,
                               struct err *e)
{
	struct vmm_call *c = calloc(1, sizeof(*c));
	if (c == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	c->target = *t;
	c->on_done = on_done;
	c->arg = arg;
	ev_timer_init(&c->again, on_again, 0., 0.);
	c->again.data = c;
	snprintf(c->snapshot, sizeof(c->snapshot), "%s", snapshot != NULL ? snapshot : "");
	snprintf(c->monitor, sizeof(c->monitor), "%s/" QEMU_MONITOR, t->dir);
	return c;
}

/* ---- load ---- */

static void load_state(struct vmm_call *c)
{
	struct qmp_script s = {0};
	if (add_file(&s, c->snapshot, O_RDONLY, &c->failure) < 0) {
		advance(c);
		return;
	}
	qmp_add(&s, "migrate-incoming", "{s:s}", "uri", "fd:state")->event = "MIGRATION";
	add_plug(&s);
	qmp_add(&s, "cont", NULL);
	run_or_note(c, &s);
}

/* While QEMU starts, memory is copied. It must be there before the state is loaded: disks look
 * into their rings. */
static struct vmm_call *load(const struct vmm_target *t, const char *snapshot,
                             void (*on_done)(const struct err *e, void *arg), void *arg,
                             struct err *e)
{
	struct qmp_script s = {0};
	struct vmm_call *c = create(t, snapshot, on_done, arg, e);
	if (c == NULL)
		return NULL;
	add_settings(&s);
	c->next = load_state;
	if (run(c, &s, e) < 0 || start_copy(c, copy_in, e) < 0) {
		cancel(c);
		return NULL;
	}
	return c;
}

/* ---- save ---- */

static void save_memory(struct vmm_call *c)
{
	if (start_copy(c, copy_out, &c->failure) < 0)
		advance(c);
}

static struct vmm_call *save(const struct vmm_target *t, const char *snapshot,
                             void (*on_done)(const struct err *e, void *arg), void *arg,
                             struct err *e)
{
	struct qmp_script s = {0};
	struct vmm_call *c = create(t, snapshot, on_done, arg, e);
	if (c == NULL)
		return NULL;
	add_unplug(&s);
	qmp_add(&s, "stop", NULL);
	add_settings(&s);
	qmp_add(&s, "migrate-set-parameters", "{s:I}", "max-bandwidth", SAVE_BANDWIDTH);
	if (add_file(&s, c->snapshot, O_RDWR | O_CREAT | O_EXCL, e) < 0) {
		qmp_script_free(&s);
		free(c);
		return NULL;
	}
	qmp_add(&s, "migrate", "{s:s}", "uri", "fd:state")->event = "MIGRATION";
	c->next = save_memory;
	if (run(c, &s, e) < 0) {
		cancel(c);
		return NULL;
	}
	return c;
}

/* ---- pause and resume ---- */

static struct vmm_call *run_alone(const struct vmm_target *t, struct qmp_script *s,
                                  void (*on_done)(const struct err *e, void *arg), void *arg,
                                  struct err *e)
{
	struct vmm_call *c = create(t, NULL, on_done, arg, e);
	if (c == NULL)
		qmp_script_free(s);
	if (c != NULL && run(c, s, e) == 0)
		return c;
	cancel(c);
	return NULL;
}

static struct vmm_call *go_on(const struct vmm_target *t, const char *snapshot,
                              void (*on_done)(const struct err *e, void *arg), void *arg,
                              struct err *e)
{
	struct qmp_script s = {0};
	(void)snapshot;
	add_plug(&s);
	for (unsigned i = 0; i < s.count; i++)
		s.steps[i].may_fail = true; /* saving has failed before the unplugging */
	qmp_add(&s, "cont", NULL);
	return run_alone(t, &s, on_done, arg, e);
}

/* Wherever that was cut off: it may be writing, or unplugging, or have done either. A guest
 * that runs lets go of the device; then all is as after a save. QEMU needs some moments to be
 * rid of a device that it says it has deleted. */
static void recover_try(struct vmm_call *c)
{
	struct qmp_script s = {0};
	qmp_add(&s, "migrate_cancel", NULL);
	qmp_add(&s, "cont", NULL);
	add_unplug(&s);
	for (unsigned i = 0; i < s.count; i++)
		s.steps[i].may_fail = true;
	add_plug(&s);
	c->qmp =
	    qmp_run(c->target.loop, c->monitor, &s, VMM_CALL_S, on_recovered, c, &c->failure);
	if (c->qmp == NULL)
		advance(c);
}

static void on_again(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	recover_try(w->data);
}

static void on_recovered(const struct err *e, void *arg)
{
	struct vmm_call *c = arg;
	c->qmp = NULL;
	if (e != NULL && steady_now() < c->until) {
		ev_timer_set(&c->again, RECOVER_PAUSE_S, 0.);
		ev_timer_start(c->target.loop, &c->again);
		return;
	}
	note(c, e);
	advance(c);
}

static struct vmm_call *recover(const struct vmm_target *t, const char *snapshot,
                                void (*on_done)(const struct err *e, void *arg), void *arg,
                                struct err *e)
{
	struct vmm_call *c = create(t, NULL, on_done, arg, e);
	(void)snapshot;
	if (c == NULL)
		return NULL;
	c->until = steady_now() + VMM_CALL_S;
	ev_timer_set(&c->again, 0., 0.); /* on_done never comes from inside */
	ev_timer_start(t->loop, &c->again);
	return c;
}

static struct vmm_call *stop(const struct vmm_target *t, const char *snapshot,
                             void (*on_done)(const struct err *e, void *arg), void *arg,
                             struct err *e)
{
	struct qmp_script s = {0};
	(void)snapshot;
	qmp_add(&s, "stop", NULL);
	return run_alone(t, &s, on_done, arg, e);
}

static struct vmm_call *cont(const struct vmm_target *t, const char *snapshot,
                             void (*on_done)(const struct err *e, void *arg), void *arg,
                             struct err *e)
{
	struct qmp_script s = {0};
	(void)snapshot;
	qmp_add(&s, "cont", NULL);
	return run_alone(t, &s, on_done, arg, e);
}

const struct vmm_ops vmm_qemu = {
    .load = load,
    .save = save,
    .go_on = go_on,
    .recover = recover,
    .pause = stop,
    .resume = cont,
    .cancel = cancel,
};
