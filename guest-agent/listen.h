/*
 * Where connections come from: a vsock port or a Unix socket. A listener judges the peer
 * before anything is read from it and hands over what it accepts; it knows no sessions.
 */
#ifndef SANDGATE_LISTEN_H
#define SANDGATE_LISTEN_H

#include <ev.h>
#include <stddef.h>

#include "proto/err.h"

struct listener;

/* Takes over a non-blocking, close-on-exec descriptor. */
typedef void listen_fn(int fd, void *arg);

/* Any local CID, `port`; peers are the host (CID 2) and the `count` of `cids`, which stays
 * the caller's. */
struct listener *listen_vsock(struct ev_loop *loop, unsigned port, const unsigned *cids,
                              size_t count, listen_fn *on_connection, void *arg, struct err *e);
/* A socket at `path`, mode 0600; peers are root and our own user. One that a dead agent left
 * there is replaced, one that still answers is not. */
struct listener *listen_unix(struct ev_loop *loop, const char *path, listen_fn *on_connection,
                             void *arg, struct err *e);
/* Removes the Unix socket's name too. NULL is fine. */
void listen_close(struct listener *l);

#endif
