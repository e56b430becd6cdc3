/*
 * Being PID 1 of a microVM: mounts, devices, modules, root, hostname, loopback, orphans,
 * power off. main.c calls init_setup() before anything else when getpid() is 1, and hands
 * orphans to init_reap(). Nothing here knows of execs but through `is_ours`.
 */
#ifndef SANDGATE_INIT_H
#define SANDGATE_INIT_H

#include <ev.h>
#include <stdbool.h>
#include <sys/types.h>

#include "proto/err.h"

/* Mount proc, sysfs, devtmpfs, devpts, shm, run, tmp, cgroup2 (nsdelegate); give descriptors
 * 0 to 2 a meaning; load the modules that /etc/sandgate/modules lists (a path and parameters
 * a line, in order); make the root that the kernel's command line names (init_root.c); set the
 * hostname of /etc/hostname; bring lo up. A failed step is logged and the rest goes on: an init
 * that stops is a guest that nobody can ask why. But without its root the machine goes off. */
void init_setup(void);
/* What is under the root that we have made: the disk that is written to, and the one with the
 * image; 0: none. */
const dev_t *init_disks(void);

/* Reap children that are not execs: watches SIGCHLD on `loop`, peeks with WNOWAIT and reaps
 * only what `is_ours(pid)` denies, since an exec's leader is waited for through its pidfd.
 * `is_ours` must also own up to spawns on their way (spawner_owns). Makes a daemon a
 * subreaper. At most once a process. */
int init_reap_start(struct ev_loop *loop, bool (*is_ours)(pid_t pid, void *arg), void *arg,
                    struct err *e);

/* Reap at once what there is, not a moment later. Harmless when not started. */
void init_reap_now(void);

/* Stop reaping: before the loop is destroyed. Fine when it was never started. */
void init_reap_stop(struct ev_loop *loop);

/* Sync, kill what is left, unmount or remount read-only, power off (reboot(2)). As PID 1
 * this never returns; as a daemon it does nothing. */
void init_power_off(void);

#endif
