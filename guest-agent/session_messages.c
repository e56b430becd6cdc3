/* Frames that follow Open in an exec session: Signal, Stdin, Cancel, Release. */
#include <stdlib.h>

#include "guest-agent/session_private.h"

static bool may_send(const struct session *s, Sandgate__HostFrame__BodyCase frame)
{
	bool is_release = frame == SANDGATE__HOST_FRAME__BODY_RELEASE;

	if (s->peer.exec == NULL)
		return false;
	switch (s->peer.role) {
	case SANDGATE__ROLE__ROLE_OWNER:
		return true;
	case SANDGATE__ROLE__ROLE_CONTROL:
		return !is_release;
	case SANDGATE__ROLE__ROLE_STANDBY:
		return is_release || frame == SANDGATE__HOST_FRAME__BODY_CANCEL;
	default:
		return is_release;
	}
}

static int on_signal(struct session *s, const Sandgate__Signal *m, struct err *e)
{
	if (exec_signal(s->peer.exec, (int)m->signal, m->all, e) < 0)
		return -1;
	session_put_done(s);
	return 0;
}

/* The bytes are handed on, not copied. */
static int on_stdin(struct session *s, Sandgate__Stdin *m, struct err *e)
{
	uint8_t *data = m->data.data;
	size_t len = m->data.len;

	m->data = (ProtobufCBinaryData){0};
	if (exec_stdin(s->peer.exec, m->offset != NULL ? &m->offset->value : NULL, data, len,
	               e) < 0)
		return -1;
	s->acks_owed++;
	return 0;
}

static int on_cancel(struct session *s, const Sandgate__Cancel *m, struct err *e)
{
	const uint64_t *grace = m->grace_ms != NULL ? &m->grace_ms->value : NULL;

	if (m->reason == SANDGATE__CANCEL_REASON__CANCEL_NONE ||
	    m->reason > SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST)
		return err_field(e, ERR_INVALID_FIELD, "reason",
		                 "no reason, or an unknown one");
	s->cancel_seen = true;
	if (m->reason == SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE &&
	    s->peer.role != SANDGATE__ROLE__ROLE_CONTROL)
		exec_client_gone(&s->peer, grace);
	else
		exec_cancel(s->peer.exec, m->reason, grace);
	session_put_done(s);
	return 0;
}

static int handle(struct session *s, Sandgate__HostFrame *h, struct err *e)
{
	if (h->body_case == SANDGATE__HOST_FRAME__BODY_OPEN)
		return err_set(e, ERR_PROTOCOL, "Open came twice");
	if (!may_send(s, h->body_case))
		return err_set(e, ERR_PROTOCOL, "frame %d is not for this session's role",
		               h->body_case);
	switch (h->body_case) {
	case SANDGATE__HOST_FRAME__BODY_SIGNAL:
		return on_signal(s, h->signal, e);
	case SANDGATE__HOST_FRAME__BODY_STDIN:
		return on_stdin(s, h->stdin, e);
	case SANDGATE__HOST_FRAME__BODY_CLOSE_STDIN:
		exec_close_stdin(s->peer.exec);
		s->acks_owed++;
		return 0;
	case SANDGATE__HOST_FRAME__BODY_CANCEL:
		return on_cancel(s, h->cancel, e);
	case SANDGATE__HOST_FRAME__BODY_RELEASE:
		exec_release(s->peer.exec, h->release);
		return 0;
	default:
		return err_set(e, ERR_INCOMPATIBLE, "frame %d is not known to this agent",
		               h->body_case);
	}
}

bool session_message(struct session *s, Sandgate__HostFrame *h)
{
	struct err e = {0};

	if (h->body_case == SANDGATE__HOST_FRAME__BODY_STDIN && s->acks_owed > 0)
		return false;
	if (handle(s, h, &e) < 0) {
		uint64_t offset = s->peer.exec != NULL ? exec_stdin_offset(s->peer.exec) : 0;
		session_refuse(s, &e, e.code == ERR_STDIN_OFFSET ? &offset : NULL);
	}
	return true;
}
