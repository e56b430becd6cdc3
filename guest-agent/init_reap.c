#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "guest-agent/init.h"

/* A zombie that is ours hides the orphans behind it until its owner has reaped it. */
#define LOOK_AGAIN_S 0.02
/* Orphans reaped in one turn of the loop. */
#define REAP_MAX 256

static struct {
	struct ev_loop *loop; /* NULL: not started */
	ev_signal child;
	ev_timer again;
	bool (*is_ours)(pid_t pid, void *arg);
	void *arg;
} reaper;

/* Peeking shows the same zombie until somebody reaps it, so stop at the first of ours. */
static void reap(struct ev_loop *loop)
{
	for (int i = 0; i < REAP_MAX; i++) {
		siginfo_t si = {.si_pid = 0};
		if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) != 0 || si.si_pid == 0) {
			ev_timer_stop(loop, &reaper.again);
			return;
		}
		if (reaper.is_ours(si.si_pid, reaper.arg))
			break;
		waitid(P_PID, (id_t)si.si_pid, &si, WEXITED | WNOHANG);
	}
	ev_timer_again(loop, &reaper.again);
}

/* Most often it is a leader, which its owner reaps: look when that has been done. */
static void on_child(struct ev_loop *loop, ev_signal *w, int revents)
{
	(void)w, (void)revents;
	if (!ev_is_active(&reaper.again))
		ev_timer_again(loop, &reaper.again);
}

static void on_again(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)w, (void)revents;
	reap(loop);
}

int init_reap_start(struct ev_loop *loop, bool (*is_ours)(pid_t pid, void *arg), void *arg,
                    struct err *e)
{
	/* As a daemon too, what an exec leaves behind comes to us and not to the host's init.
	 */
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
		return err_errno(e, ERR_INTERNAL, errno, "cannot become a subreaper");
	reaper.loop = loop;
	reaper.is_ours = is_ours;
	reaper.arg = arg;
	ev_signal_init(&reaper.child, on_child, SIGCHLD);
	ev_timer_init(&reaper.again, on_again, 0., LOOK_AGAIN_S);
	ev_signal_start(loop, &reaper.child);
	reap(loop);
	return 0;
}

void init_reap_now(void)
{
	if (reaper.loop != NULL)
		reap(reaper.loop);
}

void init_reap_stop(struct ev_loop *loop)
{
	reaper.loop = NULL;
	ev_signal_stop(loop, &reaper.child);
	ev_timer_stop(loop, &reaper.again);
}
