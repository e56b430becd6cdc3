/*
 * Files that the guest's root may have put anything in place of: what is no regular file is not
 * waited for (a fifo is, by open(2), until somebody comes), and counts as not there.
 */
#ifndef SANDGATE_PLAIN_FILE_H
#define SANDGATE_PLAIN_FILE_H

#include <stdio.h>

/* openat(2) without O_CREAT, closed on exec. -1 with errno, ENOENT for what is no regular file
 * and where `dir` is -1: there is none. */
int plain_file_open(int dir, const char *path, int flags);
/* The same as a stream to read, or NULL; no link is followed. */
FILE *plain_file_read(int dir, const char *path);

#endif
