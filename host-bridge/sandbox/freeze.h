/*
 * A guest's state to disk and back, with its agent told of it: Prepare, save, let the guest go
 * on, Resume; and Resume in a guest that was just restored. sandbox_freeze.c decides when.
 *
 *   PREPARING ─► SAVING ─► GOING_ON ─► RESUMING ─► done
 *
 * Whatever fails, what was stopped is let go on and the agent is told to resume.
 */
#ifndef SANDGATE_FREEZE_H
#define SANDGATE_FREEZE_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>

#include "host-bridge/link/transport.h"
#include "host-bridge/sandbox/vm.h"
#include "proto/err.h"
#include "proto/sandgate.pb-c.h"

struct freeze;

struct freeze_target {
	struct ev_loop *loop;
	struct endpoint endpoint;
	struct vm *vm;
	uint64_t generation; /* the agent's, as last heard */
	char hostname[64];   /* for clones */
	bool stays;          /* saved, it is left as it is: its VM is about to be stopped */
};

struct freeze_result {
	struct err not_saved; /* code ERR_NONE: the snapshot is whole */
	struct err lost;      /* code ERR_NONE: the guest runs, its agent takes work */
	uint64_t generation;  /* the agent's now */
};

/* Save the guest to the empty directory `dir`, and let it go on. `on_done` once, never from
 * inside. NULL with `e`: nothing was begun. */
struct freeze *freeze_save(const struct freeze_target *t, const char *dir,
                           void (*on_done)(const struct freeze_result *r, void *arg), void *arg,
                           struct err *e);
/* In a restored guest: entropy and clock, and for a clone names of its own; its agent takes
 * work then. */
struct freeze *freeze_renew(const struct freeze_target *t, Sandgate__ResumeRole role,
                            void (*on_done)(const struct freeze_result *r, void *arg),
                            void *arg, struct err *e);
/* on_done is not called. NULL is fine. */
void freeze_cancel(struct freeze *f);

#endif
