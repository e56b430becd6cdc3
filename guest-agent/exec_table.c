#include "guest-agent/exec_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest-agent/exec_table_private.h"
#include "proto/clock.h"
#include "proto/limits.h"

struct exec_table *exec_table_create(struct ev_loop *loop, const struct config *config,
                                     struct idle *idle, struct cgroup_tree *tree,
                                     struct spawner *spawner, struct workers *pipe_workers,
                                     uint64_t budget_bytes, struct err *e)
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
	    .pipe_workers = pipe_workers,
	    .tree = tree,
	    .spawner = spawner,
	    .spawn = spawn_start,
	    .cancel_spawn = spawn_cancel,
	    .spawn_age_ms = spawn_age_ms,
	    .budget = {.limit = budget_bytes},
	};
	retain_init(t);
	return t;
}

void exec_table_destroy(struct exec_table *t)
{
	if (t == NULL)
		return;
	retain_end(t);
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
	struct entry *n = retain_find(t, m->exec_id);
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
	if ((n = retain_create(t, r.id)) == NULL) {
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
	struct entry *n = retain_find(t, id);
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
	struct entry *n = retain_find(t, id);
	if (n != NULL && n->exec == NULL)
		return 0;
	if (n != NULL) {
		retain_forget(n);
		exec_cancel(n->exec, SANDGATE__CANCEL_REASON__CANCEL_KILLED, &at_once);
		retain_sweep_in(t, 0);
	}
	retain_bury(t, id, clock_mono_ms() + TOMBSTONE_S * 1000);
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
	retain_sweep_in(t, 0);
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

	retain_drop_tombs(t);
	TAILQ_FOREACH (n, &t->finished, in_list)
		retain_forget(n);
	for (n = TAILQ_FIRST(&t->running); n != NULL; n = following) {
		following = TAILQ_NEXT(n, in_list);
		exec_disown(n->exec, SANDGATE__CANCEL_REASON__CANCEL_FORKED);
	}
	retain_sweep_in(t, 0);
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
