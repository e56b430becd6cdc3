/*
 * Firecracker's hybrid vsock convention on the host's side: the socket that host clients
 * connect to, their CONNECT line, and the sockets that guest clients are connected to.
 * Called by vsock_device and vsock_mux. Nothing blocks.
 */
#ifndef SANDGATE_HYBRID_H
#define SANDGATE_HYBRID_H

#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/limits.h"

/* Listen on a Unix socket that only its owner can reach. A file that is there already is
 * an error. */
int hybrid_listen(const char *path, struct err *e);

/* "CONNECT <port>\n" (the word in any case) to its port; -1 when it is anything else. `len`
 * includes the newline. */
int hybrid_parse_line(const char *line, size_t len, uint32_t *port);

/* Read what has come of the line into `line` (VSOCK_LINE_MAX bytes, `*len` of them used)
 * and no byte past it. 1: whole, the port is set; 0: more must come; -1: end, or malformed. */
int hybrid_read_line(int fd, char *line, unsigned *len, uint32_t *port);

/* "OK <port>\n". */
int hybrid_say_ok(int fd, uint32_t host_port);

/* Connect to `<uds>_<port>`: a descriptor, or -1 when nobody listens or its backlog is full. */
int hybrid_dial(const char *uds, uint32_t port);

#endif
