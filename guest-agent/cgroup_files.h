/*
 * The cgroup file system by descriptor: short control files, and walks over a sub-tree. The
 * two halves of the cgroup module use it; it knows no tree and no leaf. What reads numbers
 * from /proc (own_mount.h) uses cgroup_files_read() as well.
 */
#ifndef SANDGATE_CGROUP_FILES_H
#define SANDGATE_CGROUP_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Open a cgroup below `dir`, made before when `make`. -1 and errno. */
int cgroup_files_open(int dir, const char *name, bool make);

/* Write a control file in one write(2). -1 and errno. */
int cgroup_files_write(int dir, const char *file, const char *text);
int cgroup_files_write_number(int dir, const char *file, uint64_t value);

/* Read a control file from its start as a string, cut at `size`. -1 and errno. */
int cgroup_files_read(int dir, const char *file, char *buf, size_t size);
int cgroup_files_pread(int fd, char *buf, size_t size);

/* The number on the line "<key> <number>"; 0 when there is no such line. */
uint64_t cgroup_files_field(const char *text, const char *key);
/* Whether `word` is one of the space-separated words of `text`. */
bool cgroup_files_has_word(const char *text, const char *word);

/* Every process of the cgroup and below: its `signal` sent to them once (0: none sent);
 * how many there were. Bounded by CGROUP_WALK_MAX cgroups. */
unsigned cgroup_files_signal(int dir, int signal);

/* Kill all of it: cgroup.kill, or freeze, SIGKILL, thaw where the kernel has none. */
void cgroup_files_kill(int dir);

/* Remove the empty cgroups below `dir`, the deepest first, as far as the walk goes. */
void cgroup_files_prune(int dir);

#endif
