/*
 * Baked templates: the snapshot that the first sandbox of a template leaves as soon as its
 * agent has answered, which each later one of the same kind is restored from. Kept under the
 * state directory, one directory a kind, named after a digest of all that the snapshot depends
 * on: another kernel, image, size, VMM or way to run is another kind.
 */
#ifndef SANDGATE_BAKED_H
#define SANDGATE_BAKED_H

#include <stdbool.h>
#include <stddef.h>

#include "host-bridge/launcher/launcher.h"

/* Where the snapshot for such a request is, or would be. ERR_LAUNCHER_FAILED when what it
 * depends on cannot be looked at. */
int baked_path(const char *state_dir, const struct launcher *l,
               const struct launcher_host *host, const struct launcher_request *r,
               char out[PATH_MAX], struct err *e);
bool baked_exists(const char *path);
/* Remove it: a sandbox could not be made from it. */
void baked_discard(const char *path);
/* A sandbox is made from it: it is kept for BAKED_KEPT_S from now on. */
void baked_used(const char *path);
/* Make a directory to save to, `out`, of which baked_keep() makes the snapshot at `path`, and
 * which baked_drop() removes. ERR_INVALID_STATE when somebody else is at it. */
int baked_begin(const char *path, char out[PATH_MAX], struct err *e);
void baked_part(const char *path, char out[PATH_MAX]); /* that directory */
int baked_keep(const char *path, struct err *e);
void baked_drop(const char *path);
/* Remove what an earlier bridge began and did not finish, and what nobody has used for so long:
 * images and programs were replaced. Before the first create. ERR_CAPACITY, …: it cannot be
 * looked through. */
int baked_sweep(const char *state_dir, struct err *e);

#endif
