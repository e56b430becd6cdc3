/* What is sent to the guest: queued, and written as the socket takes it. */
#include <errno.h>
#include <sys/socket.h>

#include "host-bridge/link/link_private.h"
#include "host-bridge/steady.h"
#include "proto/frame.h"

void link_flush(struct link *l)
{
	size_t len = link_buf_len(&l->out);
	if (len == 0 || l->write_dead || l->fd < 0)
		return;
	ssize_t n =
	    send(l->fd, link_buf_data(&l->out), len < LINK_TURN_MAX ? len : LINK_TURN_MAX,
	         MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0) {
		if (errno != EAGAIN && errno != EINTR)
			l->write_dead = true;
		return;
	}
	link_buf_take(&l->out, (size_t)n);
	l->sent = l->sent || link_buf_taken(&l->out) >= l->open_size;
	if (l->sent && !(l->insists && l->state == OPENING))
		link_buf_compact(&l->out);
}

bool link_writable(struct link *l)
{
	link_flush(l);
	link_update_io(l);
	if (!l->room_wanted || link_buf_len(&l->out) >= LINK_LOW_WATER)
		return true;
	l->room_wanted = false;
	l->calls++;
	if (l->handlers != NULL && l->handlers->on_room != NULL)
		l->handlers->on_room(l, l->owner);
	l->calls--;
	if (!l->doomed)
		return true;
	link_free(l);
	return false;
}

int link_queue(struct link *l, const Sandgate__HostFrame *f)
{
	size_t size = frame_size(&f->base);
	uint8_t *to = link_buf_room(&l->out, size);
	if (to == NULL)
		return -1;
	link_buf_put(&l->out, frame_write(&f->base, to));
	return 0;
}

void link_send_open(struct link *l)
{
	l->state = OPENING;
	link_put_off(l);
	l->try_due = steady_now() + l->try_ms / 1e3;
	link_update_due(l);
	link_flush(l);
}

int link_send(struct link *l, const Sandgate__HostFrame *f)
{
	bool idle = link_buf_len(&l->out) == 0;
	if (l->state == ENDED)
		return 0;
	if (link_queue(l, f) < 0) { /* who said it must not wait for an answer for ever */
		l->lacks = true;
		link_timer_in(l, &l->kick, 0);
		return -1;
	}
	if (idle && l->state != CONNECTING)
		link_flush(l);
	link_update_io(l);
	l->room_wanted = link_buf_len(&l->out) > LINK_HIGH_WATER;
	return l->room_wanted;
}
