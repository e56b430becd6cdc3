#include "host-bridge/device/vsock_device.h"

#include <errno.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "host-bridge/device/confine.h"
#include "host-bridge/device/hybrid.h"
#include "host-bridge/device/vsock_mux.h"
#include "host-bridge/device/vsock_options.h"
#include "proto/log.h"

#define MODULE "vsock_device"

struct vsock_device {
	struct ev_loop *loop;
	uint64_t guest_cid;
	ev_io vmm_listen, hybrid_listen, vmm_io;
	ev_io kicks[RINGS];
	ev_timer orphan, tx_held;
	ev_prepare flush;
	struct vhost_user *vmm;
	struct vsock_mux *mux;
	int status;
};

/* The hybrid socket's name in the working directory, for the signal handler. */
static char uds_name[VSOCK_LINE_MAX + 96];

/* A guest's memory can vanish under any access, and then nothing can be trusted to go on:
 * whatever ends the process ends it here. */
static void on_end_signal(int sig)
{
	static const char gone[] = "vsock_device: the guest's memory is gone\n";

	if (sig == SIGBUS && write(STDERR_FILENO, gone, sizeof(gone) - 1) < 0) {
		/* Nowhere is left to say it. */
	}
	unlink(uds_name);
	_exit(sig == SIGBUS ? 1 : 0);
}

static void end(struct vsock_device *d, int status)
{
	d->status = status;
	ev_break(d->loop, EVBREAK_ALL);
}

/* ---- rings ---- */

/* Make the loop come back to the ring after the other watchers had their turn. */
static void kick_again(ev_io *w)
{
	const uint64_t one = 1;

	if (write(w->fd, &one, sizeof(one)) < 0)
		log_warn(MODULE, NULL, "a kick descriptor cannot be written: errno %d", errno);
}

/* False: the descriptor is no good, and is not watched any more. */
static bool take_kick(struct ev_loop *loop, ev_io *w)
{
	uint64_t count;

	if (read(w->fd, &count, sizeof(count)) > 0 || errno == EAGAIN || errno == EINTR)
		return true;
	ev_io_stop(loop, w);
	return false;
}

static void on_tx_kick(struct ev_loop *loop, ev_io *w, int revents)
{
	struct vsock_device *d = w->data;

	(void)revents;
	if (!take_kick(loop, w))
		return;
	enum vsock_mux_tx state = vsock_mux_tx_kick(d->mux);
	if (state != TX_EMPTY)
		kick_again(w);
	if (state == TX_BUSY)
		ev_io_stop(loop, w);
}

static void on_rx_kick(struct ev_loop *loop, ev_io *w, int revents)
{
	struct vsock_device *d = w->data;

	(void)revents;
	if (!take_kick(loop, w))
		return;
	if (vsock_mux_rx_kick(d->mux) && vhost_user_ring(d->vmm, RING_TX) != NULL)
		ev_io_start(loop, &d->kicks[RING_TX]);
}

static void on_event_kick(struct ev_loop *loop, ev_io *w, int revents)
{
	/* No event is ever sent, so its buffers are left alone. */
	(void)revents;
	ev_io_stop(loop, w);
}

static void on_ring_started(enum vhost_user_ring_id id, bool fresh, void *arg)
{
	static void (*const on_kick[RINGS])(struct ev_loop *, ev_io *,
	                                    int) = {on_rx_kick, on_tx_kick, on_event_kick};
	struct vsock_device *d = arg;
	ev_io *w = &d->kicks[id];
	int fd = vhost_user_kick_fd(d->vmm, id);

	ev_io_init(w, on_kick[id], fd, EV_READ);
	w->data = d;
	ev_io_start(d->loop, w);
	if (id == RING_RX && fresh)
		vsock_mux_guest_reset(d->mux);
	/* The guest may have filled the ring, and kicked, before the descriptor was ours. */
	kick_again(w);
}

static void on_ring_stopped(enum vhost_user_ring_id id, void *arg)
{
	struct vsock_device *d = arg;
	ev_io_stop(d->loop, &d->kicks[id]);
}

static void on_tx_held(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct vsock_device *d = w->data;

	(void)revents;
	ev_timer_stop(loop, w);
	vhost_user_flush(d->vmm, RING_TX);
}

/* A guest only frees memory when it learns that a packet was taken, and the interrupt would
 * fall into the work that the packet is about: it waits. A few packets at a time leave the
 * guest a ring to go on with, however long their chains are. */
static void flush_tx(struct vsock_device *d)
{
	const struct virtqueue *q = vhost_user_ring(d->vmm, RING_TX);
	uint16_t held = q != NULL ? virtqueue_unpublished(q) : 0;

	if (held > 0 && held < q->num / VSOCK_TX_HELD_SHARE) {
		if (!ev_is_active(&d->tx_held))
			ev_timer_again(d->loop, &d->tx_held);
		return;
	}
	ev_timer_stop(d->loop, &d->tx_held);
	if (held > 0)
		vhost_user_flush(d->vmm, RING_TX);
}

/* Before the loop sleeps, the guest learns of what one turn did. */
static void on_flush(struct ev_loop *loop, ev_prepare *w, int revents)
{
	struct vsock_device *d = w->data;

	(void)loop;
	(void)revents;
	if (d->vmm == NULL)
		return;
	vhost_user_flush(d->vmm, RING_RX);
	flush_tx(d);
}

/* ---- sockets ---- */

/* The VMM has ended, or has unplugged the device for a while, as it must before it saves the
 * guest's state. What the guest had is closed; who connects meanwhile waits. */
static void lose_vmm(struct vsock_device *d)
{
	log_info(MODULE, NULL, "the VMM is gone; %u connections are closed",
	         vsock_mux_connections(d->mux));
	ev_io_stop(d->loop, &d->vmm_io);
	ev_timer_stop(d->loop, &d->tx_held);
	vsock_mux_guest_reset(d->mux);
	vsock_mux_set_vmm(d->mux, NULL);
	vhost_user_destroy(d->vmm);
	close(d->vmm_io.fd);
	d->vmm = NULL;
	ev_io_start(d->loop, &d->vmm_listen);
	ev_timer_set(&d->orphan, VSOCK_VMM_WAIT_S, 0);
	ev_timer_start(d->loop, &d->orphan);
}

static void on_vmm_io(struct ev_loop *loop, ev_io *w, int revents)
{
	struct vsock_device *d = w->data;
	struct err e = {0};

	(void)loop;
	(void)revents;
	if (vhost_user_read(d->vmm, &e) == 0)
		return;
	if (e.code == ERR_NONE) {
		lose_vmm(d);
		return;
	}
	log_error(MODULE, NULL, "vhost-user: %s", e.msg);
	end(d, 1);
}

static void on_vmm_connect(struct ev_loop *loop, ev_io *w, int revents)
{
	static const struct vhost_user_ops ops = {.ring_started = on_ring_started,
	                                          .ring_stopped = on_ring_stopped};
	struct vsock_device *d = w->data;
	struct vhost_user_ops with_arg = ops;

	(void)revents;
	int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	ev_io_stop(loop, w); /* one at a time */
	ev_timer_stop(loop, &d->orphan);
	with_arg.arg = d;
	d->vmm = vhost_user_create(fd, d->guest_cid, &with_arg);
	if (d->vmm == NULL) {
		log_error(MODULE, NULL, "out of memory");
		end(d, 1);
		return;
	}
	vsock_mux_set_vmm(d->mux, d->vmm);
	ev_io_set(&d->vmm_io, fd, EV_READ);
	ev_io_start(loop, &d->vmm_io);
}

static void on_hybrid_connect(struct ev_loop *loop, ev_io *w, int revents)
{
	struct vsock_device *d = w->data;
	int fd;

	(void)loop;
	(void)revents;
	while ((fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		vsock_mux_accept(d->mux, fd);
}

static void on_orphan(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	log_error(MODULE, NULL, "no VMM connected");
	end(w->data, 1);
}

/* ---- start ---- */

/* The hybrid socket is named relative to its directory, where the process then stays: a
 * long path does not eat into sun_path, and `<uds>_<port>` is found under a new root. */
static int enter_directory(const char *uds, struct err *e)
{
	char dir[4096], base[4096];

	if (snprintf(dir, sizeof(dir), "%s", uds) >= (int)sizeof(dir))
		return err_set(e, ERR_INTERNAL, "--uds is too long");
	memcpy(base, dir, sizeof(base));
	int n = snprintf(uds_name, sizeof(uds_name), "%s", basename(base));
	if (n < 0 || n >= (int)sizeof(uds_name))
		return err_set(e, ERR_INTERNAL, "--uds is too long");
	if (chdir(dirname(dir)) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "cannot enter the directory of %s",
		                 uds);
	return 0;
}

static int listen_for(const char *path, const struct vsock_options *o, struct err *e)
{
	int fd = hybrid_listen(path, e);

	if (fd >= 0 && geteuid() == 0 && chown(path, o->uid, o->gid) < 0) {
		err_errno(e, ERR_INTERNAL, errno, "cannot give %s away", path);
		close(fd);
		return -1;
	}
	return fd;
}

static void handle_signals(void)
{
	struct sigaction end_action = {.sa_handler = on_end_signal};
	struct sigaction ignore = {.sa_handler = SIG_IGN};

	sigaction(SIGBUS, &end_action, NULL);
	sigaction(SIGTERM, &end_action, NULL);
	sigaction(SIGINT, &end_action, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
	sigaction(SIGHUP, &ignore, NULL);
}

static void watch(struct vsock_device *d, ev_io *w, int fd,
                  void (*on)(struct ev_loop *, ev_io *, int))
{
	ev_io_init(w, on, fd, EV_READ);
	w->data = d;
	ev_io_start(d->loop, w);
}

static int run(struct vsock_device *d, int vmm_fd, int hybrid_fd)
{
	watch(d, &d->vmm_listen, vmm_fd, on_vmm_connect);
	watch(d, &d->hybrid_listen, hybrid_fd, on_hybrid_connect);
	ev_io_init(&d->vmm_io, on_vmm_io, -1, 0);
	d->vmm_io.data = d;
	ev_timer_init(&d->tx_held, on_tx_held, 0, VSOCK_TX_HELD_MS / 1e3);
	d->tx_held.data = d;
	ev_timer_init(&d->orphan, on_orphan, VSOCK_VMM_WAIT_S, 0);
	d->orphan.data = d;
	ev_timer_start(d->loop, &d->orphan);
	ev_prepare_init(&d->flush, on_flush);
	d->flush.data = d;
	ev_prepare_start(d->loop, &d->flush);

	ev_run(d->loop, 0);
	vhost_user_destroy(d->vmm);
	vsock_mux_destroy(d->mux);
	unlink(uds_name);
	return d->status;
}

int vsock_device_main(int argc, char **argv)
{
	struct vsock_options o = vsock_options_parse(argc, argv);
	struct vsock_device d = {.guest_cid = o.guest_cid};
	struct err e = {0};

	int vmm_fd = listen_for(o.socket, &o, &e);
	if (vmm_fd < 0 || enter_directory(o.uds, &e) < 0)
		fatal(MODULE, "%s", e.msg);
	int hybrid_fd = listen_for(uds_name, &o, &e);
	if (hybrid_fd < 0)
		fatal(MODULE, "%s", e.msg);
	d.loop = ev_loop_new(EVBACKEND_EPOLL | EVFLAG_NOENV);
	d.mux = d.loop != NULL ? vsock_mux_create(d.loop, d.guest_cid, uds_name) : NULL;
	if (d.mux == NULL)
		fatal(MODULE, "cannot make the event loop");
	handle_signals();
	setsid();
	tzset(); /* reads its file now: later, the log may not */
	if (confine_self(o.uid, o.gid, &e) < 0) {
		unlink(uds_name);
		fatal(MODULE, "%s", e.msg);
	}
	if (write(STDOUT_FILENO, "ready\n", 6) < 0)
		log_warn(MODULE, NULL, "nobody reads that the device is ready");
	return run(&d, vmm_fd, hybrid_fd);
}
