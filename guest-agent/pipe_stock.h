/*
 * Output pipes for the next exec, made in idle time: a pipe is one of the costlier things that
 * an exec needs.
 */
#ifndef SANDGATE_PIPE_STOCK_H
#define SANDGATE_PIPE_STOCK_H

#include "guest-agent/idle.h"

struct pipe_stock;

struct pipe_stock *pipe_stock_create(struct idle *idle); /* NULL: out of memory */
void pipe_stock_destroy(struct pipe_stock *s);

/* fds[0] is the reading end, non-blocking; fds[1] the writing one, blocking. Both close on
 * exec and are the caller's. -1 with errno. */
int pipe_stock_take(struct pipe_stock *s, int fds[2]);

#endif
