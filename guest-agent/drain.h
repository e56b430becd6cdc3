/*
 * Pipes that outlive their exec: leftovers still write to them, and closing the read end
 * would kill them with SIGPIPE. Reads and discards until the last writer is gone.
 */
#ifndef SANDGATE_DRAIN_H
#define SANDGATE_DRAIN_H

#include <ev.h>

#include "guest-agent/workers.h"

/* Take over the non-blocking `fd`: it is drained until its end, then closed. */
void drain_adopt(struct ev_loop *loop, struct workers *workers, int fd);

#endif
