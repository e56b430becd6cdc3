/*
 * Calls of a VMM that is told through an HTTP API what to do, and that sees files under names
 * in the directory that it runs in, its room: what it is to read is shown there first and
 * hidden again once it is read, what it writes is moved away. A call is a list of steps. For
 * vmm_firecracker.c and vmm_cloud_hypervisor.c, whose steps these are made of; nobody else.
 */
#ifndef SANDGATE_VMM_ROOM_H
#define SANDGATE_VMM_ROOM_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#include "host-bridge/vm/vmm.h"
#include "host-bridge/vm/vmm_http.h"
#include "proto/err.h"

/* Begin something, after whose end the next one is due: 1. Nothing to do: 0. -1 with `e`. */
typedef int room_step(struct vmm_call *c, struct err *e);

/* What is the same for every call of a VMM. */
struct room_vmm {
	const char *api;          /* the name of its socket in the room */
	const char *const *names; /* what may lie in the room and is hidden; NULL ends */
	const char *version_path, *version_key; /* who tells its version, and where */
	const char *state_path;                 /* who tells its "state" */
	/* Files, in a child of the bridge, given the call: what it boots from, or what it
	 * loads, is shown in the room; what it has saved is moved into the snapshot. */
	int (*show_boot)(const void *call, struct err *e);
	int (*show_snapshot)(const void *call, struct err *e);
	int (*move_saved)(const void *call, struct err *e);
	room_step *resume; /* for room_resume_if_paused */
};

struct vmm_call {
	const struct room_vmm *vmm;
	struct ev_loop *loop;
	char dir[PATH_MAX], room[PATH_MAX], snapshot[PATH_MAX]; /* the VM's directory first */
	bool jailed;                                            /* the room is the VMM's root */
	bool last;                                              /* to save: see vmm.h */
	struct vmm_boot boot;
	unsigned version; /* as ROOM_VERSION; 0: nobody has asked */
	bool paused;
	room_step *const *next; /* NULL at the end */
	struct vmm_http *http;  /* one of them at most is under way */
	struct task *task;
	void (*on_done)(const struct err *e, void *arg);
	void *arg;
};

#define ROOM_VERSION(major, minor, patch) ((major)*1000000u + (minor)*1000u + (patch))

/* A call of `steps`, in `room`, and its end; on_done as in vmm.h. */
struct vmm_call *room_begin(const struct room_vmm *vmm, const struct vmm_target *t,
                            const char *room, bool jailed, const char *snapshot,
                            room_step *const *steps,
                            void (*on_done)(const struct err *e, void *arg), void *arg,
                            struct err *e);
/* Define `name`, a vmm_begin, as the call of these steps by the file's own begin(). */
#define ROOM_CALL(name, ...)                                                           \
	static struct vmm_call *name(const struct vmm_target *t, const char *snapshot, \
	                             void (*on_done)(const struct err *e, void *arg),  \
	                             void *arg, struct err *e)                         \
	{                                                                              \
		static room_step *const steps[] = {__VA_ARGS__, NULL};                 \
		return begin(t, snapshot, steps, on_done, arg, e);                     \
	}
void room_cancel(struct vmm_call *c);

/* ---- what steps are made of: their results are a step's ---- */

int room_ask(struct vmm_call *c, struct vmm_http_script *s, double seconds, struct err *e);
/* The first thing to ask of one that has just started: an answer says that its room is there,
 * and c->version is known. */
int room_ask_version(struct vmm_call *c, struct err *e);
/* For c->paused. It answers when it has written what an earlier bridge asked it to. */
int room_ask_state(struct vmm_call *c, struct err *e);
/* As its room_vmm says. */
int room_show_boot(struct vmm_call *c, struct err *e);
int room_show_snapshot(struct vmm_call *c, struct err *e);
int room_move_saved(struct vmm_call *c, struct err *e);
/* After room_ask_state: to resume one that runs is refused, or no more harmless than to pause
 * it. */
int room_resume_if_paused(struct vmm_call *c, struct err *e);
/* What it has read, or wrote and nobody moved. */
int room_hide(struct vmm_call *c, struct err *e);

/* ---- for what is run in a child; 0, or -1 with `e` ---- */

void room_path(const struct vmm_call *c, const char *name, char out[PATH_MAX]);
void room_saved(const struct vmm_call *c, const char *file, char out[PATH_MAX]);
/* Under that name it sees `path`, which it must not be able to change. Only before the guest
 * has run: the room is as it was made. */
int room_show(const struct vmm_call *c, const char *path, const char *name, struct err *e);
/* The same for a file of the snapshot. */
int room_show_saved(const struct vmm_call *c, const char *file, const char *name,
                    struct err *e);
/* Make what lies in the room under that name a file of the snapshot, which nobody changes from
 * here on. A VMM that was taken over may have put anything there. */
int room_move(const struct vmm_call *c, const char *name, const char *file, struct err *e);

/* The VM's own disk, when it has one: into the room, as it was made or with what the snapshot
 * holds; and into the snapshot. */
int room_take_disk(const struct vmm_call *c, struct err *e);
int room_save_disk(const struct vmm_call *c, struct err *e);
int room_load_disk(const struct vmm_call *c, struct err *e);

#endif
