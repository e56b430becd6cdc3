#include "guest-agent/idle.h"

#include <stdlib.h>
#include <unistd.h>

/* Execs are at rest when none ended for so long, none runs its program only since then, and
 * none is being started, which takes long where all code runs for the first time (seconds). */
#define AFTER_END_S 0.005
#define AFTER_START_S 0.05
#define AFTER_BEGIN_S 0.3
#define BETWEEN_PIECES_S 0.0001
#define CLOSING_MAX 16

struct idle {
	struct ev_loop *loop;
	ev_timer timer;
	TAILQ_HEAD(, idle_task) tasks;
	struct idle_task closer;
	int closing[CLOSING_MAX];
	unsigned closing_count;
};

static void on_idle(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct idle *i = w->data;
	struct idle_task *t;
	(void)revents;

	TAILQ_FOREACH (t, &i->tasks, link) {
		if (t->work(t)) {
			w->repeat = BETWEEN_PIECES_S;
			return;
		}
	}
	ev_timer_stop(loop, w);
}

static bool close_all(struct idle_task *t)
{
	struct idle *i = t->owner;
	bool any = i->closing_count > 0;

	while (i->closing_count > 0)
		close(i->closing[--i->closing_count]);
	return any;
}

struct idle *idle_create(struct ev_loop *loop)
{
	struct idle *i = calloc(1, sizeof(*i));
	if (i == NULL)
		return NULL;
	i->loop = loop;
	TAILQ_INIT(&i->tasks);
	ev_timer_init(&i->timer, on_idle, 0., AFTER_END_S);
	i->timer.data = i;
	i->closer = (struct idle_task){.work = close_all, .owner = i};
	TAILQ_INSERT_TAIL(&i->tasks, &i->closer, link);
	return i;
}

void idle_destroy(struct idle *i)
{
	if (i == NULL)
		return;
	ev_timer_stop(i->loop, &i->timer);
	close_all(&i->closer);
	free(i);
}

static void start_after(struct idle *i, double pause)
{
	i->timer.repeat = pause;
	ev_timer_again(i->loop, &i->timer);
}

void idle_add(struct idle *i, struct idle_task *t)
{
	TAILQ_INSERT_TAIL(&i->tasks, t, link);
	start_after(i, AFTER_END_S);
}

void idle_remove(struct idle *i, struct idle_task *t)
{
	TAILQ_REMOVE(&i->tasks, t, link);
}

void idle_exec_began(struct idle *i)
{
	start_after(i, AFTER_BEGIN_S);
}

void idle_exec_started(struct idle *i)
{
	start_after(i, AFTER_START_S);
}

void idle_exec_ended(struct idle *i)
{
	start_after(i, AFTER_END_S);
}

void idle_close(struct idle *i, int fd)
{
	if (i->closing_count == CLOSING_MAX)
		close_all(&i->closer);
	i->closing[i->closing_count++] = fd;
}
