#include "guest-agent/helper.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/limits.h"

/* A session that the agent closes has ended only when no child holds it open. */
static void close_descriptors(void)
{
	if (syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0) == 0)
		return;
	for (int fd = STDERR_FILENO + 1; fd < AGENT_NOFILE; fd++)
		close(fd);
}

static void forget(struct helper *h)
{
	ev_timer_stop(h->loop, &h->late);
	ev_io_stop(h->loop, &h->ended);
	close(h->ended.fd);
	h->pid = 0;
}

static void on_ended(struct ev_loop *loop, ev_io *w, int revents)
{
	struct helper *h = w->data;
	siginfo_t info = {0};
	(void)loop;
	(void)revents;

	if (waitid(P_PIDFD, (id_t)w->fd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0)
		return;
	forget(h);
	h->on_done(h, info.si_code == CLD_EXITED ? info.si_status : -1);
}

static void on_late(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct helper *h = w->data;
	(void)loop;
	(void)revents;

	helper_stop(h);
	h->on_done(h, -1);
}

void helper_init(struct helper *h, struct ev_loop *loop,
                 void (*on_done)(struct helper *h, int status))
{
	h->loop = loop;
	h->pid = 0;
	h->on_done = on_done;
	ev_io_init(&h->ended, on_ended, -1, EV_READ);
	ev_timer_init(&h->late, on_late, 0, 0);
	h->ended.data = h->late.data = h;
}

int helper_start(struct helper *h, int (*work)(const void *arg), const void *arg,
                 double seconds)
{
	pid_t pid = fork();
	if (pid < 0)
		return -1;
	if (pid == 0) {
		close_descriptors();
		_exit(work(arg));
	}
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0) {
		int saved = errno;
		kill(pid, SIGKILL); /* the reaper's */
		errno = saved;
		return -1;
	}
	h->pid = pid;
	ev_io_set(&h->ended, fd, EV_READ);
	ev_io_start(h->loop, &h->ended);
	ev_now_update(h->loop);
	ev_timer_set(&h->late, seconds, 0);
	ev_timer_start(h->loop, &h->late);
	return 0;
}

void helper_stop(struct helper *h)
{
	if (h->pid == 0)
		return;
	kill(h->pid, SIGKILL);
	forget(h);
}
