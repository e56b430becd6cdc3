/* The part of sessions in snapshots: Prepare and Resume, and the end that exec sessions come to
 * before one. */
#include <stddef.h>

#include "guest-agent/agent.h"
#include "guest-agent/session_private.h"

static struct session *session_of(struct snapshot_waiter *w)
{
	return (struct session *)((char *)w - offsetof(struct session, snapshot));
}

static void on_prepared(struct snapshot_waiter *w, const struct err *e)
{
	struct session *s = session_of(w);
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Prepared m = SANDGATE__PREPARED__INIT;

	if (e != NULL) {
		session_refuse(s, e, NULL);
		return;
	}
	snapshot_fill_prepared(agent_snapshot(s->set->agent), &m);
	g.body_case = SANDGATE__GUEST_FRAME__BODY_PREPARED;
	g.prepared = &m;
	session_put(s, &g);
	session_close_when_sent(s);
}

int session_prepare(struct session *s, struct err *e)
{
	s->snapshot.on_done = on_prepared;
	if (snapshot_prepare(agent_snapshot(s->set->agent), &s->snapshot, e) < 0)
		return -1;
	session_put_opened(s);
	return 0;
}

static void on_resumed(struct snapshot_waiter *w, const struct err *e)
{
	struct session *s = session_of(w);
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Resumed m = SANDGATE__RESUMED__INIT;

	if (e != NULL) {
		session_refuse(s, e, NULL);
		return;
	}
	snapshot_fill_resumed(agent_snapshot(s->set->agent), &m);
	g.body_case = SANDGATE__GUEST_FRAME__BODY_RESUMED;
	g.resumed = &m;
	session_put(s, &g);
	session_close_when_sent(s);
}

int session_resume(struct session *s, const Sandgate__Resume *m, struct err *e)
{
	s->snapshot.on_done = on_resumed;
	if (snapshot_resume(agent_snapshot(s->set->agent), m, &s->snapshot, e) < 0)
		return -1;
	session_put_opened(s);
	return 0;
}

/* Input that was taken is acknowledged, whatever room there is: what is not answered now
 * counts as not done. */
static void put_suspended(struct session *s)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Suspended m = SANDGATE__SUSPENDED__INIT;

	for (; s->acks_owed > 0; s->acks_owed--)
		session_put_stdin_ack(s);
	m.sequence = s->peer.cursor.seq;
	g.body_case = SANDGATE__GUEST_FRAME__BODY_SUSPENDED;
	g.suspended = &m;
	session_put(s, &g);
}

void session_suspend(struct session *s)
{
	if (!s->exit_sent && s->state == SESSION_SERVING) /* else it has its last frame */
		put_suspended(s);
	exec_detach(&s->peer, !s->cancel_seen && !s->exit_sent);
	session_close_when_sent(s);
}
