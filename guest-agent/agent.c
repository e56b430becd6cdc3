#include "guest-agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "guest-agent/agent_private.h"
#include "guest-agent/identity.h"
#include "guest-agent/init.h"
#include "proto/limits.h"
#include "proto/log.h"

/* ---- the process ---- */

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		log_warn("agent", NULL, "%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
}

static void raise_nofile(void)
{
	struct rlimit r = {AGENT_NOFILE, NOFILE_HARD}; /* what a command may have, too */
	if (setrlimit(RLIMIT_NOFILE, &r) == 0 || getrlimit(RLIMIT_NOFILE, &r) < 0)
		return;
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
}

static void set_up_process(void)
{
	signal(SIGPIPE, SIG_IGN);
	raise_nofile();
	/* The kernel kills no init for want of memory, and each child would have to undo it. */
	if (getpid() != 1)
		write_file("/proc/self/oom_score_adj", "-1000");
	/* One small heap that gives back what it does not need: a snapshot holds every page. */
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_MMAP_THRESHOLD, 64 * KIB);
	mallopt(M_TRIM_THRESHOLD, 64 * KIB);
}

static uint64_t output_budget(void)
{
	struct sysinfo si;
	if (sysinfo(&si) < 0)
		return OUTPUT_BYTES_MAX;
	return (uint64_t)si.totalram * si.mem_unit / RETAINED_RAM_SHARE;
}

/* ---- shutdown ---- */

static void on_shutdown_over(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)w;
	(void)revents;
	ev_break(loop, EVBREAK_ALL);
}

/* The last answer gets a second to leave; a host that closes its session ends the wait. */
static void on_execs_ended(void *arg)
{
	struct agent *a = arg;
	a->execs_ended = true;
	if (a->on_idle != NULL)
		a->on_idle(a->idle_arg);
	a->on_idle = NULL;
	ev_timer_stop(a->loop, &a->shutdown_over);
	ev_timer_set(&a->shutdown_over, a->idle_arg != NULL ? SHUTDOWN_LINGER_MS / 1000.0 : 0,
	             0);
	ev_timer_start(a->loop, &a->shutdown_over);
}

void agent_shutdown(struct agent *a, uint64_t grace_ms, void (*on_idle)(void *arg), void *arg)
{
	log_info("agent", NULL, "shutting down");
	a->on_idle = on_idle;
	a->idle_arg = arg;
	exec_table_shutdown(a->table, grace_ms, on_execs_ended, a);
	ev_timer_stop(a->loop, &a->shutdown_over);
	ev_timer_set(&a->shutdown_over,
	             (double)(grace_ms + CLEANUP_WAIT_MS + DRAIN_MAX_MS + SHUTDOWN_LINGER_MS) /
	                 1000.0,
	             0);
	ev_timer_start(a->loop, &a->shutdown_over);
}

void agent_shutdown_unwatch(struct agent *a, const void *arg)
{
	if (a->idle_arg != arg)
		return;
	a->on_idle = NULL;
	if (a->execs_ended)
		ev_break(a->loop, EVBREAK_ALL);
}

static void on_terminate(struct ev_loop *loop, ev_signal *w, int revents)
{
	(void)loop;
	(void)revents;
	agent_shutdown(w->data, EXEC_GRACE_DEFAULT_MS, NULL, NULL);
}

/* ---- life ---- */

static bool is_ours(pid_t pid, void *arg)
{
	const struct agent *a = arg;
	return spawner_owns(a->spawner, pid) || exec_table_owns_pid(a->table, pid) ||
	       snapshot_owns(a->snapshot, pid);
}

static void on_connection(int fd, void *arg)
{
	agent_adopt(arg, fd);
}

static int open_listeners(struct agent *a, struct err *e)
{
	const struct config *c = a->config;
	if (c->port != 0) {
		a->vsock =
		    listen_vsock(a->loop, c->port, c->cids, c->cid_count, on_connection, a, e);
		if (a->vsock == NULL)
			return -1;
		log_info("agent", NULL, "listening on vsock port %u", c->port);
	}
	if (c->unix_path != NULL) {
		a->local = listen_unix(a->loop, c->unix_path, on_connection, a, e);
		if (a->local == NULL)
			return -1;
		log_info("agent", NULL, "listening on %s", c->unix_path);
	}
	return 0;
}

/* A daemon ends when it is told to. Init does not: the kernel drops signals to it that it
 * does not handle, and so root in an exec cannot end the machine; Shutdown does that. */
static void start_signals(struct agent *a)
{
	static const int numbers[] = {SIGTERM, SIGINT};
	if (getpid() == 1)
		return;
	for (size_t i = 0; i < 2; i++) {
		ev_signal_init(&a->terminate[i], on_terminate, numbers[i]);
		a->terminate[i].data = a;
		ev_signal_start(a->loop, &a->terminate[i]);
	}
}

static int start(struct agent *a, struct err *e)
{
	if ((a->loop = ev_loop_new(EVFLAG_AUTO | EVFLAG_SIGNALFD)) == NULL)
		return err_set(e, ERR_INTERNAL, "no event loop");
	ev_timer_init(&a->shutdown_over, on_shutdown_over, 0, 0);
	if ((a->idle = idle_create(a->loop)) == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	if ((a->tree = cgroup_tree_create(a->loop, a->idle, e)) == NULL ||
	    /* A batch thread does not interrupt the program that its clone has just become: a
	     * short one ends first, and its start and its end are then told together. */
	    (a->workers = workers_create(a->loop, SPAWN_THREADS_MAX, SCHED_BATCH, e)) == NULL ||
	    (a->pipe_workers = workers_create(a->loop, PIPE_THREADS_MAX, SCHED_OTHER, e)) ==
	        NULL ||
	    (a->spawner = spawner_create(a->workers, e)) == NULL ||
	    (a->table = exec_table_create(a->loop, a->config, a->idle, a->tree, a->spawner,
	                                  a->pipe_workers, output_budget(), e)) == NULL)
		return -1;
	if ((a->sessions = session_set_create(a, a->loop)) == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	exec_table_on_end(a->table, session_set_exec_ended, a->sessions);
	a->snapshot = snapshot_create(a->loop, a->config, a->table, a->sessions, a->workers, e);
	if (a->snapshot == NULL)
		return -1;
	agent_learn_features(a);
	if (init_reap_start(a->loop, is_ours, a, e) < 0)
		return -1;
	start_signals(a);
	return open_listeners(a, e);
}

struct agent *agent_create(struct config *config, struct err *e)
{
	struct agent *a = calloc(1, sizeof(*a));
	if (a == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	a->config = config;
	set_up_process();
	identity_get_ready();
	if (start(a, e) < 0) {
		agent_destroy(a);
		return NULL;
	}
	return a;
}

void agent_destroy(struct agent *a)
{
	listen_close(a->vsock);
	listen_close(a->local);
	if (a->table != NULL && exec_table_counts(a->table).running > 0)
		return;
	session_set_destroy(a->sessions);
	snapshot_destroy(a->snapshot);
	exec_table_destroy(a->table);
	workers_destroy(a->workers);
	workers_destroy(a->pipe_workers);
	spawner_destroy(a->spawner);
	if (a->tree != NULL)
		cgroup_tree_destroy(a->tree);
	idle_destroy(a->idle);
	if (a->loop != NULL) {
		init_reap_stop(a->loop);
		for (size_t i = 0; i < 2; i++)
			ev_signal_stop(a->loop, &a->terminate[i]);
		ev_loop_destroy(a->loop);
	}
	free(a);
}

void agent_run(struct agent *a)
{
	ev_run(a->loop, 0);
}

void agent_adopt(struct agent *a, int fd)
{
	session_create(a->sessions, fd);
}

struct ev_loop *agent_loop(struct agent *a)
{
	return a->loop;
}

const struct config *agent_config(const struct agent *a)
{
	return a->config;
}

struct exec_table *agent_table(struct agent *a)
{
	return a->table;
}

struct snapshot *agent_snapshot(struct agent *a)
{
	return a->snapshot;
}
