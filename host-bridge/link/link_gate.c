#include "host-bridge/link/link_gate.h"

#include <stddef.h>

#include "host-bridge/steady.h"
#include "proto/limits.h"

void link_gate_init(struct link_gate *g)
{
	*g = (struct link_gate){0};
	TAILQ_INIT(&g->line);
	TAILQ_INIT(&g->urgent_line);
}

static unsigned reserve(const struct link_pass *p)
{
	return p->urgent ? LINKS_RESERVED : 0;
}

bool link_pass_is_full(const struct link_pass *p)
{
	return p->gate->connected >= LINKS_MAX - LINKS_RESERVED + reserve(p);
}

static bool has_room(const struct link_pass *p)
{
	return !p->gate->closed && !link_pass_is_full(p) &&
	       p->gate->opening < LINKS_OPENING_MAX + reserve(p);
}

static void let_in(struct link_pass *p)
{
	p->in = p->opening = true;
	p->gate->connected++;
	p->gate->opening++;
}

static struct link_line *line_of(const struct link_pass *p)
{
	return p->urgent ? &p->gate->urgent_line : &p->gate->line;
}

static void leave_line(struct link_pass *p)
{
	if (p->waits)
		TAILQ_REMOVE(line_of(p), p, entry);
	p->waits = false;
}

static void serve(struct link_line *line)
{
	struct link_pass *first;
	while ((first = TAILQ_FIRST(line)) != NULL && has_room(first)) {
		leave_line(first);
		let_in(first);
		first->on_turn(first);
	}
}

/* There is more room. As all who have room are let in whenever there is, nobody who comes
 * later finds room before them. */
static void serve_all(struct link_gate *g)
{
	if (g->on_quiet != NULL && g->opening == 0) {
		void (*on_quiet)(struct link_gate *) = g->on_quiet;
		g->on_quiet = NULL;
		on_quiet(g);
	}
	serve(&g->urgent_line);
	serve(&g->line);
}

double link_gate_still(const struct link_gate *g)
{
	return g->still + (g->closed ? steady_now() - g->closed_at : 0);
}

void link_gate_close(struct link_gate *g, void (*on_quiet)(struct link_gate *g))
{
	if (!g->closed)
		g->closed_at = steady_now();
	g->closed = true;
	g->on_quiet = on_quiet;
	serve_all(g);
}

void link_gate_open(struct link_gate *g)
{
	g->still = link_gate_still(g);
	g->closed = false;
	g->on_quiet = NULL;
	serve_all(g);
}

bool link_pass_enter(struct link_pass *p)
{
	if (p->gate == NULL || p->in)
		return true;
	if (!has_room(p))
		return false;
	let_in(p);
	return true;
}

void link_pass_wait(struct link_pass *p)
{
	p->waits = true;
	TAILQ_INSERT_TAIL(line_of(p), p, entry);
}

void link_pass_opened(struct link_pass *p)
{
	if (!p->opening)
		return;
	p->opening = false;
	p->gate->opening--;
	serve_all(p->gate);
}

void link_pass_leave(struct link_pass *p)
{
	leave_line(p);
	if (!p->in)
		return;
	p->gate->connected--;
	p->gate->opening -= p->opening;
	p->in = p->opening = false;
	serve_all(p->gate);
}
