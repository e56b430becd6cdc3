/*
 * The cgroups of VMs (v2; cgroups(7)). The processes of a VM are born in a leaf of their own,
 * so that they are killed together, whatever they have started, and are held to bounds where
 * the controllers are there:
 *
 *   <base>/sandgate-bridge                  the bridge itself, see vm_cgroup_open
 *   <base>/sandgate-<device>-<inode>/<name>  a VM, called like its directory; the numbers are
 *                                           those of the state directory
 *
 * <base> is the cgroup that the bridge was started in. sandbox_set opens the tree, vm.c makes
 * and removes leaves. Without a tree VMs are killed by process group, and have no bounds.
 */
#ifndef SANDGATE_VM_CGROUP_H
#define SANDGATE_VM_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "proto/err.h"

/* What a VM was given; its bounds follow from that. 0 MiB: it has no bounds. */
struct vm_cgroup_size {
	unsigned memory_mib, vcpus;
};

/* ---- the tree: vm_cgroup_tree.c ---- */

/* Make the tree called `name`, and write its directory to `tree`; "" when VMs cannot have
 * cgroups here. The log says once what cannot be had, and why. Where controllers are to be
 * passed on to it, the bridge leaves its cgroup to the tree, unless others are in there.
 * ERR_CAPACITY when that cannot be told for want of descriptors. */
int vm_cgroup_open(char tree[PATH_MAX], const char *name, struct err *e);
/* Kill and remove every leaf that is not known: nobody owns it. ERR_CAPACITY likewise. */
int vm_cgroup_sweep(const char *tree, bool (*is_known)(const char *leaf, void *arg), void *arg,
                    struct err *e);
/* Remove the tree, unless VMs live on in it. */
void vm_cgroup_close(const char *tree);

/* ---- one leaf, by its path ---- */

int vm_cgroup_make(const char *leaf, const struct vm_cgroup_size *size, struct err *e);
/* Once more, for a VM that was found again: a bound goes when its controller is disabled, as a
 * restart of a systemd unit may do. ERR_CAPACITY. */
int vm_cgroup_bound(const char *leaf, const struct vm_cgroup_size *size, struct err *e);
/* SIGKILL to all in it and below. Nothing on kernels before 5.14. */
void vm_cgroup_kill(const char *leaf);
/* Remove it, and what is below. False with errno: EBUSY where processes are in it still,
 * perhaps for a moment, or one that err_is_shortage() knows. */
bool vm_cgroup_remove(const char *leaf);

#endif
