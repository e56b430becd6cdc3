#include "host-bridge/sandbox/freeze.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "host-bridge/link/link.h"
#include "proto/limits.h"
#include "proto/log.h"

struct freeze {
	struct freeze_target t;
	char dir[PATH_MAX];
	struct link *link; /* Prepare or Resume is being asked */
	bool in_vm;        /* the VMM is */
	Sandgate__ResumeRole role;
	struct freeze_result result;
	void (*on_done)(const struct freeze_result *r, void *arg);
	void *arg;
};

void freeze_cancel(struct freeze *f)
{
	if (f == NULL)
		return;
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

/* The first failure tells most. */
static void note(struct err *slot, const struct err *e)
{
	if (e != NULL && slot->code == ERR_NONE)
		*slot = *e;
}

/* ---- Resume ---- */

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
		for (size_t i = 0; i < frame->resumed->n_failed && i < 16; i++)
			log_warn("freeze", NULL, "a resumed guest could not renew its %.32s",
			         frame->resumed->failed[i]);
	}
	done(f);
}

static void on_resume_closed(struct link *l, const struct err *why, bool sent,
                             const Sandgate__Refused *refused, void *owner)
{
	struct freeze *f = owner;
	(void)l;
	(void)sent;
	(void)refused;
	f->link = NULL;
	note(&f->result.lost, why);
	done(f);
}

static int ask_resume(struct freeze *f, struct err *e)
{
	static const struct link_handlers handlers = {.on_frame = on_resumed,
	                                              .on_closed = on_resume_closed};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Resume resume = SANDGATE__RESUME__INIT;
	uint8_t entropy[RESUME_ENTROPY_BYTES];
	struct timespec now;

	if (getrandom(entropy, sizeof(entropy), 0) != sizeof(entropy))
		return err_errno(e, ERR_INTERNAL, errno, "getrandom");
	clock_gettime(CLOCK_REALTIME, &now);
	resume.generation = f->result.generation + 1;
	resume.role = f->role;
	resume.wall_clock_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	resume.entropy.data = entropy;
	resume.entropy.len = sizeof(entropy);
	if (f->role == SANDGATE__RESUME_ROLE__RESUME_CLONE) {
		resume.hostname.data = (uint8_t *)f->t.hostname;
		resume.hostname.len = strlen(f->t.hostname);
	}
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
	struct err e = {0};
	if (ask_resume(f, &e) == 0)
		return;
	note(&f->result.lost, &e);
	done(f);
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

static void go_on(struct freeze *f)
{
	struct err e = {0};
	f->in_vm = true;
	if (vm_ask(f->t.vm, VM_GO_ON, NULL, on_going, f, &e) == 0)
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
		go_on(f);
}

static void save(struct freeze *f)
{
	struct err e = {0};
	f->in_vm = true;
	if (vm_ask(f->t.vm, VM_SAVE, f->dir, on_saved, f, &e) == 0)
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
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	f->t = *t;
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

struct freeze *freeze_renew(const struct freeze_target *t, Sandgate__ResumeRole role,
                            void (*on_done)(const struct freeze_result *r, void *arg),
                            void *arg, struct err *e)
{
	struct freeze *f = create(t, "", on_done, arg, e);
	if (f == NULL)
		return NULL;
	f->role = role;
	if (ask_resume(f, e) == 0)
		return f;
	freeze_cancel(f);
	return NULL;
}
