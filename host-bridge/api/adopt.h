/*
 * Execs that a bridge before this one left running: foreground execs whose owner vanished
 * are cancelled by the agent after LINK_GRACE_S unless somebody takes them over. This does,
 * for each sandbox that was adopted: it attaches as their owner, reads and drops what they
 * write (the agent retains it), and lets go when they end. Their results are then asked for
 * by exec id, like any other's.
 */
#ifndef SANDGATE_ADOPT_H
#define SANDGATE_ADOPT_H

#include "host-bridge/api/api.h"

struct adopt;

/* Call once, after sandbox_set_adopt. */
struct adopt *adopt_start(struct api *api, struct err *e);
/* Leaves what still runs to the successor, as it was found. */
void adopt_stop(struct adopt *a);

#endif
