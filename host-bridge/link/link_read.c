/* What a link makes of a guest's bytes: frames, in the only order that is right. All of it
 * is attacker input. */
#include <errno.h>
#include <sys/socket.h>

#include "host-bridge/link/link_private.h"
#include "host-bridge/link/link_unpack.h"
#include "proto/frame.h"
#include "proto/limits.h"

#define IN_MAX (FRAME_HEADER + FRAME_MAX_TO_HOST)

/* Codes about the caller's own token would tell an HTTP client of a fault that is not its. */
static enum err_code refusal_code(uint32_t number)
{
	enum err_code code = err_from_wire(number);
	switch (code) {
	case ERR_MISSING_TOKEN:
	case ERR_INVALID_TOKEN:
	case ERR_FORBIDDEN:
		return ERR_INCOMPATIBLE;
	case ERR_SANDBOX_NOT_FOUND:
	case ERR_SANDBOX_GONE:
	case ERR_SANDBOX_LOST:
	case ERR_ROUTE_NOT_FOUND:
	case ERR_METHOD_NOT_ALLOWED:
		return ERR_PROTOCOL;
	default:
		return code;
	}
}

/* The guest's text, made printable ASCII. */
static void copy_text(char *out, size_t room, const char *in)
{
	size_t n = 0;
	for (; in[n] != '\0' && n + 1 < room; n++)
		out[n] = in[n] >= 0x20 && in[n] < 0x7f ? in[n] : '?';
	out[n] = '\0';
}

static void refused(struct link *l, const Sandgate__Refused *r)
{
	struct err e = {.code = refusal_code(r->code)};
	copy_text(e.msg, sizeof(e.msg), r->message);
	copy_text(e.field, sizeof(e.field), r->field);
	link_end(l, &e, r);
}

static void opened(struct link *l, const Sandgate__Opened *o)
{
	if (o->protocol_version < PROTOCOL_VERSION_MIN ||
	    o->protocol_version > PROTOCOL_VERSION) {
		link_end_with(l, ERR_INCOMPATIBLE, "the agent speaks another protocol version");
		return;
	}
	l->state = OPEN;
	link_pass_opened(&l->pass);
	link_expect(l, 0);
	if (l->handlers->on_opened != NULL)
		l->handlers->on_opened(l, o, l->owner);
}

/* One frame, in the only order that is right. The caller has raised `calls`. */
static void dispatch(struct link *l, const Sandgate__GuestFrame *f)
{
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_REFUSED)
		refused(l, f->refused);
	else if (l->state == OPENING && l->sent &&
	         f->body_case == SANDGATE__GUEST_FRAME__BODY_OPENED)
		opened(l, f->opened);
	else if (l->state != OPEN || f->body_case == SANDGATE__GUEST_FRAME__BODY_OPENED)
		link_end_with(l, ERR_PROTOCOL, "the agent's frames came out of order");
	else if (f->body_case != SANDGATE__GUEST_FRAME__BODY__NOT_SET)
		l->handlers->on_frame(l, f, l->owner);
}

/* Take whole frames from `in`, as long as the owner wants them. */
void link_parse(struct link *l)
{
	struct frame f;
	l->calls++;
	while (!l->doomed && l->fd >= 0 && !link_held(l)) {
		enum frame_status s = frame_parse(link_buf_data(&l->in), link_buf_len(&l->in),
		                                  FRAME_MAX_TO_HOST, &f);
		if (s == FRAME_NEED_MORE)
			break;
		Sandgate__GuestFrame *g = NULL;
		bool lacks = false;
		if (s == FRAME_OK)
			g = link_unpack(f.payload, f.payload_len, &lacks);
		if (lacks) {
			link_unpack_free(g);
			link_end_with(l, ERR_CAPACITY, "out of memory");
			break;
		}
		if (g == NULL) {
			link_end_with(l, ERR_PROTOCOL, "the agent sent garbage");
			break;
		}
		link_buf_take(&l->in, f.consumed);
		dispatch(l, g);
		link_unpack_free(g);
	}
	l->calls--;
	if (l->doomed) {
		link_free(l);
		return;
	}
	link_buf_compact(&l->in);
	link_update_io(l);
}

void link_discard(struct link *l)
{
	char sink[4096];
	ssize_t n = recv(l->fd, sink, sizeof(sink), MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		link_peer_gone(l);
}

/* Find out whether it is a hang-up, without taking anything. */
static void readable_while_held(struct link *l)
{
	char peeked;
	ssize_t n = link_frame_waits(l) ? 1 : recv(l->fd, &peeked, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
		link_peer_gone(l);
		return;
	}
	l->data_waits = n > 0;
	link_update_io(l);
}

void link_readable(struct link *l)
{
	if (link_held(l)) {
		readable_while_held(l);
		return;
	}
	size_t room = IN_MAX - link_buf_len(&l->in);
	uint8_t *to = link_buf_room(&l->in, room < LINK_TURN_MAX ? room : LINK_TURN_MAX);
	if (to == NULL) {
		link_end_with(l, ERR_CAPACITY, "out of memory");
		return;
	}
	ssize_t n = recv(l->fd, to, room < LINK_TURN_MAX ? room : LINK_TURN_MAX, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		link_peer_gone(l);
		return;
	}
	link_buf_put(&l->in, (size_t)n);
	link_parse(l);
}
