#include "guest-agent/pipe_stock.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define STOCK 2 /* stdout and stderr */

struct pipe_stock {
	struct idle *idle;
	struct idle_task when_idle;
	int pipes[STOCK][2];
	unsigned count;
};

static int make_pipe(int fds[2])
{
	if (pipe2(fds, O_CLOEXEC) < 0)
		return -1;
	return fcntl(fds[0], F_SETFL, O_NONBLOCK);
}

static bool work_when_idle(struct idle_task *task)
{
	struct pipe_stock *s = task->owner;

	if (s->count == STOCK || make_pipe(s->pipes[s->count]) < 0)
		return false;
	s->count++;
	return true;
}

struct pipe_stock *pipe_stock_create(struct idle *idle)
{
	struct pipe_stock *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return NULL;
	s->idle = idle;
	s->when_idle = (struct idle_task){.work = work_when_idle, .owner = s};
	idle_add(idle, &s->when_idle);
	return s;
}

void pipe_stock_destroy(struct pipe_stock *s)
{
	if (s == NULL)
		return;
	idle_remove(s->idle, &s->when_idle);
	while (s->count > 0) {
		s->count--;
		close(s->pipes[s->count][0]);
		close(s->pipes[s->count][1]);
	}
	free(s);
}

int pipe_stock_take(struct pipe_stock *s, int fds[2])
{
	if (s->count == 0)
		return make_pipe(fds);
	s->count--;
	fds[0] = s->pipes[s->count][0];
	fds[1] = s->pipes[s->count][1];
	return 0;
}
