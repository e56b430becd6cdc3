/* From a session's queue and its exec's ring to its socket, in one write. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "guest-agent/session_private.h"
#include "proto/frame.h"
#include "proto/limits.h"

/* What one write may carry: queued frames, pieces of output, Exit. Headers, gaps and Exit
 * are encoded here; output lies in the ring. */
struct batch {
	struct iovec iov[2 * SESSION_WRITE_FRAMES + 2];
	int parts;
	size_t bytes;
	struct {
		int part;                 /* its first */
		struct ring_cursor after; /* the cursor once it is sent */
		uint8_t header[FRAME_OUTPUT_HEADER_MAX];
	} pieces[SESSION_WRITE_FRAMES];
	unsigned piece_count;
	uint8_t exit[2 * KIB];
	bool has_exit;
};

static void batch_add(struct batch *b, const void *data, size_t len)
{
	b->iov[b->parts++] = (struct iovec){(void *)(uintptr_t)data, len};
	b->bytes += len;
}

static size_t gap_frame(const struct ring_piece *p, uint8_t *out)
{
	Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
	Sandgate__Gap gap = SANDGATE__GAP__INIT;
	gap.sequence = p->seq;
	gap.stream = (Sandgate__Stream)p->stream;
	gap.bytes = p->len;
	gap.both = p->both;
	g.body_case = SANDGATE__GUEST_FRAME__BODY_GAP;
	g.gap = &gap;
	return frame_write(&g.base, out);
}

static void batch_fill(struct batch *b, const struct session *s)
{
	b->parts = 0;
	b->bytes = 0;
	b->piece_count = 0;
	b->has_exit = false;
	if (outq_len(&s->out) > 0)
		batch_add(b, outq_data(&s->out), outq_len(&s->out));
	if (!s->started_sent || s->exit_sent || s->state != SESSION_SERVING)
		return;

	struct ring_cursor at = s->peer.cursor;
	struct ring_piece p;
	while (b->piece_count < SESSION_WRITE_FRAMES && b->bytes < SESSION_WRITE_BUDGET &&
	       ring_next(exec_ring(s->peer.exec), &at, &p)) {
		uint8_t *header = b->pieces[b->piece_count].header;
		b->pieces[b->piece_count].part = b->parts;
		b->pieces[b->piece_count++].after = at;
		if (p.data == NULL) {
			batch_add(b, header, gap_frame(&p, header));
		} else {
			batch_add(b, header,
			          frame_output_header(header, p.seq, p.stream, p.len));
			batch_add(b, p.data, p.len);
		}
	}
	if (session_wants_exit(s, &at)) {
		Sandgate__GuestFrame g = SANDGATE__GUEST_FRAME__INIT;
		Sandgate__Exit x = SANDGATE__EXIT__INIT;
		session_exit_frame(s, &g, &x);
		if (frame_size(&g.base) <= sizeof(b->exit)) {
			batch_add(b, b->exit, frame_write(&g.base, b->exit));
			b->has_exit = true;
		}
	}
}

/* `sent` bytes left. A frame that left in part is kept as bytes, so that its rest follows
 * whatever becomes of the ring; frames behind it are made anew next time. */
static int batch_account(struct batch *b, struct session *s, size_t sent)
{
	size_t queued = outq_len(&s->out);
	size_t first = sent < queued ? sent : queued, at = queued;

	outq_drop(&s->out, first);
	if (sent < queued)
		return 0;
	for (unsigned i = 0; i <= b->piece_count; i++) {
		bool is_exit = i == b->piece_count;
		if (sent <= at || (is_exit && !b->has_exit))
			break;
		int from = is_exit ? b->parts - 1 : b->pieces[i].part;
		int to = is_exit                  ? b->parts
		         : i + 1 < b->piece_count ? b->pieces[i + 1].part
		                                  : b->parts - b->has_exit;
		if (is_exit)
			s->exit_sent = true;
		else
			s->peer.cursor = b->pieces[i].after;
		for (int k = from; k < to; k++) {
			size_t len = b->iov[k].iov_len;
			size_t gone = sent > at ? sent - at : 0;
			if (gone < len &&
			    outq_put_bytes(&s->out, (uint8_t *)b->iov[k].iov_base + gone,
			                   len - gone) < 0)
				return -1;
			at += len;
		}
	}
	return 0;
}

int session_write(struct session *s)
{
	struct batch b;
	batch_fill(&b, s);
	if (b.bytes == 0)
		return 0;
	struct msghdr msg = {.msg_iov = b.iov, .msg_iovlen = (size_t)b.parts};
	ssize_t n = sendmsg(s->readable.fd, &msg, MSG_NOSIGNAL);
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		return -1;
	if (n > 0 && batch_account(&b, s, (size_t)n) < 0)
		return -1;
	if (n > 0 && s->peer.exec != NULL)
		exec_consumed(&s->peer);
	return 0;
}

bool session_has_more(const struct session *s)
{
	return outq_len(&s->out) > 0 ||
	       (s->state == SESSION_SERVING && s->started_sent && !s->exit_sent &&
	        (s->peer.cursor.seq < ring_end(exec_ring(s->peer.exec)) ||
	         session_wants_exit(s, &s->peer.cursor)));
}
