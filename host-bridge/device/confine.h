/*
 * What the vsock device gives up before it touches a guest's memory: privileges, the file
 * system, most system calls, and unbounded resources. Called once by vsock_device.
 */
#ifndef SANDGATE_CONFINE_H
#define SANDGATE_CONFINE_H

#include <sys/types.h>

#include "proto/err.h"

/* As root: change the root to the working directory and become uid:gid; otherwise they
 * are ignored. Then, for good: no new privileges, no core file or tracer (both would hold
 * the guest's memory), bounded descriptors and memory, and a list of allowed system calls
 * (another one kills the process). Log descriptors and open sockets go on working. */
int confine_self(uid_t uid, gid_t gid, struct err *e);

#endif
