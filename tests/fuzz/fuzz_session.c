/*
 * A host's bytes into a session of a whole agent. Nothing runs: the spawner is replaced by
 * one that, by the first letter of the program's name, fails, hangs until it is cancelled,
 * or hands over a child that exits at once. After the bytes the host goes, everything is
 * ended, and the agent must be empty again.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest-agent/agent.h"
#include "proto/limits.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stands in for a struct spawn. */
struct pretence {
	ev_timer done;
	struct ev_loop *loop;
	struct spawn_result result;
	bool runs;
	void (*on_done)(const struct spawn_result *r, void *arg);
	void *arg;
};

static struct config config;
static struct agent *agent;

/* Born in the callback that reports it, so that no reaper can come between. */
static void child_that_exits(struct spawn_result *r)
{
	r->pid = fork();
	if (r->pid == 0)
		_exit(7);
	r->pidfd = (int)syscall(SYS_pidfd_open, r->pid, 0);
	r->stage = NULL;
}

static void on_pretended(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct pretence *p = (struct pretence *)w;
	(void)loop, (void)revents;
	if (p->runs)
		child_that_exits(&p->result);
	p->on_done(&p->result, p->arg);
	free(p);
}

static void finish_soon(struct pretence *p)
{
	if (!ev_is_active(&p->done))
		ev_timer_start(p->loop, &p->done);
}

static struct spawn *pretend_spawn(struct spawner *s, const struct spawn_plan *plan,
                                   void (*on_done)(const struct spawn_result *r, void *arg),
                                   void *arg)
{
	struct pretence *p = calloc(1, sizeof(*p));
	(void)s;
	p->loop = agent_loop(agent);
	p->on_done = on_done;
	p->arg = arg;
	p->result = (struct spawn_result){.pidfd = -1, .stage = "execve", .errnum = 2};
	ev_timer_init(&p->done, on_pretended, 0, 0);
	p->runs = plan->argv[0][0] == 'r';
	if (plan->argv[0][0] != 'h')
		finish_soon(p);
	return (struct spawn *)p;
}

static void pretend_cancel(struct spawn *s)
{
	finish_soon((struct pretence *)s);
}

static void on_late(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)w, (void)revents;
	abort(); /* something never ends */
}

static void feed(const uint8_t *data, size_t size)
{
	int fds[2];
	uint8_t sink[4096];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0)
		abort();
	agent_adopt(agent, fds[1]);
	for (size_t done = 0, idle = 0; done < size && idle < 8;) {
		ssize_t n = send(fds[0], data + done, size - done, MSG_NOSIGNAL);
		done += n > 0 ? (size_t)n : 0;
		idle = n > 0 ? 0 : idle + 1;
		ev_run(agent_loop(agent), EVRUN_NOWAIT);
		while (read(fds[0], sink, sizeof(sink)) > 0)
			;
	}
	for (int i = 0; i < 3; i++)
		ev_run(agent_loop(agent), EVRUN_NOWAIT);
	close(fds[0]);
	ev_run(agent_loop(agent), EVRUN_NOWAIT);
}

static uint64_t pretend_age_ms(const struct spawn *p)
{
	(void)p;
	return SPAWN_DEADLINE_S * 1000;
}

static void on_idle(void *arg)
{
	*(bool *)arg = true;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	log_setup(LOG_ERROR, false);
	config_init(&config);
	config.port = 0;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct err e;
	bool idle = false;
	ev_timer late;

	agent = agent_create(&config, &e);
	if (agent == NULL)
		abort();
	exec_table_env(agent_table(agent))->spawn = pretend_spawn;
	exec_table_env(agent_table(agent))->cancel_spawn = pretend_cancel;
	exec_table_env(agent_table(agent))->spawn_age_ms = pretend_age_ms;
	feed(data, size);

	ev_timer_init(&late, on_late, 30, 0);
	ev_timer_start(agent_loop(agent), &late);
	exec_table_shutdown(agent_table(agent), 0, on_idle, &idle);
	while (!idle)
		ev_run(agent_loop(agent), EVRUN_ONCE);
	if (exec_table_counts(agent_table(agent)).running != 0)
		abort();
	agent_destroy(agent);
	return 0;
}
