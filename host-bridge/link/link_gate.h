/*
 * Bounds the connections of the links that share it: a sandbox has one for the links that its
 * calls use (LINKS_MAX and the two after it). Who finds no room waits in line: room that
 * becomes free goes to the first of those who may use it, at once. While it is closed the guest
 * stands still, and deadlines of who is in with it. The files of a link call it; it knows no
 * links.
 *
 *   zeroed ── enter ──► in, opening ── opened ──► in ── leave ──► zeroed
 *      └──── wait ──► in line ── on_turn ──┘
 */
#ifndef SANDGATE_LINK_GATE_H
#define SANDGATE_LINK_GATE_H

#include <stdbool.h>
#include <sys/queue.h>

struct link_pass;
TAILQ_HEAD(link_line, link_pass);

struct link_gate {
	unsigned connected;
	unsigned opening;        /* of them, those that were not answered Opened yet */
	bool closed;             /* nobody is let in; who waits does so without a limit */
	double closed_at, still; /* monotonic seconds: since when; how long it was before */
	void (*on_quiet)(struct link_gate *g); /* or NULL: see link_gate_close */
	struct link_line line, urgent_line;
};

/* How one link counts in its gate. Zeroed: it has none, and passes. The gate outlives it. */
struct link_pass {
	struct link_gate *gate;
	bool urgent; /* it may use what is reserved */
	bool in, opening, waits;
	TAILQ_ENTRY(link_pass) entry;
	/* Its turn has come: it is in. Called while another pass leaves: it must not call the
	 * gate. */
	void (*on_turn)(struct link_pass *p);
};

void link_gate_init(struct link_gate *g);
/* Let nobody in: the guest is about to be stopped. `on_quiet` once nobody is opening any more,
 * inside this call or while another leaves; it must not call the gate. */
void link_gate_close(struct link_gate *g, void (*on_quiet)(struct link_gate *g));
/* Let in who waits, as there is room. Harmless when it is not closed. */
void link_gate_open(struct link_gate *g);
/* For how long it has been closed, all in all (seconds). */
double link_gate_still(const struct link_gate *g);

/* Whether the link may connect; it counts from now on. Harmless when it does already. */
bool link_pass_enter(struct link_pass *p);
/* After link_pass_enter said no: wait for on_turn. Leaving ends that, too. */
void link_pass_wait(struct link_pass *p);
/* Whether links have to be closed before it may, and not only opened. */
bool link_pass_is_full(const struct link_pass *p);
void link_pass_opened(struct link_pass *p);
void link_pass_leave(struct link_pass *p);

#endif
