/*
 * Bounds the connections of the links that share it: a sandbox has one for the links that its
 * calls use (LINKS_MAX and the two after it). link.c asks it; nothing waits in here.
 */
#ifndef SANDGATE_LINK_GATE_H
#define SANDGATE_LINK_GATE_H

#include <stdbool.h>

struct link_gate {
	unsigned connected;
	unsigned opening; /* of them, those that were not answered Opened yet */
};

/* How one link counts in its gate. Zeroed: it has none, and passes. The gate outlives it. */
struct link_pass {
	struct link_gate *gate;
	bool urgent; /* it may use what is reserved */
	bool in, opening;
};

/* Whether the link may connect; it counts from now on. Harmless when it does already. */
bool link_pass_enter(struct link_pass *p);
/* Whether links have to be closed before it may, and not only opened. */
bool link_pass_is_full(const struct link_pass *p);
void link_pass_opened(struct link_pass *p);
void link_pass_leave(struct link_pass *p);

#endif
