#include "guest-agent/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest-agent/agent.h"
#include "guest-agent/session_private.h"
#include "proto/clock.h"
#include "proto/frame.h"
#include "proto/limits.h"
#include "proto/log.h"

#define READ_MIN (4 * KIB)

static void session_destroy(struct session *s)
{
	struct session_set *set = s->set;

	if (s->peer.exec != NULL)
		exec_detach(&s->peer, !s->cancel_seen && !s->exit_sent);
	if (s->watches_shutdown)
		agent_shutdown_unwatch(set->agent, s);
	snapshot_leave(&s->snapshot);
	ev_io_stop(set->loop, &s->readable);
	ev_io_stop(set->loop, &s->writable);
	ev_timer_stop(set->loop, &s->timer);
	if (s->is_dirty)
		TAILQ_REMOVE(&set->dirty, s, in_dirty);
	TAILQ_REMOVE(&set->all, s, in_all);
	set->count--;
	set->followers -= s->follows;
	set->idle_count -= s->state == SESSION_IDLE;
	close(s->readable.fd);
	free(s->in);
	outq_free(&s->out);
	free(s);
}

void session_touch(struct session *s)
{
	if (s->is_dirty)
		return;
	s->is_dirty = true;
	TAILQ_INSERT_TAIL(&s->set->dirty, s, in_dirty);
}

void session_put(struct session *s, Sandgate__GuestFrame *g)
{
	if (outq_put_message(&s->out, &g->base) < 0) {
		log_error("session", NULL, "out of memory: the session is closed");
		s->broken = true;
	}
	session_touch(s);
}

void session_unhold(struct session *s)
{
	s->holds = false;
	ev_timer_stop(s->set->loop, &s->timer);
}

void session_close_when_sent(struct session *s)
{
	s->state = SESSION_CLOSING;
	session_unhold(s);
	session_touch(s);
}

void session_refuse(struct session *s, const struct err *e, const uint64_t *offset)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Refused r = SANDGATE__REFUSED__INIT;
	Sandgate__Uint64Value right = SANDGATE__UINT64_VALUE__INIT;

	r.code = e->code;
	r.message = (char *)e->msg;
	r.field = (char *)e->field;
	if (offset != NULL) {
		right.value = *offset;
		r.offset = &right;
	}
	g.body_case = SANDGATE__GUEST_FRAME__BODY_REFUSED;
	g.refused = &r;
	session_put(s, &g);
	session_close_when_sent(s);
}

/* ---- reading ---- */

static void leave_idle(struct session *s)
{
	if (s->state != SESSION_IDLE)
		return;
	s->state = SESSION_OPENING;
	s->set->idle_count--;
	ev_timer_set(&s->timer, OPEN_DEADLINE_S, 0);
	ev_timer_start(s->set->loop, &s->timer);
}

/* False: the frame cannot be handled yet. */
static bool take_frame(struct session *s, const struct frame *f)
{
	struct err e = {0};
	bool taken = true;
	Sandgate__HostFrame *h = sandgate__host_frame__unpack(NULL, f->payload_len, f->payload);

	if (h == NULL) {
		err_set(&e, ERR_PROTOCOL, "a frame is no HostFrame");
		session_refuse(s, &e, NULL);
	} else if (s->state == SESSION_SERVING) {
		taken = session_message(s, h);
	} else if (h->body_case == SANDGATE__HOST_FRAME__BODY_OPEN) {
		ev_timer_stop(s->set->loop, &s->timer);
		s->state = SESSION_SERVING;
		session_open(s, h->open);
	} else {
		err_set(&e, ERR_PROTOCOL, "the first frame is not Open");
		session_refuse(s, &e, NULL);
	}
	sandgate__host_frame__free_unpacked(h, NULL);
	return taken;
}

/* Handle whole frames, up to one that has to wait: then the session is not read, and a
 * host that sends more input without waiting for StdinAck is held by its own socket. */
static void take_frames(struct session *s)
{
	size_t done = 0;
	struct frame f;

	s->stalled = false;
	while (s->state == SESSION_OPENING || s->state == SESSION_SERVING) {
		enum frame_status st =
		    frame_parse(s->in + done, s->in_len - done, FRAME_MAX_TO_GUEST, &f);
		if (st == FRAME_TOO_LONG) {
			struct err e = {0};
			err_set(&e, ERR_TOO_LARGE, "a frame is over %u bytes",
			        FRAME_MAX_TO_GUEST);
			session_refuse(s, &e, NULL);
		}
		if (st != FRAME_OK)
			break;
		if (!take_frame(s, &f)) {
			s->stalled = true;
			break;
		}
		done += f.consumed;
	}
	if (s->state == SESSION_CLOSING)
		done = s->in_len; /* what still comes is not heard */
	s->in_len -= done;
	if (s->in_len == 0) {
		free(s->in);
		s->in = NULL;
		s->in_room = 0;
	} else if (done > 0) {
		memmove(s->in, s->in + done, s->in_len);
	}
}

/* The buffer grows with what arrives, never by a length that was only announced. */
static int make_room(struct session *s)
{
	if (s->in_room - s->in_len >= READ_MIN / 2)
		return 0;
	size_t room = s->in_room == 0 ? READ_MIN : s->in_room * 2;
	if (room > FRAME_MAX_TO_GUEST + 2 * READ_MIN)
		room = FRAME_MAX_TO_GUEST + 2 * READ_MIN;
	uint8_t *in = realloc(s->in, room);
	if (in == NULL)
		return -1;
	s->in = in;
	s->in_room = room;
	return 0;
}

static void on_readable(struct ev_loop *loop, ev_io *w, int revents)
{
	struct session *s = w->data;
	(void)loop;
	(void)revents;

	if (make_room(s) < 0) {
		log_error("session", NULL, "out of memory: the session is closed");
		session_destroy(s);
		return;
	}
	ssize_t n = read(w->fd, s->in + s->in_len, s->in_room - s->in_len);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		session_destroy(s);
		return;
	}
	leave_idle(s);
	s->in_len += (size_t)n;
	take_frames(s);
	session_touch(s);
}

/* ---- the loop ---- */

static void session_flush(struct session *s)
{
	session_pull(s);
	if (s->stalled && s->acks_owed == 0)
		take_frames(s);
	if (s->holds)
		return;
	if (s->broken || session_write(s) < 0 ||
	    (s->state == SESSION_CLOSING && outq_len(&s->out) == 0)) {
		session_destroy(s);
		return;
	}
	if (session_has_more(s))
		ev_io_start(s->set->loop, &s->writable);
	else
		ev_io_stop(s->set->loop, &s->writable);
	if (s->stalled)
		ev_io_stop(s->set->loop, &s->readable);
	else
		ev_io_start(s->set->loop, &s->readable);
}

static void on_flush(struct ev_loop *loop, ev_prepare *w, int revents)
{
	struct session_set *set = w->data;
	struct session *s;
	(void)loop;
	(void)revents;

	while ((s = TAILQ_FIRST(&set->dirty)) != NULL) {
		TAILQ_REMOVE(&set->dirty, s, in_dirty);
		s->is_dirty = false;
		session_flush(s);
	}
}

static void on_writable(struct ev_loop *loop, ev_io *w, int revents)
{
	(void)loop;
	(void)revents;
	session_touch(w->data);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct session *s = w->data;
	(void)loop;
	(void)revents;

	if (s->state == SESSION_OPENING) {
		session_destroy(s);
		return;
	}
	s->holds = false;
	session_touch(s);
}

/* ---- the set ---- */

struct session_set *session_set_create(struct agent *a, struct ev_loop *loop)
{
	struct session_set *set = calloc(1, sizeof(*set));
	if (set == NULL)
		return NULL;
	set->agent = a;
	set->loop = loop;
	TAILQ_INIT(&set->all);
	TAILQ_INIT(&set->dirty);
	ev_prepare_init(&set->flush, on_flush);
	set->flush.data = set;
	ev_prepare_start(loop, &set->flush);
	return set;
}

void session_set_destroy(struct session_set *set)
{
	if (set == NULL)
		return;
	while (!TAILQ_EMPTY(&set->all))
		session_destroy(TAILQ_FIRST(&set->all));
	ev_prepare_stop(set->loop, &set->flush);
	free(set);
}

unsigned session_set_count(const struct session_set *set)
{
	return set->count;
}

static bool has_unread(const struct session *s)
{
	char byte;
	return recv(s->readable.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void session_set_suspend(struct session_set *set)
{
	struct session *s, *next;

	for (s = TAILQ_FIRST(&set->all); s != NULL; s = next) {
		next = TAILQ_NEXT(s, in_all);
		if (s->state == SESSION_OPENING || (s->state == SESSION_IDLE && !has_unread(s)))
			session_destroy(s);
		else if (s->peer.exec != NULL)
			session_suspend(s);
		else if (s->follows)
			session_close_when_sent(s);
	}
}

unsigned session_set_leaving(const struct session_set *set)
{
	const struct session *s;
	unsigned count = 0;

	TAILQ_FOREACH (s, &set->all, in_all)
		count += s->state == SESSION_CLOSING;
	return count;
}

void session_set_close_leaving(struct session_set *set)
{
	struct session *s, *next;

	for (s = TAILQ_FIRST(&set->all); s != NULL; s = next) {
		next = TAILQ_NEXT(s, in_all);
		if (s->state == SESSION_CLOSING)
			session_destroy(s);
	}
}

void session_set_close_dead(struct session_set *set)
{
	struct session *s;
	char byte;

	TAILQ_FOREACH (s, &set->all, in_all) {
		ssize_t n = recv(s->readable.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
			continue;
		s->broken = true; /* not destroyed: one of them may be asking for this */
		session_unhold(s);
		session_touch(s);
	}
}

/* One more idle session is coming: of too many the oldest go, but none whose Open may be under
 * way. The loop may not have read yet what it sent, or it came a moment ago. */
static void close_surplus(struct session_set *set)
{
	uint64_t now = clock_mono_ms();
	struct session *s, *next;

	for (s = TAILQ_FIRST(&set->all); s != NULL; s = next) {
		next = TAILQ_NEXT(s, in_all);
		if (set->idle_count < SESSIONS_UNOPENED_MAX ||
		    now - s->born_ms < SESSION_YOUNG_MS)
			return;
		if (s->state == SESSION_IDLE && !has_unread(s))
			session_destroy(s);
	}
}

void session_create(struct session_set *set, int fd)
{
	close_surplus(set);
	struct session *s = set->count < SESSIONS_MAX ? calloc(1, sizeof(*s)) : NULL;
	if (s == NULL) {
		log_warn("session", NULL, "a connection is refused: too many, or no memory");
		close(fd);
		return;
	}
	s->set = set;
	s->born_ms = clock_mono_ms();
	ev_io_init(&s->readable, on_readable, fd, EV_READ);
	ev_io_init(&s->writable, on_writable, fd, EV_WRITE);
	ev_timer_init(&s->timer, on_timer, 0, 0);
	s->readable.data = s->writable.data = s->timer.data = s;
	session_ops_init(s);
	TAILQ_INSERT_TAIL(&set->all, s, in_all);
	set->count++;
	set->idle_count++;
	ev_io_start(set->loop, &s->readable);
}
