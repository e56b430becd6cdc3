/*
 * What a bridge that died at the wrong moment left in the VMs' directory: directories that
 * nothing knows of, and processes that run in them. Called once, at start.
 */
#ifndef SANDGATE_VM_SWEEP_H
#define SANDGATE_VM_SWEEP_H

#include <stdbool.h>

/* Kill and remove everything in `dir` whose name `is_known` denies. */
void vm_sweep(const char *dir, bool (*is_known)(const char *path, void *arg), void *arg);

/* Remove a directory and all in it, and what cannot be is logged. */
void vm_remove_dir(const char *path);

#endif
