#include "host-bridge/sandbox/sandbox_warm.h"

#include <stdio.h>
#include <string.h>

#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/limits.h"
#include "proto/log.h"

unsigned sandbox_warm_count(const struct sandbox_set *set)
{
	unsigned n = 0;
	const struct sandbox *s;
	TAILQ_FOREACH (s, &set->warm, entry)
		n += s->warmed && !s->deleted;
	return n;
}

/* ---- to have some ---- */

static unsigned count_of(const struct sandbox_set *set, const char *baked)
{
	unsigned n = 0;
	const struct sandbox *s;
	TAILQ_FOREACH (s, &set->warm, entry)
		n += !s->deleted && strcmp(s->baked, baked) == 0;
	return n;
}

/* The host has other things to do now. */
static bool is_busy(const struct sandbox_set *set)
{
	const struct sandbox *s;
	TAILQ_FOREACH (s, &set->all, entry)
		if (s->status == SANDBOX_CREATING && !s->deleted)
			return true;
	TAILQ_FOREACH (s, &set->warm, entry)
		if (!s->warmed)
			return true;
	return false;
}

static int copy_kind(struct sandbox *s, const struct sandbox *like, struct err *e)
{
	struct sandbox_spec kind = {.vcpus = like->spec.vcpus,
	                            .memory_mib = like->spec.memory_mib,
	                            .disk_mib = like->spec.disk_mib,
	                            .metadata = like->spec.metadata};
	snprintf(kind.template, sizeof(kind.template), "%s", like->spec.template);
	snprintf(kind.image, sizeof(kind.image), "%s", like->spec.image);
	if (sandbox_copy_spec(&s->spec, &kind) < 0)
		return err_set(e, ERR_CAPACITY, "out of memory");
	json_object_clear(s->spec.metadata);
	s->launcher = like->launcher;
	s->isolation = like->isolation;
	snprintf(s->baked, sizeof(s->baked), "%s", like->baked);
	s->restored = true;
	s->serves = like->serves;
	return 0;
}

static int start(const struct sandbox *like, struct err *e)
{
	struct sandbox_set *set = like->set;
	char id[128];
	if (sandbox_set_new_id(set, "sb", id, sizeof(id), e) < 0)
		return -1;
	struct sandbox *s = sandbox_new(set, id);
	if (s == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	TAILQ_REMOVE(&set->all, s, entry);
	TAILQ_INSERT_TAIL(&set->warm, s, entry);
	s->warm = true;
	if (copy_kind(s, like, e) == 0) {
		sandbox_read_agent(s, s->baked);
		if (s->agent != NULL && sandbox_restart(s, s->baked, e) == 0) {
			sandbox_timer_in(s, WARM_KEPT_S);
			return 0;
		}
	}
	sandbox_warm_drop(s);
	return -1;
}

void sandbox_warm_fill(const struct sandbox *like)
{
	struct sandbox_set *set = like->set;
	struct err e = {0};
	if (like->baked[0] == '\0' || !baked_exists(like->baked) || is_busy(set) ||
	    count_of(set, like->baked) >= set->warm_pool)
		return;
	if (start(like, &e) < 0)
		log_info("sandbox", NULL, "no warm VM: %s", e.msg);
}

/* ---- its first exec ---- */

#define EXEC_ID "rehearsal"

/* Whether it succeeded or not: a first exec that takes longer is nobody's loss. */
static void rehearsed(struct sandbox *s)
{
	link_destroy(s->asked, false);
	s->asked = NULL;
	s->warmed = true;
	if (s->warm)
		sandbox_timer_in(s, WARM_KEPT_S);
	else
		sandbox_running(s);
}

static void on_closed(struct link *l, const struct err *why, bool sent,
                      const Sandgate__Refused *refused, void *owner)
{
	struct sandbox *s = owner;
	(void)l;
	(void)sent;
	(void)refused;
	log_info("sandbox", s->id, "its first exec: %s", why->msg);
	s->asked = NULL;
	rehearsed(s);
}

static void ask(struct sandbox *s, Sandgate__Open *open,
                void (*on_frame)(struct link *l, const Sandgate__GuestFrame *f, void *owner))
{
	const struct link_handlers handlers = {.on_frame = on_frame, .on_closed = on_closed};
	struct err e = {0};
	link_destroy(s->asked, false);
	s->asked = link_create(s->set->loop, &s->endpoint, CONNECT_DEADLINE_MS, &e);
	if (s->asked == NULL ||
	    link_open(s->asked, open, CONNECT_DEADLINE_MS, &handlers, s, &e) < 0)
		rehearsed(s);
	else
		link_expect(s->asked, REHEARSAL_MS);
}

static void on_forgotten(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	(void)l;
	(void)f;
	rehearsed(owner);
}

static void on_exit_frame(struct link *l, const Sandgate__GuestFrame *f, void *owner)
{
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ForgetExec forget = SANDGATE__FORGET_EXEC__INIT;
	(void)l;
	if (f->body_case != SANDGATE__GUEST_FRAME__BODY_EXIT)
		return;
	forget.exec_id = EXEC_ID;
	open.op_case = SANDGATE__OPEN__OP_FORGET_EXEC;
	open.forget_exec = &forget;
	ask(owner, &open, on_forgotten);
}

/* Everything that an exec needs is brought into the host's memory, and translated where there
 * is no KVM; then the guest forgets it. */
static void rehearse(struct sandbox *s)
{
	static char cmd[] = "true";
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Exec exec = SANDGATE__EXEC__INIT;
	exec.exec_id = EXEC_ID;
	exec.cmd = (ProtobufCBinaryData){.data = (uint8_t *)cmd, .len = sizeof(cmd) - 1};
	exec.timeout_ms = REHEARSAL_MS;
	open.op_case = SANDGATE__OPEN__OP_EXEC;
	open.exec = &exec;
	s->warmed = false;
	s->rehearsed = true;
	ask(s, &open, on_exit_frame);
}

void sandbox_warm_renewed(struct sandbox *s)
{
	s->warmed = true;
	sandbox_timer_in(s, REHEARSAL_AFTER_S);
	sandbox_warm_fill(s); /* if there are to be more */
}

void sandbox_warm_timer(struct sandbox *s)
{
	if (s->warmed && !s->rehearsed)
		rehearse(s);
	else
		sandbox_warm_drop(s);
}

/* ---- to take one ---- */

static struct sandbox *find(const struct sandbox *s)
{
	struct sandbox *w, *found = NULL;
	if (!s->restored || s->source != NULL)
		return NULL;
	TAILQ_FOREACH (w, &s->set->warm, entry)
		if (!w->deleted && w->launcher == s->launcher &&
		    strcmp(w->baked, s->baked) == 0 && (found == NULL || !found->warmed))
			found = w;
	return found;
}

struct sandbox *sandbox_warm_claim(struct sandbox *s)
{
	struct sandbox *w = find(s);
	if (w == NULL)
		return NULL;
	sandbox_free_spec(&w->spec);
	w->spec = s->spec;
	s->spec = (struct sandbox_spec){0};
	w->ready_waiters = s->ready_waiters;
	SLIST_INIT(&s->ready_waiters);
	w->created_ms = s->created_ms;
	w->born = w->active = w->made = s->born;
	if (w->up > 0.)
		w->up = s->born; /* nobody has waited for that */
	sandbox_free(s);
	ev_timer_stop(w->set->loop, &w->timer);
	TAILQ_REMOVE(&w->set->warm, w, entry);
	w->warm = false;
	sandbox_insert(w);
	return w;
}

/* ---- to be rid of them ---- */

void sandbox_warm_drop(struct sandbox *s)
{
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_NONE, NULL, NULL);
}

bool sandbox_warm_drop_all(struct sandbox_set *set)
{
	struct sandbox *s;
	bool any = !TAILQ_EMPTY(&set->warm);
	while ((s = TAILQ_FIRST(&set->warm)) != NULL) {
		vm_destroy(s->vm);
		s->vm = NULL;
		sandbox_free(s);
	}
	return any;
}
