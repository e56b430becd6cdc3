#include "guest-agent/workers.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include "proto/clock.h"
#include "proto/log.h"

#define THREAD_STACK (128 * KIB)

TAILQ_HEAD(work_queue, work);

struct workers {
	struct ev_loop *loop;
	ev_async wakeup;
	ev_timer watchdog; /* while something is queued: do the threads move? */
	unsigned taken_at_tick, threads_max;
	int policy;

	pthread_mutex_t lock; /* of everything below */
	pthread_cond_t work, gone;
	struct work_queue queue, done;
	unsigned threads, idle, taken, busy; /* busy: what threads have now */
	bool quitting;
};

/* ---- in a thread ---- */

static void do_next(struct workers *s, struct worker *me)
{
	struct work *w = TAILQ_FIRST(&s->queue);

	TAILQ_REMOVE(&s->queue, w, link);
	w->is_queued = false;
	s->taken++;
	s->busy++;
	pthread_mutex_unlock(&s->lock);
	__atomic_store_n(&w->began_ms, clock_mono_ms(), __ATOMIC_RELEASE);
	w->run(w, me);
	pthread_mutex_lock(&s->lock);
	s->busy--;
	TAILQ_INSERT_TAIL(&s->done, w, link);
	if (!s->quitting)
		ev_async_send(s->loop, &s->wakeup);
}

static void *thread_main(void *arg)
{
	struct workers *s = arg;
	const struct sched_param normal = {0};
	struct worker me;

	spawn_slots_open(&me.slots);
	sched_setscheduler(0, s->policy, &normal);
	pthread_mutex_lock(&s->lock);
	for (;;) {
		if (!TAILQ_EMPTY(&s->queue)) {
			do_next(s, &me);
			continue;
		}
		if (s->quitting || s->idle > 0)
			break;
		s->idle++;
		pthread_cond_wait(&s->work, &s->lock);
		s->idle--;
	}
	spawn_slots_close(&me.slots);
	s->threads--;
	pthread_cond_signal(&s->gone);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- in the loop ---- */

/* All signals are blocked in the thread from its first instruction. */
static int add_thread(struct workers *s)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all;

	int rc = pthread_attr_init(&attr);
	if (rc != 0)
		return rc;
	sigfillset(&all);
	pthread_attr_setsigmask_np(&attr, &all);
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_mutex_lock(&s->lock);
	rc = pthread_create(&thread, &attr, thread_main, s);
	if (rc == 0)
		s->threads++;
	pthread_mutex_unlock(&s->lock);
	pthread_attr_destroy(&attr);
	return rc;
}

static void tell_done(struct workers *s)
{
	struct work *w;

	for (;;) {
		pthread_mutex_lock(&s->lock);
		w = TAILQ_FIRST(&s->done);
		if (w != NULL)
			TAILQ_REMOVE(&s->done, w, link);
		pthread_mutex_unlock(&s->lock);
		if (w == NULL)
			return;
		w->on_done(w);
	}
}

static void on_wakeup(struct ev_loop *loop, ev_async *a, int revents)
{
	(void)loop, (void)revents;
	tell_done(a->data);
}

/* Something is queued and no thread has taken anything since the last tick: they hang in
 * the kernel (a dead FUSE mount), so one more serves the others. */
static void on_watchdog(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct workers *s = t->data;
	(void)revents;

	pthread_mutex_lock(&s->lock);
	bool waiting = !TAILQ_EMPTY(&s->queue);
	bool hung = waiting && s->taken == s->taken_at_tick && s->threads < s->threads_max;
	s->taken_at_tick = s->taken;
	pthread_mutex_unlock(&s->lock);
	if (!waiting)
		ev_timer_stop(loop, t);
	else if (hung && add_thread(s) != 0)
		log_warn("workers", NULL, "no further thread can be started");
}

struct workers *workers_create(struct ev_loop *loop, unsigned threads_max, int policy,
                               struct err *e)
{
	pthread_condattr_t monotonic;
	struct workers *s = calloc(1, sizeof(*s));
	if (s == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	s->loop = loop;
	s->threads_max = threads_max;
	s->policy = policy;
	TAILQ_INIT(&s->queue);
	TAILQ_INIT(&s->done);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->work, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&s->gone, &monotonic);
	pthread_condattr_destroy(&monotonic);
	int rc = add_thread(s);
	if (rc != 0) {
		err_errno(e, ERR_INTERNAL, rc, "cannot start a thread");
		free(s);
		return NULL;
	}
	ev_async_init(&s->wakeup, on_wakeup);
	s->wakeup.data = s;
	ev_async_start(loop, &s->wakeup);
	ev_timer_init(&s->watchdog, on_watchdog, 0., SPAWN_HUNG_MS / 1000.);
	s->watchdog.data = s;
	return s;
}

void workers_destroy(struct workers *s)
{
	struct timespec end;
	int rc = 0;

	if (s == NULL)
		return;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += CLEANUP_WAIT_MS / 1000;
	pthread_mutex_lock(&s->lock);
	s->quitting = true;
	pthread_cond_broadcast(&s->work);
	while (s->threads > 0 && rc == 0)
		rc = pthread_cond_timedwait(&s->gone, &s->lock, &end);
	bool hung = s->threads > 0;
	pthread_mutex_unlock(&s->lock);
	tell_done(s);
	ev_async_stop(s->loop, &s->wakeup);
	ev_timer_stop(s->loop, &s->watchdog);
	if (hung)
		return;
	pthread_cond_destroy(&s->work);
	pthread_cond_destroy(&s->gone);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void workers_start(struct workers *s, struct work *w)
{
	w->began_ms = 0;
	pthread_mutex_lock(&s->lock);
	w->is_queued = true;
	TAILQ_INSERT_TAIL(&s->queue, w, link);
	pthread_mutex_unlock(&s->lock);
	pthread_cond_signal(&s->work); /* not before: it would wake to find the lock taken */
	if (!ev_is_active(&s->watchdog))
		ev_timer_again(s->loop, &s->watchdog);
}

bool workers_drop(struct workers *s, struct work *w)
{
	pthread_mutex_lock(&s->lock);
	bool dropped = w->is_queued;
	if (dropped) {
		TAILQ_REMOVE(&s->queue, w, link);
		w->is_queued = false;
		TAILQ_INSERT_TAIL(&s->done, w, link);
		ev_async_send(s->loop, &s->wakeup);
	}
	pthread_mutex_unlock(&s->lock);
	return dropped;
}

uint64_t workers_age_ms(struct workers *s, const struct work *w)
{
	uint64_t began = __atomic_load_n(&w->began_ms, __ATOMIC_ACQUIRE);

	pthread_mutex_lock(&s->lock);
	unsigned share = s->busy > 0 ? s->busy : 1;
	pthread_mutex_unlock(&s->lock);
	return began == 0 ? 0 : (clock_mono_ms() - began) / share;
}
