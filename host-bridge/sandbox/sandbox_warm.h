/*
 * The warm pool: sandboxes that are made before anybody asks, from a template's snapshot, with
 * names of their own. A create of the same template and size takes one. Those that wait have
 * one exec behind them, too. They are in no list, have no row in the registry and make no
 * events; a bridge that goes takes them along, and what a killed one leaves behind is swept as
 * any start that was cut off.
 *
 *   sandbox_warm_fill ─► creating ─► warmed ◄─► rehearsing
 *                           └──────────┴────────────┴─► sandbox_warm_claim: an ordinary one
 *                                                  └──► failed, too old, or in the way: gone
 *
 * One that is claimed before it is warmed becomes running when it would have been. For the
 * sandbox files alone.
 */
#ifndef SANDGATE_SANDBOX_WARM_H
#define SANDGATE_SANDBOX_WARM_H

#include "host-bridge/sandbox/sandbox_private.h"

/* `like` runs: have warm ones of its kind, unless others are being created still. */
void sandbox_warm_fill(const struct sandbox *like);
/* One that was made from the snapshot `baked`, or NULL. It takes over what `s` is to be, and
 * stands in its place; `s` is freed. It may be warmed, or on its way. */
struct sandbox *sandbox_warm_claim(struct sandbox *s);
/* One has been renewed. */
void sandbox_warm_renewed(struct sandbox *s);
/* The timer of one has fired. */
void sandbox_warm_timer(struct sandbox *s);
/* One is not to be: without a word. */
void sandbox_warm_drop(struct sandbox *s);
/* All, at once and for good; false when there were none. */
bool sandbox_warm_drop_all(struct sandbox_set *set);
unsigned sandbox_warm_count(const struct sandbox_set *set); /* those that wait */

#endif
