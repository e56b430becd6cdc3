#include "host-bridge/link/transport.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/vm_sockets.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The handshake's answer "OK <number>\n" is at most this long; what a guest may have said
 * behind it in the same read is passed on. */
#define ANSWER_MAX 32
#define READ_MAX 4096

struct transport_try {
	struct ev_loop *loop;
	struct endpoint to;
	int fd;
	bool connected;
	ev_io io;
	ev_timer deadline;
	struct err failure; /* of the connect call itself, told when the timer fires */
	uint8_t in[READ_MAX];
	size_t in_len;
	void (*on_done)(int, const uint8_t *, size_t, const struct err *, void *);
	void *arg;
};

void transport_cancel(struct transport_try *t)
{
	if (t == NULL)
		return;
	ev_io_stop(t->loop, &t->io);
	ev_timer_stop(t->loop, &t->deadline);
	if (t->fd >= 0)
		close(t->fd);
	free(t);
}

static void fail(struct transport_try *t, const struct err *why)
{
	struct err e = *why;
	void (*on_done)(int, const uint8_t *, size_t, const struct err *, void *) = t->on_done;
	void *arg = t->arg;
	transport_cancel(t);
	on_done(-1, NULL, 0, &e, arg);
}

static void fail_errno(struct transport_try *t, int errnum, const char *what)
{
	struct err e;
	err_errno(&e, ERR_UNREACHABLE, errnum, "%s", what);
	fail(t, &e);
}

static void succeed(struct transport_try *t, size_t early_from)
{
	int fd = t->fd;
	t->fd = -1;
	ev_io_stop(t->loop, &t->io);
	ev_timer_stop(t->loop, &t->deadline);
	t->on_done(fd, t->in + early_from, t->in_len - early_from, NULL, t->arg);
	free(t);
}

/* One write and then silence until the answer: some devices read the line with a single
 * read, and drop what comes behind it. */
static void say_connect(struct transport_try *t)
{
	char line[ANSWER_MAX];
	int n = snprintf(line, sizeof(line), "CONNECT %" PRIu32 "\n", t->to.port);
	if (send(t->fd, line, (size_t)n, MSG_NOSIGNAL) != n) {
		fail_errno(t, errno, "the handshake could not be sent");
		return;
	}
	ev_io_stop(t->loop, &t->io);
	ev_io_set(&t->io, t->fd, EV_READ);
	ev_io_start(t->loop, &t->io);
}

/* Length of the answer with its newline; 0 when more is needed, -1 when it is none. The
 * number in it means nothing to us. */
static int parse_answer(const uint8_t *in, size_t len)
{
	static const char ok[] = "OK ";
	size_t i = 0;
	for (; i < len && i < 3; i++)
		if (in[i] != (uint8_t)ok[i])
			return -1;
	for (; i < len && i < ANSWER_MAX; i++) {
		if (in[i] == '\n')
			return i > 3 ? (int)i + 1 : -1;
		if (in[i] < '0' || in[i] > '9')
			return -1;
	}
	return i < ANSWER_MAX ? 0 : -1;
}

static void read_answer(struct transport_try *t)
{
	ssize_t n = read(t->fd, t->in + t->in_len, sizeof(t->in) - t->in_len);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		fail_errno(t, n < 0 ? errno : ECONNREFUSED, "no agent listens in the guest");
		return;
	}
	t->in_len += (size_t)n;
	int line = parse_answer(t->in, t->in_len);
	if (line < 0) {
		struct err e;
		err_set(&e, ERR_PROTOCOL, "the socket does not speak the CONNECT handshake");
		fail(t, &e);
	} else if (line > 0) {
		succeed(t, (size_t)line);
	}
}

static void on_io(struct ev_loop *loop, ev_io *w, int revents)
{
	struct transport_try *t = w->data;
	(void)loop;
	(void)revents;
	if (t->connected) {
		read_answer(t);
		return;
	}
	int errnum = 0;
	socklen_t len = sizeof(errnum);
	if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &errnum, &len) < 0)
		errnum = errno;
	if (errnum != 0) {
		fail_errno(t, errnum, "connect");
		return;
	}
	t->connected = true;
	if (t->to.kind == TRANSPORT_HYBRID)
		say_connect(t);
	else
		succeed(t, 0);
}

static void on_deadline(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct transport_try *t = w->data;
	(void)loop;
	(void)revents;
	if (t->failure.code == ERR_NONE)
		err_set(&t->failure, ERR_UNREACHABLE, "the guest did not answer in time");
	fail(t, &t->failure);
}

/* Start the connect; 0 also while it is in progress, -1 with t->failure. */
static int start(struct transport_try *t)
{
	union {
		struct sockaddr any;
		struct sockaddr_un un;
		struct sockaddr_vm vm;
	} a = {0};
	socklen_t len;
	if (t->to.kind == TRANSPORT_VSOCK) {
		a.vm.svm_family = AF_VSOCK;
		a.vm.svm_cid = t->to.cid;
		a.vm.svm_port = t->to.port;
		len = sizeof(a.vm);
	} else {
		a.un.sun_family = AF_UNIX;
		memcpy(a.un.sun_path, t->to.path, sizeof(a.un.sun_path));
		len = sizeof(a.un);
	}
	t->fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (t->fd < 0)
		return err_errno(&t->failure, err_of_errno(errno, ERR_UNREACHABLE), errno,
		                 "socket");
	if (connect(t->fd, &a.any, len) < 0 && errno != EINPROGRESS)
		return err_errno(&t->failure, ERR_UNREACHABLE, errno, "connect");
	return 0;
}

struct transport_try *
transport_connect(struct ev_loop *loop, const struct endpoint *to, unsigned deadline_ms,
                  void (*on_done)(int fd, const uint8_t *early, size_t early_len,
                                  const struct err *e, void *arg),
                  void *arg, struct err *e)
{
	struct transport_try *t = calloc(1, sizeof(*t));
	if (t == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	t->loop = loop;
	t->to = *to;
	t->to.path[sizeof(t->to.path) - 1] = '\0';
	t->on_done = on_done;
	t->arg = arg;
	bool started = start(t) == 0;
	ev_io_init(&t->io, on_io, t->fd, EV_WRITE);
	ev_timer_init(&t->deadline, on_deadline, started ? deadline_ms / 1e3 : 0., 0.);
	t->io.data = t->deadline.data = t;
	if (started)
		ev_io_start(loop, &t->io);
	ev_timer_start(loop, &t->deadline);
	return t;
}
