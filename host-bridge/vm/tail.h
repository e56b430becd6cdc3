/*
 * The end of a text that comes bit by bit: what a failed start is explained by. Pure.
 */
#ifndef SANDGATE_TAIL_H
#define SANDGATE_TAIL_H

#include <stddef.h>

/* Add `n` bytes to the `*len` at `tail`; of all, the last `room` stay. */
void tail_add(char *tail, size_t *len, size_t room, const void *more, size_t n);

#endif
