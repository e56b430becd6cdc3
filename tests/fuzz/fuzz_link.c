/*
 * A link, and a guest that says whatever the input says. The first byte chooses the transport
 * and whether the owner pauses at each frame; what the link makes of the rest must not
 * depend on where the stream is cut.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "host-bridge/link/link.h"

struct result {
	unsigned opened, frames, closed;
	enum err_code code;
	uint32_t hash; /* of the kinds of frames, in order */
};

struct owner {
	struct result r;
	bool pauses;
};

static struct ev_loop *loop;
static int listener = -1;
static struct endpoint here;

static void on_opened(struct link *l, const Sandgate__Opened *o, void *arg)
{
	struct owner *w = arg;
	(void)l;
	assert(o->protocol_version != 0 && w->r.frames == 0);
	w->r.opened++;
}

static void on_frame(struct link *l, const Sandgate__GuestFrame *f, void *arg)
{
	struct owner *w = arg;
	assert(w->r.opened == 1 && w->r.closed == 0);
	w->r.frames++;
	w->r.hash = (w->r.hash ^ (uint32_t)f->body_case) * 16777619u;
	if (w->pauses) {
		link_pause(l);
		link_resume(l);
	}
}

static void on_closed(struct link *l, const struct err *why, bool sent,
                      const Sandgate__Refused *refused, void *arg)
{
	struct owner *w = arg;
	(void)l;
	(void)refused;
	assert(sent && why->code != ERR_NONE && memchr(why->msg, '\0', sizeof(why->msg)));
	w->r.closed++;
	w->r.code = why->code;
}

static void start(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	snprintf(a.sun_path, sizeof(a.sun_path), "/tmp/fuzz_link.%d", (int)getpid());
	memcpy(here.path, a.sun_path, sizeof(here.path));
	unlink(a.sun_path);
	loop = ev_loop_new(0);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(listener, 8) < 0)
		abort();
}

static void say(int fd, const uint8_t *data, size_t len)
{
	/* A link that has given up has closed its end: that is seen in the result. */
	if (len > 0 && send(fd, data, len, MSG_NOSIGNAL) < 0)
		return;
	ev_run(loop, EVRUN_NOWAIT);
}

static struct result run(const uint8_t *data, size_t size, uint8_t how, size_t piece)
{
	static const struct link_handlers handlers = {
	    .on_opened = on_opened, .on_frame = on_frame, .on_closed = on_closed};
	struct owner w = {.pauses = how & 2};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Ping ping = SANDGATE__PING__INIT;
	open.op_case = SANDGATE__OPEN__OP_PING;
	open.ping = &ping;
	here.kind = how & 1 ? TRANSPORT_HYBRID : TRANSPORT_UNIX;
	struct link *l = link_create(loop, &here, 5000, NULL);
	if (l == NULL || link_open(l, &open, 5000, &handlers, &w, NULL) < 0)
		abort();
	int fd = accept(listener, NULL, NULL);
	if (here.kind == TRANSPORT_HYBRID)
		say(fd, (const uint8_t *)"OK 1\n", 5);
	/* The Open must be out before the guest speaks, or the order would be wrong. */
	uint8_t first;
	while (recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
		ev_run(loop, EVRUN_NOWAIT);
	while (here.kind == TRANSPORT_HYBRID && first != 0) {
		if (recv(fd, &first, 1, 0) <= 0)
			abort();
		if (first != '\n')
			continue;
		while (recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
			ev_run(loop, EVRUN_NOWAIT);
	}
	for (size_t at = 0; at < size; at += piece)
		say(fd, data + at, size - at < piece ? size - at : piece);
	close(fd);
	while (w.r.closed == 0)
		ev_run(loop, EVRUN_NOWAIT);
	assert(w.r.closed == 1);
	return w.r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (listener < 0)
		start();
	if (size < 2 || size > 64 * 1024)
		return 0;
	struct result whole = run(data + 2, size - 2, data[0], size);
	struct result cut = run(data + 2, size - 2, data[0], data[1] % 31 + 1u);
	assert(whole.opened == cut.opened && whole.frames == cut.frames);
	assert(whole.code == cut.code && whole.hash == cut.hash);
	return 0;
}
