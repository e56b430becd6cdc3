/* How a link comes to its connection: its turn at the gate, tries with backoff. */
#include <stddef.h>
#include <string.h>

#include "host-bridge/link/link_private.h"
#include "host-bridge/steady.h"
#include "proto/limits.h"

static void on_connected(int fd, const uint8_t *early, size_t early_len, const struct err *e,
                         void *arg)
{
	struct link *l = arg;
	l->connecting = NULL;
	if (fd < 0) {
		l->last = *e;
		if (e->code == ERR_PROTOCOL)
			link_end(l, e, NULL);
		else
			link_connect_later(l);
		return;
	}
	l->fd = fd;
	l->write_dead = l->data_waits = false;
	uint8_t *room = early_len > 0 ? link_buf_room(&l->in, early_len) : NULL;
	if (early_len > 0 && room == NULL) {
		link_end_with(l, ERR_CAPACITY, "out of memory");
		return;
	}
	if (early_len > 0) {
		memcpy(room, early, early_len);
		link_buf_put(&l->in, early_len);
	}
	l->state = READY;
	if (l->handlers != NULL)
		link_send_open(l);
	else
		link_update_due(l);
	link_parse(l);
}

/* ---- the gate ---- */

/* The deadlines are the guest's: they start now. */
static void on_turn(struct link_pass *p)
{
	struct link *l = (struct link *)((char *)p - offsetof(struct link, pass));
	double now = steady_now();
	l->still = link_gate_still(p->gate);
	l->connect_due = now + l->connect_ms / 1e3;
	if (l->handlers != NULL)
		l->answer_due = now + l->open_ms / 1e3;
	link_update_due(l);
	link_timer_in(l, &l->kick, 0);
}

static void wait_for_turn(struct link *l)
{
	l->queued_at = steady_now();
	l->turn_due = l->queued_at + l->connect_ms / 1e3;
	l->pass.on_turn = on_turn;
	link_pass_wait(&l->pass);
	link_update_due(l);
}

/* A full gate has room only when calls end, which may be never. Where it is only busy with
 * opening, room comes as fast as the guest answers. */
void link_turn_late(struct link *l)
{
	bool late = link_pass_is_full(&l->pass) || l->turn_due - l->queued_at >= LINK_TURN_S;
	if (late && !l->pass.gate->closed) {
		link_end_with(l, ERR_QUOTA_EXCEEDED,
		              "too many calls are in progress in this sandbox");
		return;
	}
	l->turn_due += l->connect_ms / 1e3;
	link_update_due(l);
}

bool link_enter(struct link *l, struct link_gate *g, bool urgent)
{
	struct link_pass pass = {.gate = g, .urgent = urgent};
	if (!link_pass_enter(&pass))
		return false;
	l->pass = pass;
	l->still = link_gate_still(g);
	return true;
}

/* ---- trying ---- */

void link_connect(struct link *l)
{
	bool was_in = l->pass.in;
	if (!link_pass_enter(&l->pass)) {
		wait_for_turn(l);
		return;
	}
	if (l->pass.in && !was_in)
		l->still = link_gate_still(l->pass.gate);
	double left_ms = (l->connect_due - steady_now()) * 1e3;
	unsigned one_try = CONNECT_TRY_MS;
	if (left_ms < CONNECT_TRY_MS)
		one_try = left_ms > 1 ? (unsigned)left_ms : 1;
	l->connecting = transport_connect(l->loop, l->to, one_try, on_connected, l, &l->last);
	if (l->connecting == NULL)
		link_connect_later(l);
}

void link_connect_later(struct link *l)
{
	l->state = CONNECTING;
	link_update_due(l);
	link_timer_in(l, &l->kick, l->backoff_ms / 1e3);
	l->backoff_ms = l->backoff_ms * 2 < CONNECT_BACKOFF_MAX_MS ? l->backoff_ms * 2
	                                                           : CONNECT_BACKOFF_MAX_MS;
}
