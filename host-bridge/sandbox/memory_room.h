/*
 * Whether a file system in memory has room for one more guest's RAM. The files there are sparse
 * and grow as guests write; one that cannot grow kills its guest, whichever that is. So what
 * the others were promised counts as taken. sandbox_create.c asks before it starts a VM.
 */
#ifndef SANDGATE_MEMORY_ROOM_H
#define SANDGATE_MEMORY_ROOM_H

#include "proto/err.h"

/* For a file of `mib` in `dir`, which holds nothing else. ERR_STORAGE_FULL, or ERR_CAPACITY
 * when that cannot be found out now. */
int memory_room_check(const char *dir, unsigned mib, struct err *e);

#endif
