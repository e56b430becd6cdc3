#include "host-bridge/link/link.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/link/link_private.h"
#include "host-bridge/steady.h"
#include "proto/frame.h"
#include "proto/limits.h"

void link_timer_in(struct link *l, ev_timer *w, double seconds)
{
	ev_timer_stop(l->loop, w);
	ev_timer_set(w, seconds > 0 ? seconds : 0., 0.);
	ev_timer_start(l->loop, w);
}

/* The one place that says which deadline counts. */
void link_update_due(struct link *l)
{
	double due = 0;
	if (l->pass.waits)
		due = l->turn_due;
	else if (l->state == CONNECTING)
		due = l->answer_due > 0 && l->answer_due < l->connect_due ? l->answer_due
		                                                          : l->connect_due;
	else if (l->state == OPENING && l->insists)
		due = l->try_due < l->answer_due ? l->try_due : l->answer_due;
	else if (l->state == OPENING || (l->state == OPEN && !l->paused))
		due = l->answer_due;
	if (due > 0)
		link_timer_in(l, &l->due, due - steady_now());
	else
		ev_timer_stop(l->loop, &l->due);
}

bool link_put_off(struct link *l)
{
	double still = l->pass.in ? link_gate_still(l->pass.gate) : 0;
	double more = l->pass.in ? still - l->still : 0;
	if (more <= 0)
		return false;
	l->still = still;
	l->connect_due += more;
	l->try_due += more;
	if (l->answer_due > 0)
		l->answer_due += more;
	return true;
}

/* Back-pressure is for what follows Opened: a paused owner still gets its answer. */
bool link_held(const struct link *l)
{
	return l->paused && l->state == OPEN;
}

bool link_frame_waits(const struct link *l)
{
	struct frame f;
	return frame_parse(link_buf_data(&l->in), link_buf_len(&l->in), FRAME_MAX_TO_HOST,
	                   &f) != FRAME_NEED_MORE;
}

/* The one place that says what the descriptor is watched for. */
void link_update_io(struct link *l)
{
	int want = 0;
	if (l->fd >= 0) {
		if (!link_held(l) || (!l->data_waits && !link_frame_waits(l)))
			want |= EV_READ;
		if (link_buf_len(&l->out) > 0 && !l->write_dead)
			want |= EV_WRITE;
	}
	if (ev_is_active(&l->io) && (l->io.events & (EV_READ | EV_WRITE)) == want)
		return;
	ev_io_stop(l->loop, &l->io);
	if (want != 0) {
		ev_io_set(&l->io, l->fd, want);
		ev_io_start(l->loop, &l->io);
	}
}

static void hang_up(struct link *l)
{
	ev_io_stop(l->loop, &l->io);
	ev_timer_stop(l->loop, &l->kick);
	ev_timer_stop(l->loop, &l->due);
	transport_cancel(l->connecting);
	l->connecting = NULL;
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
	link_buf_free(&l->in);
}

void link_free(struct link *l)
{
	hang_up(l);
	link_pass_leave(&l->pass);
	link_buf_free(&l->out);
	l->doomed = true;
	if (l->calls == 0)
		free(l);
}

void link_end(struct link *l, const struct err *why, const Sandgate__Refused *refused)
{
	hang_up(l);
	link_pass_leave(&l->pass);
	l->state = ENDED;
	l->calls++;
	if (l->handlers != NULL) {
		const struct link_handlers *h = l->handlers;
		l->handlers = NULL;
		h->on_closed(l, why, l->sent, refused, l->owner);
		l->doomed = true;
	} else if (l->on_end != NULL) {
		void (*on_end)(struct link *, void *) = l->on_end;
		l->on_end = NULL;
		on_end(l, l->on_end_arg);
	}
	l->calls--;
	if (l->doomed)
		link_free(l);
}

void link_end_with(struct link *l, enum err_code code, const char *msg)
{
	struct err e = {0};
	err_set(&e, code, "%s", msg);
	link_end(l, &e, NULL);
}

static void open_again(struct link *l)
{
	hang_up(l);
	link_buf_rewind(&l->out);
	if (l->insists)
		l->connect_due = l->answer_due;
	link_connect_later(l);
}

/* A guest that is merely slow is not asked ever again before it can answer. */
static void try_longer(struct link *l)
{
	l->try_ms *= 2;
	open_again(l);
}

/* The peer hung up. What was never handed over as a whole cannot have run: try again. */
void link_peer_gone(struct link *l)
{
	if (l->state == LINGERING) {
		link_free(l);
	} else if (l->state == OPENING && (!l->sent || l->insists)) {
		open_again(l);
	} else {
		link_end_with(l, ERR_SANDBOX_LOST, "the guest hung up");
	}
}

static void on_io(struct ev_loop *loop, ev_io *w, int revents)
{
	struct link *l = w->data;
	(void)loop;
	if ((revents & EV_WRITE) && !link_writable(l))
		return;
	if (!(revents & EV_READ) || l->fd < 0)
		return;
	if (l->state == LINGERING)
		link_discard(l);
	else
		link_readable(l);
}

static void on_kick(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct link *l = w->data;
	(void)loop;
	(void)revents;
	if (l->lacks)
		link_end_with(l, ERR_CAPACITY, "out of memory");
	else if (l->state == CONNECTING)
		link_connect(l);
	else
		link_parse(l);
}

static void on_due(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct link *l = w->data;
	(void)loop;
	(void)revents;
	if (l->state == LINGERING) {
		link_free(l);
		return;
	}
	if (link_put_off(l)) {
		link_update_due(l);
		if (l->pass.gate->closed)
			link_timer_in(l, &l->due, GATE_LOOK_S); /* or later */
		return;
	}
	if (l->pass.waits)
		link_turn_late(l);
	else if (l->state == OPENING && l->insists && l->try_due < l->answer_due)
		try_longer(l);
	else if (l->state == CONNECTING && l->last.code == ERR_CAPACITY)
		link_end_with(l, ERR_CAPACITY, l->last.msg);
	else if (l->state == CONNECTING)
		link_end_with(l, ERR_UNREACHABLE,
		              l->last.code != ERR_NONE ? l->last.msg
		                                       : "the guest did not answer in time");
	else
		link_end_with(l, ERR_TIMEOUT, "the agent did not answer in time");
}

struct link *link_create(struct ev_loop *loop, const struct endpoint *to, unsigned deadline_ms,
                         struct err *e)
{
	return link_create_behind(NULL, false, loop, to, deadline_ms, e);
}

struct link *link_create_behind(struct link_gate *g, bool urgent, struct ev_loop *loop,
                                const struct endpoint *to, unsigned deadline_ms, struct err *e)
{
	struct link *l = calloc(1, sizeof(*l));
	if (l == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	l->loop = loop;
	l->pass = (struct link_pass){.gate = g, .urgent = urgent};
	l->to = to;
	l->fd = -1;
	l->connect_ms = deadline_ms;
	l->connect_due = steady_now() + deadline_ms / 1e3;
	l->backoff_ms = CONNECT_BACKOFF_MIN_MS;
	ev_init(&l->io, on_io);
	ev_timer_init(&l->kick, on_kick, 0., 0.);
	ev_timer_init(&l->due, on_due, 0., 0.);
	l->io.data = l->kick.data = l->due.data = l;
	l->state = CONNECTING;
	link_update_due(l);
	link_connect(l);
	return l;
}

int link_open(struct link *l, Sandgate__Open *open, unsigned deadline_ms,
              const struct link_handlers *h, void *owner, struct err *e)
{
	Sandgate__HostFrame f = SANDGATE__HOST_FRAME__INIT;
	open->protocol_version = PROTOCOL_VERSION;
	open->token.data = (uint8_t *)(uintptr_t)l->to->token;
	open->token.len = strlen(l->to->token);
	f.body_case = SANDGATE__HOST_FRAME__BODY_OPEN;
	f.open = open;
	l->open_size = frame_size(&f.base);
	if (l->open_size > FRAME_HEADER + FRAME_MAX_TO_GUEST)
		return err_set(e, ERR_TOO_LARGE, "the request is over %u bytes",
		               FRAME_MAX_TO_GUEST);
	if (link_queue(l, &f) < 0)
		return err_set(e, ERR_CAPACITY, "out of memory");
	l->handlers_copy = *h;
	l->handlers = &l->handlers_copy;
	l->owner = owner;
	l->on_end = NULL;
	l->open_ms = deadline_ms;
	link_put_off(l);
	l->answer_due = steady_now() + deadline_ms / 1e3;
	if (l->state != CONNECTING)
		l->connect_due = l->answer_due;
	if (l->state == READY) {
		link_send_open(l);
		link_update_io(l);
	} else if (l->state == ENDED) {
		l->backoff_ms = CONNECT_BACKOFF_MIN_MS;
		l->state = CONNECTING;
		link_update_due(l);
		link_connect(l);
	} else {
		link_update_due(l);
	}
	return 0;
}

void link_expect(struct link *l, unsigned deadline_ms)
{
	if (l->state != OPEN)
		return;
	l->expect_ms = deadline_ms;
	link_put_off(l);
	l->answer_due = deadline_ms > 0 ? steady_now() + deadline_ms / 1e3 : 0;
	link_update_due(l);
}

void link_pause(struct link *l)
{
	l->paused = true;
	l->data_waits = false;
	link_update_due(l);
	link_update_io(l);
}

void link_resume(struct link *l)
{
	if (!l->paused)
		return;
	l->paused = false;
	link_expect(l, l->expect_ms);
	link_update_io(l);
	if (l->fd >= 0 && link_buf_len(&l->in) > 0)
		link_timer_in(l, &l->kick, 0);
}

void link_insist(struct link *l)
{
	l->insists = true;
	l->try_ms = CONNECT_TRY_MS;
}

bool link_is_in_line(const struct link *l)
{
	return l->pass.waits;
}

bool link_is_ready(const struct link *l)
{
	return l->state == READY;
}

void link_watch(struct link *l, void (*on_end)(struct link *l, void *arg), void *arg)
{
	l->on_end = on_end;
	l->on_end_arg = arg;
}

void link_destroy(struct link *l, bool flush)
{
	if (l == NULL)
		return;
	l->handlers = NULL;
	l->on_end = NULL;
	if (!flush || l->fd < 0 || !l->sent) {
		link_free(l);
		return;
	}
	link_pass_leave(&l->pass);
	link_flush(l);
	l->state = LINGERING;
	l->paused = false;
	ev_timer_stop(l->loop, &l->kick);
	link_buf_free(&l->in);
	link_timer_in(l, &l->due, LINK_LINGER_MS / 1e3);
	link_update_io(l);
}
