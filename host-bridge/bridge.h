/*
 * The serving process: its loop, listening sockets, signals and the order in which its
 * parts start and stop. main.c calls it once. What a request means is api/'s business.
 *
 *   SERVING ── SIGTERM, SIGINT or POST /v1/node/drain ──► draining: new work is refused
 *      a signal besides: after --drain-seconds, or when the last request ends, ──► EXIT
 */
#ifndef SANDGATE_BRIDGE_H
#define SANDGATE_BRIDGE_H

#include "host-bridge/settings.h"

#define BRIDGE_VERSION "0.1.0"

/* Serve until a signal ends it. Returns the exit status of the process. */
int bridge_serve(const struct settings *c);

#endif
