#include "guest-agent/snapshot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "guest-agent/clock.h"
#include "guest-agent/helper.h"
#include "guest-agent/renew.h"
#include "proto/limits.h"
#include "proto/log.h"

/* How often Prepare looks whether the last sessions have gone (seconds). */
#define LOOK_S 0.01

enum state { WORKING, PREPARING, PREPARED, RESUMING };

LIST_HEAD(waiters, snapshot_waiter);

struct snapshot {
	struct ev_loop *loop;
	struct config *config;
	struct exec_table *table;
	struct session_set *sessions;

	enum state state;
	uint64_t generation;
	uint8_t instance[RENEW_ID_SIZE];
	struct waiters preparing, resuming;

	/* Prepare */
	struct helper sync;
	ev_timer look;    /* until the sessions have gone */
	ev_timer unheard; /* until it goes on by itself */
	uint64_t began_ms;
	bool synced;

	/* Resume */
	struct helper renew;
	ev_timer answer; /* what needs no work is answered from the loop as well */
	struct renewal *renewal;
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
	log_info("snapshot", NULL, "prepared");
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

static void take_env(struct snapshot *sn)
{
	const struct renewal *r = sn->renewal;
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

static void on_renewed(struct helper *h, int failed)
{
	struct snapshot *sn = (struct snapshot *)((char *)h - offsetof(struct snapshot, renew));
	bool clone = sn->renewal->clone;
	struct err e = {0};

	if (clone && (failed < 0 || (failed & 1 << RENEW_ENTROPY))) {
		if (failed < 0)
			err_set(&e, ERR_INTERNAL, "the guest could not be renewed in time");
		else
			err_field(&e, ERR_INTERNAL, "entropy",
			          "the kernel took no entropy: the clone would repeat others");
		sn->state = sn->came_from;
	} else {
		note_failed(sn, failed);
		take_env(sn);
		if (clone)
			memcpy(sn->instance, sn->renewal->instance, sizeof(sn->instance));
		sn->generation = sn->next_generation;
		sn->state = WORKING;
		if (clone)
			session_set_suspend(sn->sessions); /* if nobody said Prepare */
		exec_table_resume(sn->table, clone);
		log_info("snapshot", NULL, "resumed as %s, generation %llu",
		         clone ? "a clone" : "the same", (unsigned long long)sn->generation);
	}
	renewal_free(sn->renewal);
	sn->renewal = NULL;
	tell(&sn->resuming, e.code != ERR_NONE ? &e : NULL);
}

/* A repetition's answer is known; a renewal without its helper has failed. */
static void on_answer(struct ev_loop *loop, ev_timer *w, int revents)
{
	struct snapshot *sn = w->data;
	(void)loop;
	(void)revents;

	if (sn->state == RESUMING)
		on_renewed(&sn->renew, -1);
	else
		tell(&sn->resuming, NULL);
}

static void begin_resume(struct snapshot *sn, struct renewal *r, uint64_t generation)
{
	stop_preparing(sn);
	sn->came_from = sn->state == WORKING ? WORKING : PREPARED;
	sn->state = RESUMING;
	sn->renewal = r;
	sn->next_generation = generation;
	r->may_manage = sn->config->manage_machine;
	session_set_close_dead(sn->sessions);
	if (helper_start(&sn->renew, renew, r, RENEW_DEADLINE_S) < 0) {
		log_error("snapshot", NULL, "resume: %s", strerror(errno));
		start_timer(sn, &sn->answer, 0);
	}
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
		start_timer(sn, &sn->answer, 0);
	} else if (sn->state != RESUMING) {
		struct renewal *r = renewal_parse(m, e);
		if (r == NULL)
			return -1;
		begin_resume(sn, r, m->generation);
	}
	wait_for(&sn->resuming, w);
	return 0;
}

/* ---- life ---- */

struct snapshot *snapshot_create(struct ev_loop *loop, struct config *config,
                                 struct exec_table *table, struct session_set *sessions,
                                 struct err *e)
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
	sn->generation = 1;
	LIST_INIT(&sn->preparing);
	LIST_INIT(&sn->resuming);
	helper_init(&sn->sync, loop, on_synced);
	helper_init(&sn->renew, loop, on_renewed);
	ev_timer_init(&sn->look, on_look, 0, 0);
	ev_timer_init(&sn->unheard, on_unheard, 0, 0);
	ev_timer_init(&sn->answer, on_answer, 0, 0);
	sn->look.data = sn->unheard.data = sn->answer.data = sn;
	return sn;
}

void snapshot_destroy(struct snapshot *sn)
{
	if (sn == NULL)
		return;
	helper_stop(&sn->sync);
	helper_stop(&sn->renew);
	ev_timer_stop(sn->loop, &sn->look);
	ev_timer_stop(sn->loop, &sn->unheard);
	ev_timer_stop(sn->loop, &sn->answer);
	renewal_free(sn->renewal);
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
	return helper_owns(&sn->sync, pid) || helper_owns(&sn->renew, pid);
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
