/*
 * Whom VMs' processes become when the bridge is root: each VM has a user id to itself, so that
 * a VMM which a guest has taken over can neither trace, nor signal, nor open what belongs to
 * another. sandbox_set owns the range; a sandbox keeps its number for as long as its VM lives.
 */
#ifndef SANDGATE_VM_UIDS_H
#define SANDGATE_VM_UIDS_H

#include <stdbool.h>
#include <sys/types.h>

#include "proto/err.h"

#define VM_UID 65534u /* nobody: whom VMs are without a range, and those that try KVM out */

struct vm_uids {
	uid_t first;
	unsigned count, next; /* 0: there is no range, all are VM_UID */
};

/* The range "FIRST:COUNT"; -1 when that is none, or holds ids that are somebody's. */
int vm_uids_parse(const char *text, struct vm_uids *u);
/* The range of `text`, or the usual one for NULL and "". Where this user namespace does not
 * have it: ERR_INVALID_FIELD when it was asked for, else no range, and the log says so. */
int vm_uids_open(struct vm_uids *u, const char *text, struct err *e);
/* One that is not taken; its group has the same number. 0 with ERR_CAPACITY when all are taken.
 * Without a range, or when no process can change its user anyway: VM_UID. */
uid_t vm_uids_pick(struct vm_uids *u, bool (*is_taken)(uid_t uid, void *arg), void *arg,
                   struct err *e);

#endif
