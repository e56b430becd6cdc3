/*
 * The end of directories: a VM's, a snapshot's, what a sandbox was saved to. What a bridge that
 * died at the wrong moment left of them, and of processes that run in them, goes at the start
 * of the next; what cannot be removed at the time, since there is no descriptor to look into it
 * with, goes later.
 */
#ifndef SANDGATE_VM_SWEEP_H
#define SANDGATE_VM_SWEEP_H

#include <stdbool.h>

#include "proto/err.h"

/* Kill and remove everything in `dir` whose name `is_known` denies. -1 with ERR_CAPACITY when
 * it cannot be looked through now. */
int vm_sweep(const char *dir, bool (*is_known)(const char *path, void *arg), void *arg,
             struct err *e);

/* Remove a directory and all in it; what cannot be is logged. -1 with errno when something is
 * left. */
int vm_remove_dir(const char *path);
/* The same, but what is left gets out of the way: under another name beside it, where
 * vm_sweep_discarded finds it. */
void vm_discard_dir(const char *path);
/* Remove what in `dir` was discarded and is there still. */
void vm_sweep_discarded(const char *dir);

#endif
