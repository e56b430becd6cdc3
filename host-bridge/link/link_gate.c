#include "host-bridge/link/link_gate.h"

#include <stddef.h>

#include "proto/limits.h"

static unsigned reserve(const struct link_pass *p)
{
	return p->urgent ? LINKS_RESERVED : 0;
}

bool link_pass_is_full(const struct link_pass *p)
{
	return p->gate->connected >= LINKS_MAX - LINKS_RESERVED + reserve(p);
}

bool link_pass_enter(struct link_pass *p)
{
	struct link_gate *g = p->gate;
	if (g == NULL || p->in)
		return true;
	if (link_pass_is_full(p) || g->opening >= LINKS_OPENING_MAX + reserve(p))
		return false;
	p->in = p->opening = true;
	g->connected++;
	g->opening++;
	return true;
}

void link_pass_opened(struct link_pass *p)
{
	if (p->opening)
		p->gate->opening--;
	p->opening = false;
}

void link_pass_leave(struct link_pass *p)
{
	link_pass_opened(p);
	if (p->in)
		p->gate->connected--;
	p->in = false;
}
