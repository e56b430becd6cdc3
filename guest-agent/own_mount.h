/*
 * What the agent goes on reading whatever root in an exec mounts over it, a FUSE server that
 * never answers among others: private copies of mounts, on which nobody can mount and in which
 * no device opens. Links that lead out of them are not safe to follow.
 */
#ifndef SANDGATE_OWN_MOUNT_H
#define SANDGATE_OWN_MOUNT_H

/* A descriptor of a copy of what is mounted at `path`, a directory, and below it; of the
 * directory itself where mounts may not be copied (mount_setattr(2), open_tree: Linux 5.2,
 * CAP_SYS_ADMIN). -1 with errno. The caller's to close. */
int own_mount(const char *path);

/* The agent's copy of /proc, made by the first call, which must come before the first exec; -1
 * where there is none. Never closed. */
int own_proc(void);

#endif
