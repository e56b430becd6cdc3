/* Which execs are known and for how long: results that are kept, tombstones of ids that must
 * not start any more, and the common bound of retained output. */
#include <stdlib.h>
#include <string.h>

#include "guest-agent/exec_table_private.h"
#include "proto/clock.h"
#include "proto/limits.h"

/* FNV-1a; ids come from the host, which has nothing to win by collisions. */
static unsigned bucket_of(const char *id)
{
	uint32_t h = 2166136261u;
	for (; *id != '\0'; id++)
		h = (h ^ (uint8_t)*id) * 16777619u;
	return h % BUCKETS;
}

struct entry *retain_find(const struct exec_table *t, const char *id)
{
	struct entry *n;
	LIST_FOREACH (n, &t->buckets[bucket_of(id)], in_bucket)
		if (strcmp(n->id, id) == 0)
			return n;
	return NULL;
}

struct entry *retain_create(struct exec_table *t, const char *id)
{
	struct entry *n = calloc(1, sizeof(*n));
	if (n == NULL)
		return NULL;
	memcpy(n->id, id, strlen(id) + 1);
	LIST_INSERT_HEAD(&t->buckets[bucket_of(id)], n, in_bucket);
	return n;
}

void retain_sweep_in(struct exec_table *t, uint64_t ms)
{
	if (ev_is_active(&t->sweep) &&
	    ev_timer_remaining(t->env.loop, &t->sweep) <= (double)ms / 1000.0)
		return;
	ev_timer_stop(t->env.loop, &t->sweep);
	ev_timer_set(&t->sweep, (double)ms / 1000.0, 0);
	ev_timer_start(t->env.loop, &t->sweep);
}

void retain_forget(struct entry *n)
{
	if (!n->forgotten)
		LIST_REMOVE(n, in_bucket);
	n->forgotten = true;
}

static void drop_exec(struct exec_table *t, struct entry *n)
{
	t->cpu_us += exec_cpu_us(n->exec);
	exec_destroy(n->exec);
	TAILQ_REMOVE(&t->finished, n, in_list);
	t->finished_count--;
	free(n);
}

static void drop_tomb(struct exec_table *t, struct entry *n)
{
	LIST_REMOVE(n, in_bucket);
	TAILQ_REMOVE(&t->tombs, n, in_list);
	t->tomb_count--;
	free(n);
}

void retain_bury(struct exec_table *t, const char *id, uint64_t expires_ms)
{
	uint64_t now = clock_mono_ms();
	struct entry *n = expires_ms > now ? retain_create(t, id) : NULL;
	if (n == NULL)
		return;
	if (t->tomb_count == TOMBSTONES_MAX)
		drop_tomb(t, TAILQ_FIRST(&t->tombs));
	n->expires_ms = expires_ms;
	TAILQ_INSERT_TAIL(&t->tombs, n, in_list);
	t->tomb_count++;
	retain_sweep_in(t, expires_ms - now);
}

void retain_drop_tombs(struct exec_table *t)
{
	while (!TAILQ_EMPTY(&t->tombs))
		drop_tomb(t, TAILQ_FIRST(&t->tombs));
}

/* Past the caps the oldest results go before their time. Where a client may know the
 * id it stays taken; the others nobody can repeat. */
static void make_room(struct exec_table *t)
{
	unsigned over[2] = {0, 0}, caps[2] = {RETAINED_UNCHOSEN_MAX, RETAINED_RESULTS_MAX};
	struct entry *n;

	TAILQ_FOREACH (n, &t->finished, in_list)
		over[exec_request(n->exec)->keep_output] += !n->forgotten;
	for (int i = 0; i < 2; i++)
		over[i] = over[i] > caps[i] ? over[i] - caps[i] : 0;
	TAILQ_FOREACH (n, &t->finished, in_list) {
		bool chosen = exec_request(n->exec)->keep_output;
		if (n->forgotten || over[chosen] == 0)
			continue;
		over[chosen]--;
		retain_forget(n);
		if (chosen)
			retain_bury(t, n->id, n->expires_ms);
	}
}

static void on_sweep(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct exec_table *t = w->data;
	uint64_t now = clock_mono_ms(), next = UINT64_MAX;
	struct entry *n, *following;
	(void)loop;
	(void)revents;

	make_room(t);
	for (n = TAILQ_FIRST(&t->finished); n != NULL; n = following) {
		following = TAILQ_NEXT(n, in_list);
		if (n->expires_ms <= now)
			retain_forget(n);
		else if (n->expires_ms < next)
			next = n->expires_ms;
		if (n->forgotten && !exec_has_peers(n->exec))
			drop_exec(t, n);
	}
	for (n = TAILQ_FIRST(&t->tombs); n != NULL; n = following) {
		following = TAILQ_NEXT(n, in_list);
		if (n->expires_ms <= now)
			drop_tomb(t, n);
		else if (n->expires_ms < next)
			next = n->expires_ms;
	}
	if (next != UINT64_MAX)
		retain_sweep_in(t, next - now);
	if (t->stopping && t->running_count == 0 && t->on_idle != NULL) {
		void (*on_idle)(void *) = t->on_idle;
		t->on_idle = NULL;
		on_idle(t->idle_arg);
	}
}

/* ---- what execs report ---- */

static void on_finished(struct exec_env *env, void *link)
{
	struct exec_table *t = (struct exec_table *)env;
	struct entry *n = link;

	TAILQ_REMOVE(&t->running, n, in_list);
	TAILQ_INSERT_TAIL(&t->finished, n, in_list);
	t->running_count--;
	t->finished_count++;
	n->finished = true;
	n->expires_ms = clock_mono_ms() + RETAINED_RESULTS_S * 1000;
	bool now = n->forgotten || t->stopping;
	bool soon = t->finished_count > RETAINED_UNCHOSEN_MAX;
	retain_sweep_in(t, now ? 0 : soon ? SWEEP_PAUSE_MS : RETAINED_RESULTS_S * 1000);
	if (t->on_end != NULL)
		t->on_end(n->exec, t->end_arg);
}

static void on_unused(struct exec_env *env, void *link)
{
	struct entry *n = link;
	if (n->forgotten && n->finished)
		retain_sweep_in((struct exec_table *)env, 0);
}

static bool over_budget(const struct exec_table *t)
{
	return t->env.budget.used > t->env.budget.limit;
}

/* The oldest finished execs lose their output first; then the one that reads wraps, then
 * the other running ones. What an attached owner was not sent stays. */
static void on_over_budget(struct exec_env *env, struct exec *reading)
{
	struct exec_table *t = (struct exec_table *)env;
	struct entry *n;

	TAILQ_FOREACH (n, &t->finished, in_list)
		while (over_budget(t) && ring_shed(exec_ring(n->exec)))
			;
	while (over_budget(t) && ring_shed(exec_ring(reading)))
		;
	TAILQ_FOREACH (n, &t->running, in_list)
		while (over_budget(t) && ring_shed(exec_ring(n->exec)))
			;
}

void retain_init(struct exec_table *t)
{
	t->env.on_over_budget = on_over_budget;
	t->env.on_finished = on_finished;
	t->env.on_unused = on_unused;
	TAILQ_INIT(&t->running);
	TAILQ_INIT(&t->finished);
	TAILQ_INIT(&t->tombs);
	ev_timer_init(&t->sweep, on_sweep, 0, 0);
	t->sweep.data = t;
}

void retain_end(struct exec_table *t)
{
	ev_timer_stop(t->env.loop, &t->sweep);
	while (!TAILQ_EMPTY(&t->finished)) {
		retain_forget(TAILQ_FIRST(&t->finished));
		drop_exec(t, TAILQ_FIRST(&t->finished));
	}
	retain_drop_tombs(t);
}
