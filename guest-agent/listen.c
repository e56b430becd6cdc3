#include "guest-agent/listen.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#include "proto/limits.h"
#include "proto/log.h"

struct listener {
	struct ev_loop *loop;
	ev_io io;
	ev_timer pause; /* accept(2) found no descriptor or no memory: try again later */
	const unsigned *cids;
	size_t cid_count;
	char *path; /* NULL: vsock */
	listen_fn *on_connection;
	void *arg;
};

static bool vsock_peer_is_allowed(const struct listener *l, const struct sockaddr_vm *peer)
{
	if (peer->svm_cid == VMADDR_CID_HOST)
		return true;
	for (size_t i = 0; i < l->cid_count; i++)
		if (l->cids[i] == peer->svm_cid)
			return true;
	return false;
}

static bool unix_peer_is_allowed(int fd)
{
	struct ucred who;
	socklen_t len = sizeof(who);
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 &&
	       (who.uid == 0 || who.uid == geteuid());
}

static void on_acceptable(struct ev_loop *loop, ev_io *w, int revents)
{
	struct listener *l = w->data;
	struct sockaddr_vm peer = {0};
	socklen_t len = sizeof(peer);
	(void)revents;

	int fd = accept4(w->fd, l->path == NULL ? (struct sockaddr *)&peer : NULL,
	                 l->path == NULL ? &len : NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
			log_warn("listen", NULL, "accept: %s", strerror(errno));
			ev_io_stop(loop, w);
			ev_timer_set(&l->pause, ACCEPT_PAUSE_MS / 1000.0, 0);
			ev_timer_start(loop, &l->pause);
		}
		return;
	}
	if (l->path == NULL ? vsock_peer_is_allowed(l, &peer) : unix_peer_is_allowed(fd)) {
		l->on_connection(fd, l->arg);
		return;
	}
	log_warn("listen", NULL, "a peer is turned away: not the host");
	close(fd);
}

static void on_pause_over(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct listener *l = w->data;
	(void)revents;
	ev_io_start(loop, &l->io);
}

/* `fd` is bound; it is closed on failure. */
static struct listener *start(struct ev_loop *loop, int fd, listen_fn *on_connection, void *arg,
                              struct err *e)
{
	struct listener *l = calloc(1, sizeof(*l));
	if (l == NULL || listen(fd, SOMAXCONN) < 0) {
		err_errno(e, ERR_INTERNAL, l == NULL ? ENOMEM : errno, "listen");
		close(fd);
		free(l);
		return NULL;
	}
	l->loop = loop;
	l->on_connection = on_connection;
	l->arg = arg;
	ev_io_init(&l->io, on_acceptable, fd, EV_READ);
	ev_timer_init(&l->pause, on_pause_over, 0, 0);
	l->io.data = l->pause.data = l;
	ev_io_start(loop, &l->io);
	return l;
}

struct listener *listen_vsock(struct ev_loop *loop, unsigned port, const unsigned *cids,
                              size_t count, listen_fn *on_connection, void *arg, struct err *e)
{
	struct sockaddr_vm addr = {
	    .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = port};
	int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		err_errno(e, ERR_INTERNAL, errno, "vsock port %u", port);
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	struct listener *l = start(loop, fd, on_connection, arg, e);
	if (l != NULL) {
		l->cids = cids;
		l->cid_count = count;
	}
	return l;
}

/* Bind over the socket of an agent that is gone: nobody answers there. */
static int bind_unix(int fd, const struct sockaddr_un *addr)
{
	if (bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0)
		return 0;
	if (errno != EADDRINUSE)
		return -1;
	int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int rc = probe < 0 ? -1 : connect(probe, (const struct sockaddr *)addr, sizeof(*addr));
	bool dead = rc < 0 && errno == ECONNREFUSED;
	if (probe >= 0)
		close(probe);
	errno = EADDRINUSE;
	if (!dead || unlink(addr->sun_path) < 0)
		return -1;
	return bind(fd, (const struct sockaddr *)addr, sizeof(*addr));
}

struct listener *listen_unix(struct ev_loop *loop, const char *path, listen_fn *on_connection,
                             void *arg, struct err *e)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(addr.sun_path)) {
		err_set(e, ERR_INTERNAL, "unix socket: the path is too long");
		return NULL;
	}
	memcpy(addr.sun_path, path, strlen(path) + 1);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* Before bind, so that the name is born with mode 0600. */
	if (fd < 0 || fchmod(fd, 0600) < 0 || bind_unix(fd, &addr) < 0) {
		err_errno(e, ERR_INTERNAL, errno, "unix socket %s", path);
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	struct listener *l = start(loop, fd, on_connection, arg, e);
	if (l != NULL && (l->path = strdup(path)) == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		listen_close(l);
		return NULL;
	}
	return l;
}

void listen_close(struct listener *l)
{
	if (l == NULL)
		return;
	ev_io_stop(l->loop, &l->io);
	ev_timer_stop(l->loop, &l->pause);
	close(l->io.fd);
	if (l->path != NULL)
		unlink(l->path);
	free(l->path);
	free(l);
}
