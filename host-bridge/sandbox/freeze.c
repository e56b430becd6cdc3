#include "host-bridge/sandbox/freeze.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "host-bridge/link/link.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "proto/log.h"

struct freeze {
	struct freeze_target t;
	char dir[PATH_MAX];
	struct link *link; /* Prepare or Resume is being asked */
	bool in_vm;        /* the VMM is */
	bool only_prepares;
	bool lets_go_on; /* Resume ends what was begun here */
	int64_t told_ms; /* the wall clock that Resume tells; 0: somebody else's */
	unsigned told;   /* how often */
	ev_timer again;  /* Resume could not even be asked */
	struct freeze_result result;
	void (*on_done)(const struct freeze_result *r, void *arg);
	void *arg;
};

void freeze_cancel(struct freeze *f)
{
	if (f == NULL)
		return;
	ev_timer_stop(f->t.loop, &f->again);
	link_destroy(f->link, false);
	if (f->in_vm)
		vm_ask_cancel(f->t.vm);
	free(f);
}

static void done(struct freeze *f)
{
	struct freeze_result result = f->result;
	void (*on_done)(const struct freeze_result *, void *) = f->on_done;
	void *arg = f->arg;
	freeze_cancel(f);
	on_done(&result, arg);
}

bool freeze_is_loss(const struct freeze_result *r)
{
	return r->lost.code != ERR_NONE && r->lost.code != ERR_TIMEOUT &&
	       r->lost.code != ERR_UNREACHABLE;
}

/* The first failure tells most. */
static void note(struct err *slot, const struct err *e)
{
	if (e != NULL && slot->code == ERR_NONE)
		*slot = *e;
}

/* ---- Resume ---- */

/* proto/sandgate.proto, Resumed.failed */
static const char *const steps[] = {"entropy", "clock",   "hostname",    "machine_id",
                                    "boot_id", "network", "name_servers"};

const char *freeze_step(unsigned n)
{
	return n < sizeof(steps) / sizeof(*steps) ? steps[n] : NULL;
}

static unsigned failed_steps(const Sandgate__Resumed *m)
{
	unsigned failed = 0;
	for (unsigned n = 0; n < sizeof(steps) / sizeof(*steps); n++)
		for (size_t i = 0; i < m->n_failed && i < 16; i++)
			failed |= (unsigned)(strcmp(m->failed[i], steps[n]) == 0) << n;
	return failed;
}

static int ask_resume(struct freeze *f, const Sandgate__Resume *how, struct err *e);

/* A slow guest has set its clock to what it was when it was asked. */
static bool set_clock_again(struct freeze *f)
{
	const Sandgate__Resume same = SANDGATE__RESUME__INIT;
	struct err e = {0};
	return f->result.failed == 0 && f->told_ms != 0 &&
	       clock_wall_ms() - f->told_ms > CLOCK_LATE_MS && f->told < CLOCK_TOLD_MAX &&
	       ask_resume(f, &same, &e) == 0;
}

static void on_resumed(struct link *l, const Sandgate__GuestFrame *frame, void *owner)
{
	struct freeze *f = owner;
	struct err e = {0};
	link_destroy(l, false);
	f->link = NULL;
	if (frame->body_case != SANDGATE__GUEST_FRAME__BODY_RESUMED) {
		err_set(&e, ERR_PROTOCOL, "the agent answered another question");
		note(&f->result.lost, &e);
	} else {
		f->result.generation = frame->resumed->generation;
		f->result.failed |= failed_steps(frame->resumed);
		for (unsigned n = 0; freeze_step(n) != NULL; n++)
			if (f->result.failed & 1u << n)
				log_warn("freeze", NULL,
				         "a resumed guest could not renew its %s",
				         freeze_step(n));
		if (set_clock_again(f))
			return;
	}
	done(f);
}

static void resume(struct freeze *f);

/* A shortage of this bridge's own is no reason to give up a guest that waits to be told. */
static void on_resume_closed(struct link *l, const struct err *why, bool sent,
                             const Sandgate__Refused *refused, void *owner)
{
	struct freeze *f = owner;
	(void)l;
	(void)sent;
	(void)refused;
	f->link = NULL;
	if (f->lets_go_on && why->code == ERR_CAPACITY) {
		resume(f);
		return;
	}
	note(&f->result.lost, why);
	done(f);
}

static int ask_resume(struct freeze *f, const Sandgate__Resume *how, struct err *e)
{
	static const struct link_handlers handlers = {.on_frame = on_resumed,
	                                              .on_closed = on_resume_closed};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Resume resume = *how;
	uint8_t entropy[RESUME_ENTROPY_BYTES];

	if (getrandom(entropy, sizeof(entropy), 0) != sizeof(entropy))
		return err_errno(e, ERR_INTERNAL, errno, "getrandom");
	resume.generation = f->result.generation + 1;
	f->told_ms = resume.wall_clock_ms == 0 ? clock_wall_ms() : 0;
	f->told++;
	if (f->told_ms != 0)
		resume.wall_clock_ms = (uint64_t)f->told_ms;
	resume.entropy.data = entropy;
	resume.entropy.len = sizeof(entropy);
	open.op_case = SANDGATE__OPEN__OP_RESUME;
	open.resume = &resume;
	f->link = link_create(f->t.loop, &f->t.endpoint, CONNECT_DEADLINE_MS, e);
	if (f->link == NULL)
		return -1;
	link_insist(f->link);
	return link_open(f->link, &open, RESUME_ANSWER_MS, &handlers, f, e);
}

static void resume(struct freeze *f)
{
	const Sandgate__Resume same = SANDGATE__RESUME__INIT;
	struct err e = {0};
	f->lets_go_on = true;
	f->told = 0;
	if (ask_resume(f, &same, &e) == 0)
		return;
	link_destroy(f->link, false);
	f->link = NULL;
	if (e.code == ERR_CAPACITY) {
		ev_timer_set(&f->again, SHORTAGE_RETRY_S, 0.);
		ev_timer_start(f->t.loop, &f->again);
		return;
	}
	note(&f->result.lost, &e);
	done(f);
}

static void on_again(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop;
	(void)revents;
	resume(w->data);
}

/* ---- the VM ---- */

static void on_going(const struct err *e, void *arg)
{
	struct freeze *f = arg;
	f->in_vm = false;
	note(&f->result.lost, e);
	if (e == NULL)
		resume(f);
	else
		done(f);
}

/* Where saving has failed, nobody knows how far it has come. */
static void go_on(struct freeze *f, bool saved)
{
	struct err e = {0};
	f->in_vm = true;
	if (vm_ask(f->t.vm, saved ? VM_GO_ON : VM_RECOVER, NULL, on_going, f, &e) == 0)
		return;
	on_going(&e, f);
}

static void on_saved(const struct err *e, void *arg)
{
	struct freeze *f = arg;
	f->in_vm = false;
	note(&f->result.not_saved, e);
	if (e == NULL && f->t.stays)
		done(f);
	else
		go_on(f, e == NULL);
}

static void save(struct freeze *f)
{
	struct err e = {0};
	enum vm_request what = f->t.stays ? VM_SAVE_LAST : VM_SAVE;
	f->in_vm = true;
	if (vm_ask(f->t.vm, what, f->dir, on_saved, f, &e) == 0)
		return;
	f->in_vm = false;
	note(&f->result.not_saved, &e);
	resume(f);
}

/* ---- Prepare ---- */

static void on_prepared(struct link *l, const Sandgate__GuestFrame *frame, void *owner)
{
	struct freeze *f = owner;
	struct err e = {0};
	link_destroy(l, false);
	f->link = NULL;
	if (frame->body_case == SANDGATE__GUEST_FRAME__BODY_PREPARED) {
		f->result.generation = frame->prepared->generation;
		if (f->only_prepares)
			done(f);
		else
			save(f);
		return;
	}
	err_set(&e, ERR_PROTOCOL, "the agent answered another question");
	note(&f->result.not_saved, &e);
	resume(f);
}

/* An agent that did not say that it is prepared may be so all the same. */
static void on_prepare_closed(struct link *l, const struct err *why, bool sent,
                              const Sandgate__Refused *refused, void *owner)
{
	struct freeze *f = owner;
	(void)l;
	f->link = NULL;
	note(&f->result.not_saved, why);
	if (sent && refused == NULL)
		resume(f);
	else
		done(f);
}

static int ask_prepare(struct freeze *f, struct err *e)
{
	static const struct link_handlers handlers = {.on_frame = on_prepared,
	                                              .on_closed = on_prepare_closed};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Prepare prepare = SANDGATE__PREPARE__INIT;

	open.op_case = SANDGATE__OPEN__OP_PREPARE;
	open.prepare = &prepare;
	f->link = link_create(f->t.loop, &f->t.endpoint, CONNECT_DEADLINE_MS, e);
	if (f->link == NULL)
		return -1;
	return link_open(f->link, &open, PREPARE_ANSWER_MS, &handlers, f, e);
}

static struct freeze *create(const struct freeze_target *t, const char *dir,
                             void (*on_done)(const struct freeze_result *r, void *arg),
                             void *arg, struct err *e)
{
	struct freeze *f = calloc(1, sizeof(*f));
	if (f == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	f->t = *t;
	ev_timer_init(&f->again, on_again, 0., 0.);
	f->again.data = f;
	f->result.generation = t->generation;
	f->on_done = on_done;
	f->arg = arg;
	snprintf(f->dir, sizeof(f->dir), "%s", dir);
	return f;
}

struct freeze *freeze_save(const struct freeze_target *t, const char *dir,
                           void (*on_done)(const struct freeze_result *r, void *arg), void *arg,
                           struct err *e)
{
	struct freeze *f = create(t, dir, on_done, arg, e);
	if (f == NULL || ask_prepare(f, e) == 0)
		return f;
	freeze_cancel(f);
	return NULL;
}

struct freeze *freeze_prepare(const struct freeze_target *t,
                              void (*on_done)(const struct freeze_result *r, void *arg),
                              void *arg, struct err *e)
{
	struct freeze *f = freeze_save(t, "", on_done, arg, e);
	if (f != NULL)
		f->only_prepares = true;
	return f;
}

struct freeze *freeze_renew(const struct freeze_target *t, const Sandgate__Resume *how,
                            void (*on_done)(const struct freeze_result *r, void *arg),
                            void *arg, struct err *e)
{
	struct freeze *f = create(t, "", on_done, arg, e);
	if (f == NULL || ask_resume(f, how, e) == 0)
		return f;
	freeze_cancel(f);
	return NULL;
}
