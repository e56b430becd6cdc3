/*
 * Listening sockets of the bridge: inherited from a predecessor or a supervisor
 * (LISTEN_FDS, sd_listen_fds(3)), else made from addresses. It serves nothing itself.
 */
#ifndef SANDGATE_SOCKETS_H
#define SANDGATE_SOCKETS_H

#include <stddef.h>

#include "host-bridge/settings.h"

#define SOCKETS_MAX 16

/* Whether --listen takes this: host:port with a host, or unix:PATH. */
bool sockets_valid(const char *text);

/* Fill `fds`; returns how many, or -1 with err. `*inherited` says that they are shared with
 * whoever passed them in: a connection that is not accepted here waits for the successor. */
int sockets_open(const struct settings *c, int fds[SOCKETS_MAX], int *inherited, struct err *e);

/* Where `fd` listens, as --listen takes it, with the port that the kernel has chosen. */
void sockets_name(int fd, char *out, size_t room);

#endif
