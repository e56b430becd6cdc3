/*
 * The warm pool: sandboxes that are restored from a template's snapshot before anybody asks,
 * up to the moment where they would become somebody's. A create of the same template and size
 * takes one, and only has to renew it. They are in no list, have no row in the registry and
 * make no events; a bridge that goes takes them along, and what a killed one leaves behind is
 * swept as any start that was cut off.
 *
 *   sandbox_warm_fill ─► creating ─► waiting ─► sandbox_warm_claim: an ordinary one, creating
 *                           └───────────┴─────► failed, too old, or its memory is wanted: gone
 *
 * For the sandbox files alone.
 */
#ifndef SANDGATE_SANDBOX_WARM_H
#define SANDGATE_SANDBOX_WARM_H

#include "host-bridge/sandbox/sandbox_private.h"

/* `like` runs: have warm ones of its kind, unless others are being created still. */
void sandbox_warm_fill(const struct sandbox *like);
/* One that was made from the snapshot `baked`, or NULL. It takes over what `s` is to be, and
 * stands in its place; `s` is freed. Its VM may be up (up > 0) or on its way. */
struct sandbox *sandbox_warm_claim(struct sandbox *s);
/* The VM of one is up: connect to its agent in advance. */
void sandbox_warm_up(struct sandbox *s);
/* One is not to be: without a word. */
void sandbox_warm_drop(struct sandbox *s);
/* All, at once and for good; false when there were none. */
bool sandbox_warm_drop_all(struct sandbox_set *set);
unsigned sandbox_warm_count(const struct sandbox_set *set); /* those that are up */

#endif
