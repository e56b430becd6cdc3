/*
 * Who a command runs as: users, groups, home and shell, read from the guest's own
 * /etc/passwd and /etc/group in the parent (no NSS), and capability sets computed with
 * libcap, so that the spawned child needs neither files nor memory. The two are plain files
 * of /etc as it was mounted at the start: nothing that is put in their place is waited for.
 */
#ifndef SANDGATE_IDENTITY_H
#define SANDGATE_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/err.h"

#define IDENTITY_GROUPS_MAX 256

struct identity {
	uid_t uid;
	gid_t gid;
	gid_t groups[IDENTITY_GROUPS_MAX]; /* the primary group first */
	int group_count;
	char name[64];   /* "1000" for a uid without an entry, "root" for 0 */
	char home[256];  /* "/" for a uid without an entry */
	char shell[128]; /* "/bin/sh" likewise */
};

/* Before the first exec. Without it there are no users but by number, and root. */
void identity_get_ready(void);

/* Resolve "name", "uid" or "uid:gid" (strict decimal). errno-style result: 0, or the errno
 * that a spawn_failed of stage "user" reports (ENOENT unknown, EINVAL malformed).
 * A name and a uid bring the groups of /etc/group; a uid without an entry has the group of
 * the same number; an explicit gid is the only group. "root" exists without any file. */
int identity_resolve(const char *spec, struct identity *out);

/* Read other files than /etc/passwd and /etc/group: for tests. The paths are absolute and
 * stay valid. */
void identity_set_files(const char *passwd, const char *group);

/* Capability names ("CAP_NET_RAW", any case) to a mask of what is kept; ERR_INVALID_FIELD
 * "capabilities" on an unknown name. */
int identity_caps(char *const *names, size_t count, uint64_t *mask, struct err *e);

#endif
