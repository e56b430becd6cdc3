/*
 * Root images that guests were made from. What is restored from a snapshot must find the very
 * image that it had, though its template may have been built anew since: an image is kept under
 * STATE/images, by a key that is made of what changes with it, for as long as a sandbox or a
 * snapshot has it. Where the template is on another file system there is only a reference to
 * it, and what depends on an image that was replaced there is refused.
 */
#ifndef SANDGATE_IMAGE_H
#define SANDGATE_IMAGE_H

#include <limits.h>
#include <stdbool.h>

#include "proto/err.h"

#define IMAGE_KEY_MAX 33 /* with its NUL */

/* Keep the image at `path`, without links in it. ERR_STORAGE_FULL, ERR_LAUNCHER_FAILED. */
int image_keep(const char *state_dir, const char *path, char key[IMAGE_KEY_MAX], struct err *e);
/* Where it is. ERR_LAUNCHER_FAILED when it is gone, or not the same any more. */
int image_path(const char *state_dir, const char *key, char out[PATH_MAX], struct err *e);
/* Let go of those that nothing needs. */
void image_sweep(const char *state_dir, bool (*is_needed)(const char *key, void *arg),
                 void *arg);

#endif
