/*
 * Copies of guests' memory and disks: holes stay holes and pages of zeroes become some. Blocks:
 * called in a task (task.h). Neither end may be a symbolic link: a VMM that was taken over can
 * put one where its disk was.
 */
#ifndef SANDGATE_SPARSE_H
#define SANDGATE_SPARSE_H

#include "proto/err.h"

/* Fill `to` with the content of `from`: a reflink where the file system can, else the data
 * alone. `to` is made with mode 0600, or is there and holds nothing but zeroes; after a failure
 * it is gone. ERR_STORAGE_FULL, ERR_LAUNCHER_FAILED when it is there with another size,
 * ERR_INTERNAL. */
int sparse_copy(const char *from, const char *to, struct err *e);

#endif
