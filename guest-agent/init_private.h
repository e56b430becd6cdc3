/*
 * What the files of the init call of each other: init.c sets the machine up and ends it,
 * init_root.c gives it its root. Nobody else includes this.
 */
#ifndef SANDGATE_INIT_PRIVATE_H
#define SANDGATE_INIT_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>

/* Say on the console what did not work, with errno. */
void init_failed(const char *what, const char *which);
/* Whether the kernel's command line has a word that begins with `name`; the rest of the last
 * one is copied to `value`. */
bool init_word(const char *name, char *value, size_t room);
/* One module a line in the order of loading: a path and, after a space, its parameters. A list
 * that is not there is empty. */
void init_load_modules(const char *list);

/* Make what the kernel's words name the root: an image, read only, under a writable layer in
 * memory or on a disk. Proc, sys and dev are mounted and come along. Without such words a root
 * that is read only gets a layer in memory, and any other stays as it is. -1, told on the
 * console: what was asked for cannot be had. */
int init_root(void);

#endif
