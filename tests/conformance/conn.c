#include "tests/conformance/conn.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#include "proto/frame.h"
#include "proto/limits.h"
#include "tests/conformance/check.h"

struct conn {
	int fd;
	size_t len;
	uint8_t in[FRAME_HEADER + FRAME_MAX_TO_HOST];
};

static int parse_number(const char *s, uint32_t *out)
{
	char *end;

	errno = 0;
	unsigned long n = strtoul(s, &end, 10);
	if (errno || end == s || *end || n > UINT32_MAX)
		return -1;
	*out = (uint32_t)n;
	return 0;
}

static int parse_path(const char *s, size_t len, struct target *out, const char **why)
{
	if (len == 0 || len >= sizeof(out->path)) {
		*why = "the path is empty or longer than a socket address holds";
		return -1;
	}
	memcpy(out->path, s, len);
	out->path[len] = '\0';
	return 0;
}

static int parse_vsock(const char *s, struct target *out, const char **why)
{
	char cid[16];
	const char *colon = strchr(s, ':');

	*why = "expected vsock:CID:PORT";
	if (!colon || (size_t)(colon - s) >= sizeof(cid))
		return -1;
	memcpy(cid, s, (size_t)(colon - s));
	cid[colon - s] = '\0';
	if (parse_number(cid, &out->cid) || parse_number(colon + 1, &out->port))
		return -1;
	*why = "CID 2 is the host of this machine";
	return out->cid == VMADDR_CID_HOST ? -1 : 0;
}

int target_parse(const char *spec, struct target *out, const char **why)
{
	const char *rest = strchr(spec, ':');

	*out = (struct target){.port = AGENT_PORT};
	*why = "expected unix:PATH, hybrid:PATH[:PORT] or vsock:CID:PORT";
	if (!rest++)
		return -1;
	if (strncmp(spec, "unix:", 5) == 0) {
		out->kind = TARGET_UNIX;
		return parse_path(rest, strlen(rest), out, why);
	}
	if (strncmp(spec, "vsock:", 6) == 0) {
		out->kind = TARGET_VSOCK;
		return parse_vsock(rest, out, why);
	}
	if (strncmp(spec, "hybrid:", 7) != 0)
		return -1;
	out->kind = TARGET_HYBRID;
	const char *port = strrchr(rest, ':');
	if (!port || parse_number(port + 1, &out->port))
		port = rest + strlen(rest);
	return parse_path(rest, (size_t)(port - rest), out, why);
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static bool wait_for(int fd, short events, int64_t deadline)
{
	struct pollfd p = {.fd = fd, .events = events};
	int64_t left;

	while ((left = deadline - now_ms()) >= 0) {
		int n = poll(&p, 1, (int)(left < INT_MAX ? left : INT_MAX));
		if (n > 0)
			return true;
		if (n < 0 && errno != EINTR)
			fail("poll: %s", strerror(errno));
	}
	return false;
}

/* "CONNECT <port>\n" answered by "OK <number>\n", read byte by byte so that nothing of
 * what follows is taken. */
static void hybrid_handshake(int fd, uint32_t port)
{
	char line[32];
	size_t n = 0;
	int64_t deadline = now_ms() + CONN_WAIT_MS;

	if (dprintf(fd, "CONNECT %u\n", port) < 0)
		fail("hybrid handshake: %s", strerror(errno));
	while (n < sizeof(line) - 1) {
		if (!wait_for(fd, POLLIN, deadline))
			fail("hybrid handshake: no answer");
		if (read(fd, line + n, 1) != 1)
			fail("hybrid handshake: the port is closed");
		if (line[n++] == '\n')
			break;
	}
	if (n < 4 || strncmp(line, "OK ", 3) != 0)
		fail("hybrid handshake: not OK");
}

struct conn *conn_dial(const struct target *t)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct sockaddr_vm vm = {
	    .svm_family = AF_VSOCK, .svm_cid = t->cid, .svm_port = t->port};
	bool vsock = t->kind == TARGET_VSOCK;
	struct conn *c = malloc(sizeof(*c));

	if (!c)
		fail("out of memory");
	c->len = 0;
	c->fd = socket(vsock ? AF_VSOCK : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (c->fd < 0)
		fail("socket: %s", strerror(errno));
	memcpy(un.sun_path, t->path, sizeof(un.sun_path));
	const struct sockaddr *to = vsock ? (struct sockaddr *)&vm : (struct sockaddr *)&un;
	if (connect(c->fd, to, vsock ? sizeof(vm) : sizeof(un)) < 0)
		fail("cannot connect: %s", strerror(errno));
	if (t->kind == TARGET_HYBRID)
		hybrid_handshake(c->fd, t->port);
	return c;
}

void conn_close(struct conn *c)
{
	close(c->fd);
	free(c);
}

bool conn_write(struct conn *c, const void *bytes, size_t len)
{
	int64_t deadline = now_ms() + CONN_WAIT_MS;
	const uint8_t *p = bytes;

	while (len > 0) {
		ssize_t n = send(c->fd, p, len, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN) {
			if (!wait_for(c->fd, POLLOUT, deadline))
				fail("the agent has not read for %d ms", CONN_WAIT_MS);
			continue;
		}
		if (n < 0)
			return false;
		p += n;
		len -= (size_t)n;
	}
	return true;
}

bool conn_send(struct conn *c, const Sandgate__HostFrame *frame)
{
	size_t size = frame_size(&frame->base);
	uint8_t *bytes = malloc(size);

	if (!bytes)
		fail("out of memory");
	frame_write(&frame->base, bytes);
	bool sent = conn_write(c, bytes, size);
	free(bytes);
	return sent;
}

static Sandgate__GuestFrame *take_frame(struct conn *c)
{
	struct frame f;

	switch (frame_parse(c->in, c->len, FRAME_MAX_TO_HOST, &f)) {
	case FRAME_NEED_MORE:
		return NULL;
	case FRAME_TOO_LONG:
		fail("a frame is over the cap of %u bytes", FRAME_MAX_TO_HOST);
	case FRAME_OK:
		break;
	}
	Sandgate__GuestFrame *m = sandgate__guest_frame__unpack(NULL, f.payload_len, f.payload);
	if (!m)
		fail("a frame does not parse as GuestFrame");
	if (m->body_case == SANDGATE__GUEST_FRAME__BODY__NOT_SET)
		fail("a frame has no body");
	c->len -= f.consumed;
	memmove(c->in, c->in + f.consumed, c->len);
	return m;
}

Sandgate__GuestFrame *conn_recv(struct conn *c, int wait_ms)
{
	int64_t deadline = now_ms() + wait_ms;
	Sandgate__GuestFrame *m;

	while (!(m = take_frame(c))) {
		if (!wait_for(c->fd, POLLIN, deadline))
			fail("no answer within %d ms", wait_ms);
		ssize_t n = read(c->fd, c->in + c->len, sizeof(c->in) - c->len);
		if (n == 0 || (n < 0 && errno == ECONNRESET)) {
			if (c->len > 0)
				fail("the connection ended inside a frame");
			return NULL;
		}
		if (n < 0 && errno != EINTR)
			fail("read: %s", strerror(errno));
		if (n > 0)
			c->len += (size_t)n;
	}
	return m;
}

bool conn_readable(struct conn *c, int wait_ms)
{
	return c->len > 0 || wait_for(c->fd, POLLIN, now_ms() + wait_ms);
}
