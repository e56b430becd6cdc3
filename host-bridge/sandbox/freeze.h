/*
 * A guest's state to disk and back, with its agent told of it: Prepare, save, let the guest go
 * on, Resume; and Resume in a guest that was just restored. sandbox_freeze.c and
 * sandbox_operation.c decide when.
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
#include "host-bridge/vm/vm.h"
#include "proto/err.h"
#include "proto/sandgate.pb-c.h"

struct freeze;

struct freeze_target {
	struct ev_loop *loop;
	struct endpoint endpoint;
	struct vm *vm;
	uint64_t generation; /* the agent's, as last heard */
	bool stays;          /* saved, it is left as it is: its VM is about to be stopped */
};

struct freeze_result {
	struct err not_saved; /* code ERR_NONE: the snapshot is whole */
	struct err lost;      /* code ERR_NONE: the guest runs, its agent takes work */
	uint64_t generation;  /* the agent's now */
	unsigned failed;      /* steps of a Resume that could not be carried out: a bit each */
};

/* Whether a guest that was to be saved is to be given up. One whose agent is merely silent is
 * not: it may be slow, and goes on by itself then. */
bool freeze_is_loss(const struct freeze_result *r);

/* Save the guest to the empty directory `dir`, and let it go on. `on_done` once, never from
 * inside. NULL with `e`: nothing was begun. */
struct freeze *freeze_save(const struct freeze_target *t, const char *dir,
                           void (*on_done)(const struct freeze_result *r, void *arg), void *arg,
                           struct err *e);
/* Prepare alone: who saves the guest is somebody else, and freeze_renew is due. When it is not
 * prepared (`not_saved`), the agent is told to go on. `vm` may be NULL. */
struct freeze *freeze_prepare(const struct freeze_target *t,
                              void (*on_done)(const struct freeze_result *r, void *arg),
                              void *arg, struct err *e);
/* In a guest that was prepared or restored: entropy and clock, and for a clone names of its
 * own; its agent takes work then. `how` is read during this call; its generation and entropy
 * are filled in, and its wall clock when that is 0. */
struct freeze *freeze_renew(const struct freeze_target *t, const Sandgate__Resume *how,
                            void (*on_done)(const struct freeze_result *r, void *arg),
                            void *arg, struct err *e);
/* The name of the n-th step in `failed`; NULL past the last. */
const char *freeze_step(unsigned n);
/* on_done is not called. NULL is fine. */
void freeze_cancel(struct freeze *f);

#endif
