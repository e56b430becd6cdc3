#include "host-bridge/vm/task.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct task {
	struct ev_loop *loop;
	ev_io ended; /* on the pidfd */
	int result;  /* a pipe: a struct err, of code ERR_NONE on success */
	void (*on_done)(const struct err *e, void *arg); /* NULL: cancelled */
	void *arg;
};

static void free_task(struct task *t)
{
	close(t->result);
	if (t->ended.fd >= 0)
		close(t->ended.fd);
	free(t);
}

static void on_ended(struct ev_loop *loop, ev_io *w, int revents)
{
	struct task *t = w->data;
	void (*on_done)(const struct err *, void *) = t->on_done;
	void *arg = t->arg;
	struct err e = {0};
	siginfo_t info;
	(void)revents;

	waitid(P_PIDFD, (id_t)w->fd, &info, WEXITED | WNOHANG);
	ev_io_stop(loop, w);
	if (read(t->result, &e, sizeof(e)) != sizeof(e))
		err_set(&e, ERR_INTERNAL, "a helper process of the bridge died");
	free_task(t);
	if (on_done != NULL)
		on_done(e.code == ERR_NONE ? NULL : &e, arg);
}

/* A pipe takes a message of this size whole. The child dies with the bridge: what it was about
 * to finish has nobody left to tell. */
static _Noreturn void run_child(int (*work)(const void *input, struct err *e),
                                const void *input, int result)
{
	sigset_t none;
	struct err e = {0};

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (dup3(result, 3, O_CLOEXEC) < 0 && result != 3)
		_exit(1);
	close_range(4, UINT32_MAX, 0);
	if (work(input, &e) == 0)
		e = (struct err){0};
	else if (e.code == ERR_NONE)
		err_set(&e, ERR_INTERNAL, "a helper process of the bridge failed");
	_exit(write(3, &e, sizeof(e)) != sizeof(e));
}

struct task *task_start(struct ev_loop *loop, int (*work)(const void *input, struct err *e),
                        const void *input, void (*on_done)(const struct err *e, void *arg),
                        void *arg, struct err *e)
{
	int fds[2], pidfd = -1;
	struct clone_args args = {
	    .flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND,
	    .pidfd = (uintptr_t)&pidfd,
	    .exit_signal = SIGCHLD,
	};
	struct task *t = calloc(1, sizeof(*t));

	if (t == NULL || pipe2(fds, O_CLOEXEC) < 0) {
		err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno,
		          "a helper process of the bridge");
		free(t);
		return NULL;
	}
	long pid = syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		run_child(work, input, fds[1]);
	int saved = errno;
	close(fds[1]);
	*t = (struct task){.loop = loop, .result = fds[0], .on_done = on_done, .arg = arg};
	ev_io_init(&t->ended, on_ended, pidfd, EV_READ);
	t->ended.data = t;
	if (pid < 0) {
		err_errno(e, err_of_errno(saved, ERR_INTERNAL), saved,
		          "a helper process of the bridge");
		free_task(t);
		return NULL;
	}
	ev_io_start(loop, &t->ended);
	return t;
}

void task_cancel(struct task *t)
{
	if (t == NULL)
		return;
	t->on_done = NULL;
	syscall(SYS_pidfd_send_signal, t->ended.fd, SIGKILL, NULL, 0);
}
