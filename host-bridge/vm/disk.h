/*
 * A sandbox's own disk: a sparse file of the size that it was promised with an empty ext4 file
 * system on it, which takes room as the guest writes. vm.c makes it; what is under it in the
 * guest is the agent's doing (init_root.c).
 */
#ifndef SANDGATE_DISK_H
#define SANDGATE_DISK_H

#include <stdbool.h>
#include <sys/types.h>

#include "proto/err.h"

/* Make the file, empty, for `owner` when we are root. Quick. ERR_STORAGE_FULL,
 * ERR_LAUNCHER_FAILED. */
int disk_make(const char *path, unsigned mib, uid_t owner, struct err *e);
/* Put a file system on it. Blocks: called in a task. ERR_STORAGE_FULL, ERR_LAUNCHER_FAILED. */
int disk_format(const char *path, struct err *e);
/* What is on it to `to`, when its guest stands still: a copy; or, when that guest never goes on
 * (`last`), the file itself, which it keeps under its own name as well until it is gone.
 * Blocks: called in a task. ERR_STORAGE_FULL, ERR_LAUNCHER_FAILED, ERR_INTERNAL. */
int disk_save(const char *path, const char *to, bool last, struct err *e);

#endif
