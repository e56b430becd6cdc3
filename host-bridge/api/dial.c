#include "host-bridge/api/dial.h"

#include <stddef.h>

#include "host-bridge/exec/result_json.h"
#include "proto/limits.h"

/* Let go of the link, which is gone, and the sandbox, which may be freed by it. */
static void drop(struct dial *d)
{
	struct sandbox *s = d->sandbox;
	bool held = d->follows;
	d->sandbox = NULL;
	d->follows = false;
	d->link = NULL;
	sandbox_unlisten(&d->listener);
	if (held)
		sandbox_unhold(s);
}

/* End the session from this side. */
static void cut(struct dial *d, const struct dial_end *why)
{
	link_destroy(d->link, false);
	drop(d);
	d->handlers->on_end(d, why);
}

static void owe(struct dial *d)
{
	link_expect(d->link, (d->follows ? STARTED_DEADLINE_S : ANSWER_DEADLINE_S) * 1000);
}

void dial_rest(struct dial *d)
{
	link_expect(d->link, 0);
}

static void on_opened(struct link *l, const Sandgate__Opened *o, void *owner)
{
	struct dial *d = owner;
	(void)l;
	(void)o;
	d->opened = true;
	owe(d);
}

/* Output follows on without a hole, gaps told; an end has an outcome that we know. */
static bool takes_output(struct dial *d, uint64_t sequence, unsigned stream, uint64_t bytes)
{
	if (sequence != d->next || stream > SANDGATE__STREAM__STREAM_STDERR ||
	    bytes > UINT64_MAX / 2 - d->next)
		return false;
	d->next += bytes;
	return true;
}

static bool is_known(const Sandgate__Result *r)
{
	return r == NULL || result_outcome_name(r->outcome) != NULL;
}

static bool fits(struct dial *d, const Sandgate__GuestFrame *f)
{
	switch (f->body_case) {
	case SANDGATE__GUEST_FRAME__BODY_OUTPUT:
		return takes_output(d, f->output->sequence, f->output->stream,
		                    f->output->data.len);
	case SANDGATE__GUEST_FRAME__BODY_GAP:
		return takes_output(d, f->gap->sequence, f->gap->stream, f->gap->bytes);
	case SANDGATE__GUEST_FRAME__BODY_EXIT:
		return f->exit->sequence == d->next && f->exit->result != NULL &&
		       is_known(f->exit->result);
	case SANDGATE__GUEST_FRAME__BODY_EXEC_STATE:
		return is_known(f->exec_state->result);
	case SANDGATE__GUEST_FRAME__BODY_EXEC_LIST:
		for (size_t i = 0; i < f->exec_list->n_execs; i++)
			if (!is_known(f->exec_list->execs[i]->result))
				return false;
		return true;
	case SANDGATE__GUEST_FRAME__BODY_STARTED:
	case SANDGATE__GUEST_FRAME__BODY_STDIN_ACK:
	case SANDGATE__GUEST_FRAME__BODY_DONE:
	case SANDGATE__GUEST_FRAME__BODY_METRICS:
		return true;
	default:
		return false;
	}
}

/* The guest is about to be stopped: for a snapshot, or because somebody else takes one. */
static void suspended(struct dial *d)
{
	struct dial_end e = {.sent = true, .opened = true, .suspended = true};
	err_set(&e.err, ERR_SANDBOX_LOST, "the sandbox was stopped");
	cut(d, &e);
}

static void on_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	struct dial *d = owner;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_SUSPENDED &&
	    f->suspended->sequence == d->next) {
		suspended(d);
		return;
	}
	if (fits(d, f)) {
		sandbox_heard(d->sandbox);
		if (!d->follows)
			owe(d);
		else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_STARTED)
			dial_rest(d);
		d->handlers->on_frame(d, f);
		return;
	}
	struct dial_end e = {.sent = true, .opened = true};
	(void)l;
	err_set(&e.err, ERR_PROTOCOL, "the agent said what does not fit");
	cut(d, &e);
}

static void on_closed(struct link *l, const struct err *why, bool sent,
                      const Sandgate__Refused *refused, void *owner)
{
	struct dial *d = owner;
	struct dial_end e = {
	    .err = *why, .sent = sent, .opened = d->opened, .refused = refused != NULL};
	(void)l;
	if (refused != NULL && refused->offset != NULL) {
		e.has_offset = true;
		e.offset = refused->offset->value;
	}
	if (d->going != SANDGATE__CANCEL_REASON__CANCEL_NONE)
		err_set(&e.err, ERR_SANDBOX_GONE, "the sandbox was deleted");
	drop(d);
	d->handlers->on_end(d, &e);
}

static const struct link_handlers link_handlers = {
    .on_opened = on_opened, .on_frame = on_frame, .on_closed = on_closed};

/* The sandbox goes away. Who has something to say does so and stays until the agent has
 * answered: the guest is kept for that moment. A guest that is lost needs no word, nor does an
 * agent whom nobody may ask yet: it may never be asked. */
static void on_sandbox_end(struct sandbox_listener *l, Sandgate__CancelReason reason)
{
	struct dial *d = (struct dial *)((char *)l - offsetof(struct dial, listener));
	bool lost = reason == SANDGATE__CANCEL_REASON__CANCEL_NONE;
	struct dial_end e = {.sent = lost || !link_is_in_line(d->link)};
	d->going = reason;
	if (!lost && e.sent && d->handlers->on_going != NULL) {
		d->handlers->on_going(d, reason);
		return;
	}
	if (lost)
		err_set(&e.err, ERR_SANDBOX_LOST, "the sandbox's guest was lost");
	else
		err_set(&e.err, ERR_SANDBOX_GONE, "the sandbox was deleted");
	cut(d, &e);
}

static void on_sandbox_mute(struct sandbox_listener *l)
{
	struct dial *d = (struct dial *)((char *)l - offsetof(struct dial, listener));
	struct dial_end e = {.sent = true, .opened = d->opened};
	err_set(&e.err, ERR_TIMEOUT, "the agent does not answer any more");
	cut(d, &e);
}

int dial_open(struct dial *d, struct sandbox *s, Sandgate__Open *open, enum dial_kind kind,
              const struct dial_handlers *h, struct err *e)
{
	bool follows = kind == DIAL_FOLLOWS;
	struct link *l = sandbox_link(s, kind == DIAL_ENDS, e);
	if (l == NULL)
		return -1;
	if (link_open(l, open, OPEN_DEADLINE_S * 1000, &link_handlers, d, e) < 0) {
		link_destroy(l, false);
		return -1;
	}
	*d = (struct dial){.handlers = h, .link = l, .sandbox = s, .follows = follows};
	if (open->op_case == SANDGATE__OPEN__OP_ATTACH)
		d->next = open->attach->offset;
	d->listener.on_end = on_sandbox_end;
	d->listener.on_mute = on_sandbox_mute;
	sandbox_listen(s, &d->listener);
	if (follows)
		sandbox_hold(s);
	return 0;
}

void dial_yield(struct dial *d)
{
	d->listener.yields = true;
}

void dial_close(struct dial *d)
{
	if (d->link == NULL)
		return;
	link_destroy(d->link, d->lingers);
	drop(d);
}

static void send(struct dial *d, Sandgate__HostFrame *f, Sandgate__HostFrame__BodyCase body)
{
	f->body_case = body;
	if (d->link == NULL)
		return;
	link_send(d->link, f);
	if (!d->follows)
		owe(d);
}

void dial_cancel(struct dial *d, Sandgate__CancelReason reason, const uint64_t *grace_ms)
{
	Sandgate__HostFrame f = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Cancel cancel = SANDGATE__CANCEL__INIT;
	Sandgate__Uint64Value grace = SANDGATE__UINT64_VALUE__INIT;
	cancel.reason = reason;
	if (grace_ms != NULL) {
		grace.value = *grace_ms;
		cancel.grace_ms = &grace;
	}
	f.cancel = &cancel;
	d->lingers = true;
	send(d, &f, SANDGATE__HOST_FRAME__BODY_CANCEL);
}

void dial_release(struct dial *d, const bool cut[2])
{
	Sandgate__HostFrame f = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Release release = SANDGATE__RELEASE__INIT;
	release.stdout_cut = cut[0];
	release.stderr_cut = cut[1];
	f.release = &release;
	send(d, &f, SANDGATE__HOST_FRAME__BODY_RELEASE);
}

void dial_signal(struct dial *d, uint32_t number, bool all)
{
	Sandgate__HostFrame f = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Signal sig = SANDGATE__SIGNAL__INIT;
	sig.signal = number;
	sig.all = all;
	f.signal = &sig;
	send(d, &f, SANDGATE__HOST_FRAME__BODY_SIGNAL);
}

void dial_stdin(struct dial *d, const uint64_t *offset, const void *data, size_t len)
{
	Sandgate__HostFrame f = SANDGATE__HOST_FRAME__INIT;
	Sandgate__Stdin in = SANDGATE__STDIN__INIT;
	Sandgate__Uint64Value at = SANDGATE__UINT64_VALUE__INIT;
	if (offset != NULL) {
		at.value = *offset;
		in.offset = &at;
	}
	in.data = (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)data};
	f.stdin = &in;
	send(d, &f, SANDGATE__HOST_FRAME__BODY_STDIN);
}

void dial_close_stdin(struct dial *d)
{
	Sandgate__HostFrame f = SANDGATE__HOST_FRAME__INIT;
	Sandgate__CloseStdin close = SANDGATE__CLOSE_STDIN__INIT;
	f.close_stdin = &close;
	send(d, &f, SANDGATE__HOST_FRAME__BODY_CLOSE_STDIN);
}
