#include "guest-agent/snapshot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "guest-agent/helper.h"
#include "guest-agent/renew.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "proto/log.h"

/* How often Prepare looks whether the last sessions have gone (seconds). */
#define LOOK_S 0.01

enum state { WORKING, PREPARING, PREPARED, RESUMING };

LIST_HEAD(waiters, snapshot_waiter);

/* A worker has it, for longer perhaps than anybody waits. */
struct renewing {
	struct work work;
	struct snapshot *owner; /* NULL: given up */
	struct renewal *renewal;
	int failed; /* as renew() returns it */
};

struct snapshot {
	struct ev_loop *loop;
	struct config *config;
	struct exec_table *table;
	struct session_set *sessions;

	enum state state;
	uint64_t generation;
	uint8_t instance[RENEW_ID_SIZE];
	struct waiters preparing, resuming, repeating;

	/* Prepare */
	struct helper sync;
	ev_timer look;    /* until the sessions have gone */
	ev_timer unheard; /* until it goes on by itself */
	uint64_t began_ms;
	bool synced;

	/* Resume */
	struct workers *workers;
	struct renewing *renewing;
	ev_timer late;   /* until it is given up */
	ev_timer answer; /* what needs no work is answered from the loop as well */
	uint64_t next_generation;
	enum state came_from;
	char *failed[RENEW_STEPS + 1]; /* of the last one, for its repetition */
	size_t failed_count;
};

/* ---- who waits ---- */

static void wait_for(struct waiters *list, struct snapshot_waiter *w)
{
	w->waits = true;
	LIST_INSERT_HEAD(list, w, link);
}

void snapshot_leave(struct snapshot_waiter *w)
{
	if (w->waits)
		LIST_REMOVE(w, link);
	w->waits = false;
}

static void tell(struct waiters *list, const struct err *e)
{
	struct snapshot_waiter *w;
	while ((w = LIST_FIRST(list)) != NULL) {
		snapshot_leave(w);
		w->on_done(w, e);
	}
}

static void start_timer(struct snapshot *sn, ev_timer *t, double seconds)
{
	ev_now_update(sn->loop);
	ev_timer_stop(sn->loop, t);
	ev_timer_set(t, seconds, 0);
	ev_timer_start(sn->loop, t);
}

/* ---- Prepare ---- */

static int sync_all(const void *unused)
{
	(void)unused;
	sync();
	return 0;
}

static void look_at_sessions(struct snapshot *sn)
{
	if (session_set_leaving(sn->sessions) > 0 &&
	    clock_mono_ms() - sn->began_ms < SUSPEND_LINGER_MS) {
		start_timer(sn, &sn->look, LOOK_S);
		return;
	}
	session_set_close_leaving(sn->sessions);
	sn->state = PREPARED;
	log_debug("snapshot", NULL, "prepared");
	tell(&sn->preparing, NULL);
}

static void on_look(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	look_at_sessions(w->data);
}

static void on_synced(struct helper *h, int status)
{
	struct snapshot *sn = (struct snapshot *)((char *)h - offsetof(struct snapshot, sync));

	sn->synced = status == 0;
	if (!sn->synced)
		log_warn("snapshot", NULL, "the file systems were not synced in time");
	look_at_sessions(sn);
}

static void stop_preparing(struct snapshot *sn)
{
	struct err e = {0};

	helper_stop(&sn->sync);
	ev_timer_stop(sn->loop, &sn->look);
	ev_timer_stop(sn->loop, &sn->unheard);
	err_set(&e, ERR_INVALID_STATE, "it was resumed before it was prepared");
	tell(&sn->preparing, &e);
}

static void on_unheard(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct snapshot *sn = w->data;
	(void)loop;
	(void)revents;

	log_warn("snapshot", NULL, "no Resume came: going on");
	stop_preparing(sn);
	sn->state = WORKING;
	exec_table_resume(sn->table, false);
}

int snapshot_prepare(struct snapshot *sn, struct snapshot_waiter *w, struct err *e)
{
	if (exec_table_is_stopping(sn->table))
		return err_set(e, ERR_INVALID_STATE, "the agent is shutting down");
	if (sn->state == RESUMING)
		return err_set(e, ERR_INVALID_STATE, "a Resume is being carried out");
	wait_for(&sn->preparing, w);
	start_timer(sn, &sn->unheard, sn->config->self_resume_s);
	if (sn->state == PREPARING)
		return 0;
	sn->state = PREPARING;
	sn->began_ms = clock_mono_ms();
	exec_table_suspend(sn->table);
	session_set_suspend(sn->sessions);
	sn->synced = false;
	if (helper_start(&sn->sync, sync_all, NULL, SYNC_DEADLINE_S) < 0) {
		log_warn("snapshot", NULL, "sync: %s", strerror(errno));
		start_timer(sn, &sn->look, 0);
	}
	return 0;
}

/* ---- Resume ---- */

static void take_env(struct snapshot *sn, const struct renewal *r)
{
	for (size_t i = 0; i < r->env_count; i++) {
		struct err e = {0};
		if (config_set(sn->config, "env", r->env[i], &e) == 0)
			continue;
		log_error("snapshot", NULL, "%s", e.msg);
		sn->failed[sn->failed_count++] = "env";
		return;
	}
}

/* `failed` holds one bit a step, as renew() returns it; less than 0: nobody knows. */
static void note_failed(struct snapshot *sn, int failed)
{
	if (failed < 0) /* a clone is refused instead */
		failed = 1 << RENEW_ENTROPY | 1 << RENEW_CLOCK;
	sn->failed_count = 0;
	for (int i = 0; i < RENEW_STEPS; i++)
		if (failed & 1 << i)
			sn->failed[sn->failed_count++] = (char *)renew_step_name(i);
}

static void refuse_clone(struct snapshot *sn, int failed)
{
	struct err e = {0};

	if (failed < 0)
		err_set(&e, ERR_INTERNAL, "the guest could not be renewed in time");
	else
		err_field(&e, ERR_INTERNAL, "entropy",
		          "the kernel took no entropy: the clone would repeat others");
	sn->state = sn->came_from;
	tell(&sn->resuming, &e);
}

static void on_renewed(struct snapshot *sn, const struct renewal *r, int failed)
{
	ev_timer_stop(sn->loop, &sn->late);
	sn->renewing = NULL;
	if (r->clone && (failed < 0 || (failed & 1 << RENEW_ENTROPY))) {
		refuse_clone(sn, failed);
		return;
	}
	note_failed(sn, failed);
	take_env(sn, r);
	if (r->clone)
		memcpy(sn->instance, r->instance, sizeof(sn->instance));
	sn->generation = sn->next_generation;
	sn->state = WORKING;
	if (r->clone)
		session_set_suspend(sn->sessions); /* if nobody said Prepare */
	exec_table_resume(sn->table, r->clone);
	log_debug("snapshot", NULL, "resumed as %s, generation %llu",
	          r->clone ? "a clone" : "the same", (unsigned long long)sn->generation);
	tell(&sn->resuming, NULL);
}

static void run_renew(struct work *w, struct worker *me)
{
	struct renewing *n = (struct renewing *)w;
	(void)me;

	n->failed = renew(n->renewal);
}

static void on_run(struct work *w)
{
	struct renewing *n = (struct renewing *)w;

	if (n->owner != NULL)
		on_renewed(n->owner, n->renewal, n->failed);
	renewal_free(n->renewal);
	free(n);
}

static void on_late(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct snapshot *sn = t->data;
	(void)loop;
	(void)revents;

	sn->renewing->owner = NULL;
	on_renewed(sn, sn->renewing->renewal, -1);
}

/* A repetition's answer is known. */
static void on_answer(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct snapshot *sn = t->data;
	(void)loop;
	(void)revents;

	tell(&sn->repeating, NULL);
}

static int begin_resume(struct snapshot *sn, const Sandgate__Resume *m, struct err *e)
{
	struct renewing *n = calloc(1, sizeof(*n));

	if (n == NULL)
		return err_set(e, ERR_INTERNAL, "out of memory");
	if ((n->renewal = renewal_parse(m, e)) == NULL) {
		free(n);
		return -1;
	}
	n->work = (struct work){.run = run_renew, .on_done = on_run};
	n->owner = sn;
	n->renewal->may_manage = sn->config->manage_machine;
	stop_preparing(sn);
	sn->came_from = sn->state == WORKING ? WORKING : PREPARED;
	sn->state = RESUMING;
	sn->next_generation = m->generation;
	sn->renewing = n;
	session_set_close_dead(sn->sessions);
	start_timer(sn, &sn->late, RENEW_DEADLINE_S);
	workers_start(sn->workers, &n->work);
	return 0;
}

int snapshot_resume(struct snapshot *sn, const Sandgate__Resume *m, struct snapshot_waiter *w,
                    struct err *e)
{
	if (sn->state == RESUMING && m->generation != sn->next_generation)
		return err_set(e, ERR_INVALID_STATE, "another Resume is being carried out");
	if (m->generation < sn->generation)
		return err_set(e, ERR_INVALID_STATE, "this guest is at generation %llu",
		               (unsigned long long)sn->generation);
	if (m->generation == sn->generation) {
		wait_for(&sn->repeating, w);
		start_timer(sn, &sn->answer, 0);
		return 0;
	}
	if (sn->state != RESUMING && begin_resume(sn, m, e) < 0)
		return -1;
	wait_for(&sn->resuming, w);
	return 0;
}

/* ---- life ---- */

struct snapshot *snapshot_create(struct ev_loop *loop, struct config *config,
                                 struct exec_table *table, struct session_set *sessions,
                                 struct workers *workers, struct err *e)
{
	struct snapshot *sn = calloc(1, sizeof(*sn));
	if (sn == NULL) {
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	if (getrandom(sn->instance, sizeof(sn->instance), 0) != sizeof(sn->instance)) {
		err_errno(e, ERR_INTERNAL, errno, "getrandom");
		free(sn);
		return NULL;
	}
	sn->loop = loop;
	sn->config = config;
	sn->table = table;
	sn->sessions = sessions;
	sn->workers = workers;
	sn->generation = 1;
	LIST_INIT(&sn->preparing);
	LIST_INIT(&sn->resuming);
	LIST_INIT(&sn->repeating);
	helper_init(&sn->sync, loop, on_synced);
	ev_timer_init(&sn->look, on_look, 0, 0);
	ev_timer_init(&sn->unheard, on_unheard, 0, 0);
	ev_timer_init(&sn->late, on_late, 0, 0);
	ev_timer_init(&sn->answer, on_answer, 0, 0);
	sn->look.data = sn->unheard.data = sn->late.data = sn->answer.data = sn;
	return sn;
}

void snapshot_destroy(struct snapshot *sn)
{
	if (sn == NULL)
		return;
	helper_stop(&sn->sync);
	if (sn->renewing != NULL)
		sn->renewing->owner = NULL;
	ev_timer_stop(sn->loop, &sn->look);
	ev_timer_stop(sn->loop, &sn->unheard);
	ev_timer_stop(sn->loop, &sn->late);
	ev_timer_stop(sn->loop, &sn->answer);
	free(sn);
}

bool snapshot_takes_work(const struct snapshot *sn)
{
	return sn->state == WORKING;
}

uint64_t snapshot_generation(const struct snapshot *sn)
{
	return sn->generation;
}

const uint8_t *snapshot_instance(const struct snapshot *sn)
{
	return sn->instance;
}

bool snapshot_owns(const struct snapshot *sn, pid_t pid)
{
	return helper_owns(&sn->sync, pid);
}

void snapshot_fill_prepared(const struct snapshot *sn, Sandgate__Prepared *p)
{
	p->generation = sn->generation;
	p->synced = sn->synced;
}

void snapshot_fill_resumed(struct snapshot *sn, Sandgate__Resumed *r)
{
	r->generation = sn->generation;
	r->agent_instance = (ProtobufCBinaryData){sizeof(sn->instance), sn->instance};
	r->failed = sn->failed;
	r->n_failed = sn->failed_count;
}
