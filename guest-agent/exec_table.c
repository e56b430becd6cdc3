#include "guest-agent/exec_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "guest-agent/clock.h"
#include "proto/limits.h"

#define BUCKETS 1024u /* EXECS_RUNNING_MAX and RETAINED_RESULTS_MAX stay short chains */

/* An exec by its id, or a tombstone: an id that must not start. */
struct entry {
	LIST_ENTRY(entry) in_bucket; /* unless forgotten */
	TAILQ_ENTRY(entry) in_list;  /* running, finished or tombs */
	struct exec_table *table;
	struct exec *exec; /* NULL: a tombstone */
	bool finished, forgotten;
	uint64_t expires_ms; /* finished and tombstones, monotonic */
	char id[EXEC_ID_MAX + 1];
};

TAILQ_HEAD(entry_list, entry);

struct exec_table {
	struct exec_env env; /* first: the callbacks get it back */
	LIST_HEAD(, entry) buckets[BUCKETS];
	struct entry_list running, finished, tombs;
	unsigned running_count, finished_count, tomb_count;
	uint64_t cpu_us; /* of execs that are gone */
	ev_timer sweep;
	bool stopping;
	void (*on_idle)(void *arg);
	void *idle_arg;
	void (*on_end)(const struct exec *x, void *arg);
	void *end_arg;
};

/* FNV-1a; ids come from the host, which has nothing to win by collisions. */
static unsigned bucket_of(const char *id)
{
	uint32_t h = 2166136261u;
	for (; *id != '\0'; id++)
		h = (h ^ (uint8_t)*id) * 16777619u;
	return h % BUCKETS;
}

static struct entry *lookup(const struct exec_table *t, const char *id)
{
	struct entry *n;
	LIST_FOREACH (n, &t->buckets[bucket_of(id)], in_bucket)
		if (strcmp(n->id, id) == 0)
			return n;
	return NULL;
}

static struct entry *entry_create(struct exec_table *t, const char *id)
{
	struct entry *n = calloc(1, sizeof(*n));
	if (n == NULL)
		return NULL;
	n->table = t;
	memcpy(n->id, id, strlen(id) + 1);
	LIST_INSERT_HEAD(&t->buckets[bucket_of(id)], n, in_bucket);
	return n;
}

/* Freeing waits for the sweep, so that no caller loses an exec under its feet. */
static void sweep_in(struct exec_table *t, uint64_t ms)
{
	if (ev_is_active(&t->sweep) &&
	    ev_timer_remaining(t->env.loop, &t->sweep) <= (double)ms / 1000.0)
		return;
	ev_timer_stop(t->env.loop, &t->sweep);
	ev_timer_set(&t->sweep, (double)ms / 1000.0, 0);
	ev_timer_start(t->env.loop, &t->sweep);
}

static void forget_entry(struct entry *n)
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

/* Until `expires_ms` a start with this id is refused, so that nothing runs twice. */
static void bury(struct exec_table *t, const char *id, uint64_t expires_ms)
{
	uint64_t now = clock_mono_ms();
	struct entry *n = expires_ms > now ? entry_create(t, id) : NULL;
	if (n == NULL)
		return;
	if (t->tomb_count == TOMBSTONES_MAX)
		drop_tomb(t, TAILQ_FIRST(&t->tombs));
	n->expires_ms = expires_ms;
	TAILQ_INSERT_TAIL(&t->tombs, n, in_list);
	t->tomb_count++;
	sweep_in(t, expires_ms - now);
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
		forget_entry(n);
		if (chosen)
			bury(t, n->id, n->expires_ms);
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
			forget_entry(n);
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
		sweep_in(t, next - now);
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
	sweep_in(t, now ? 0 : soon ? SWEEP_PAUSE_MS : RETAINED_RESULTS_S * 1000);
	if (t->on_end != NULL)
		t->on_end(n->exec, t->end_arg);
}

static void on_unused(struct exec_env *env, void *link)
{
	struct entry *n = link;
	if (n->forgotten && n->finished)
		sweep_in((struct exec_table *)env, 0);
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

/* ---- the interface ---- */

struct exec_table *exec_table_create(struct ev_loop *loop, const struct config *config,
                                     struct idle *idle, struct cgroup_tree *tree,
                                     struct spawner *spawner, uint64_t budget_bytes,
                                     struct err *e)
{
	struct exec_table *t = calloc(1, sizeof(*t));
	if (t == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null_fd < 0) {
		err_errno(e, ERR_INTERNAL, errno, "/dev/null");
		free(t);
		return NULL;
	}
	struct pipe_stock *pipes = pipe_stock_create(idle);
	if (pipes == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		close(null_fd);
		free(t);
		return NULL;
	}
	t->env = (struct exec_env){
	    .loop = loop,
	    .null_fd = null_fd,
	    .cpus = (unsigned)sysconf(_SC_NPROCESSORS_ONLN), /* reads files: not later */
	    .config = config,
	    .idle = idle,
	    .pipes = pipes,
	    .tree = tree,
	    .spawner = spawner,
	    .spawn = spawn_start,
	    .cancel_spawn = spawn_cancel,
	    .spawn_age_ms = spawn_age_ms,
	    .budget = {.limit = budget_bytes},
	    .on_over_budget = on_over_budget,
	    .on_finished = on_finished,
	    .on_unused = on_unused,
	};
	TAILQ_INIT(&t->running);
	TAILQ_INIT(&t->finished);
	TAILQ_INIT(&t->tombs);
	ev_timer_init(&t->sweep, on_sweep, 0, 0);
	t->sweep.data = t;
	return t;
}

void exec_table_destroy(struct exec_table *t)
{
	if (t == NULL)
		return;
	ev_timer_stop(t->env.loop, &t->sweep);
	while (!TAILQ_EMPTY(&t->finished)) {
		forget_entry(TAILQ_FIRST(&t->finished));
		drop_exec(t, TAILQ_FIRST(&t->finished));
	}
	while (!TAILQ_EMPTY(&t->tombs))
		drop_tomb(t, TAILQ_FIRST(&t->tombs));
	pipe_stock_destroy(t->env.pipes);
	close(t->env.null_fd);
	free(t);
}

struct exec_env *exec_table_env(struct exec_table *t)
{
	return &t->env;
}

static struct exec *reuse(struct entry *n, const Sandgate__Exec *m, struct err *e)
{
	const struct exec_request *r = n->exec != NULL ? exec_request(n->exec) : NULL;
	if (r == NULL) {
		err_field(e, ERR_EXEC_ID_CONFLICT, "exec_id", "this exec was forgotten");
		return NULL;
	}
	if (r->digest_len != m->request_digest.len ||
	    (r->digest_len > 0 &&
	     memcmp(r->digest, m->request_digest.data, r->digest_len) != 0)) {
		err_field(e, ERR_EXEC_ID_CONFLICT, "exec_id", "the id is another request's");
		return NULL;
	}
	return n->exec;
}

struct exec *exec_table_start(struct exec_table *t, Sandgate__Exec *m, bool *existing,
                              struct err *e)
{
	struct exec_request r;

	if (exec_request_check_id(m->exec_id, e) < 0)
		return NULL;
	struct entry *n = lookup(t, m->exec_id);
	*existing = n != NULL;
	if (n != NULL)
		return reuse(n, m, e);
	if (t->stopping) {
		err_set(e, ERR_INVALID_STATE, "the agent is shutting down");
		return NULL;
	}
	if (t->running_count >= EXECS_RUNNING_MAX) {
		err_set(e, ERR_QUOTA_EXCEEDED, "%d execs run already", EXECS_RUNNING_MAX);
		return NULL;
	}
	if (exec_request_parse(&r, m, t->env.config, e) < 0)
		return NULL;
	if (r.cpu_time_ms > 0 && !(cgroup_tree_features(t->env.tree) & CGROUP_V2)) {
		exec_request_free(&r);
		err_field(e, ERR_LIMIT_UNSUPPORTED, "limits.cpu_seconds",
		          "CPU time is not counted without cgroup v2");
		return NULL;
	}
	if ((n = entry_create(t, r.id)) == NULL) {
		exec_request_free(&r);
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	n->exec = exec_create(&t->env, &r, n, e);
	if (n->exec == NULL) {
		LIST_REMOVE(n, in_bucket);
		free(n);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&t->running, n, in_list);
	t->running_count++;
	return n->exec;
}

struct exec *exec_table_find(struct exec_table *t, const char *id, struct err *e)
{
	if (exec_request_check_id(id, e) < 0)
		return NULL;
	struct entry *n = lookup(t, id);
	if (n != NULL && n->exec != NULL)
		return n->exec;
	err_field(e, ERR_EXEC_NOT_FOUND, "exec_id", "no such exec");
	return NULL;
}

int exec_table_forget(struct exec_table *t, const char *id, struct err *e)
{
	const uint64_t at_once = 0;

	if (exec_request_check_id(id, e) < 0)
		return -1;
	struct entry *n = lookup(t, id);
	if (n != NULL && n->exec == NULL)
		return 0;
	if (n != NULL) {
		forget_entry(n);
		exec_cancel(n->exec, SANDGATE__CANCEL_REASON__CANCEL_KILLED, &at_once);
		sweep_in(t, 0);
	}
	bury(t, id, clock_mono_ms() + TOMBSTONE_S * 1000);
	return 0;
}

void exec_table_on_end(struct exec_table *t, void (*on_end)(const struct exec *x, void *arg),
                       void *arg)
{
	t->on_end = on_end;
	t->end_arg = arg;
}

void exec_table_shutdown(struct exec_table *t, uint64_t grace_ms, void (*on_idle)(void *arg),
                         void *arg)
{
	struct entry *n, *following;

	t->stopping = true;
	t->on_idle = on_idle;
	t->idle_arg = arg;
	for (n = TAILQ_FIRST(&t->running); n != NULL; n = following) {
		following = TAILQ_NEXT(n, in_list);
		exec_cancel(n->exec, SANDGATE__CANCEL_REASON__CANCEL_SHUTDOWN, &grace_ms);
	}
	sweep_in(t, 0);
}

bool exec_table_is_stopping(const struct exec_table *t)
{
	return t->stopping;
}

void exec_table_suspend(struct exec_table *t)
{
	struct entry *n;

	t->env.suspended = true;
	TAILQ_FOREACH (n, &t->running, in_list)
		exec_suspend(n->exec);
	TAILQ_FOREACH (n, &t->finished, in_list)
		exec_suspend(n->exec);
}

static void become_clone(struct exec_table *t)
{
	struct entry *n, *following;

	while (!TAILQ_EMPTY(&t->tombs))
		drop_tomb(t, TAILQ_FIRST(&t->tombs));
	TAILQ_FOREACH (n, &t->finished, in_list)
		forget_entry(n);
	for (n = TAILQ_FIRST(&t->running); n != NULL; n = following) {
		following = TAILQ_NEXT(n, in_list);
		exec_disown(n->exec, SANDGATE__CANCEL_REASON__CANCEL_FORKED);
	}
	sweep_in(t, 0);
}

void exec_table_resume(struct exec_table *t, bool clone)
{
	struct entry *n;

	t->env.suspended = false;
	if (clone)
		become_clone(t);
	TAILQ_FOREACH (n, &t->running, in_list)
		exec_resume(n->exec);
	TAILQ_FOREACH (n, &t->finished, in_list)
		exec_resume(n->exec);
}

void exec_table_each(struct exec_table *t, void (*visit)(struct exec *x, void *arg), void *arg)
{
	struct entry *n;
	TAILQ_FOREACH (n, &t->running, in_list)
		if (!n->forgotten)
			visit(n->exec, arg);
	TAILQ_FOREACH (n, &t->finished, in_list)
		if (!n->forgotten)
			visit(n->exec, arg);
}

struct exec_table_counts exec_table_counts(struct exec_table *t)
{
	struct exec_table_counts c = {
	    .running = t->running_count,
	    .retained = t->finished_count,
	    .retained_bytes = t->env.budget.used,
	    .cpu_us = t->cpu_us,
	};
	struct entry *n;
	TAILQ_FOREACH (n, &t->running, in_list)
		c.cpu_us += exec_cpu_us(n->exec);
	TAILQ_FOREACH (n, &t->finished, in_list)
		c.cpu_us += exec_cpu_us(n->exec);
	return c;
}

bool exec_table_owns_pid(const struct exec_table *t, pid_t pid)
{
	const struct entry *n;
	TAILQ_FOREACH (n, &t->running, in_list)
		if (exec_owns_pid(n->exec, pid))
			return true;
	TAILQ_FOREACH (n, &t->finished, in_list)
		if (exec_owns_pid(n->exec, pid))
			return true;
	return false;
}
