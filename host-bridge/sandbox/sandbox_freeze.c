/* When a sandbox's state is saved, and what becomes of one that was restored. */
#include <stdio.h>
#include <string.h>

#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "proto/log.h"

static struct freeze_target target(const struct sandbox *s)
{
	struct freeze_target t = {
	    .loop = s->set->loop,
	    .endpoint = s->endpoint,
	    .vm = s->vm,
	    .generation = s->generation,
	};
	/* A ULID is the last of an id, and unique alone. */
	const char *ulid = strrchr(s->id, '-');
	snprintf(t.hostname, sizeof(t.hostname), "sb%s", ulid != NULL ? ulid : "");
	return t;
}

/* The guest goes on, or it is lost. */
static void settle(struct sandbox *s, const struct freeze_result *r)
{
	s->freeze = NULL;
	s->generation = r->generation;
	if (r->lost.code == ERR_NONE)
		sandbox_running(s);
	else
		sandbox_failed(s, &r->lost);
}

static void on_renewed(const struct freeze_result *r, void *arg)
{
	settle(arg, r);
}

/* A template that is not baked is merely slower. */
static void on_baked(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	struct err e = r->not_saved;
	if (e.code == ERR_NONE)
		baked_keep(s->baked, &e);
	else
		baked_drop(s->baked);
	if (e.code != ERR_NONE)
		log_warn("sandbox", s->id, "its template could not be baked: %s", e.msg);
	settle(s, r);
}

static int bake(struct sandbox *s, struct err *e)
{
	char part[PATH_MAX];
	struct freeze_target t = target(s);
	if (baked_begin(s->baked, part, e) < 0)
		return -1;
	s->freeze = freeze_save(&t, part, on_baked, s, e);
	if (s->freeze != NULL)
		return 0;
	baked_drop(s->baked);
	return -1;
}

void sandbox_answered(struct sandbox *s)
{
	struct err e = {0};
	struct freeze_target t = target(s);
	if (s->restored) {
		s->freeze = freeze_renew(&t, on_renewed, s, &e);
		if (s->freeze == NULL)
			sandbox_failed(s, &e);
	} else if (s->baked[0] == '\0' || baked_exists(s->baked)) {
		sandbox_running(s);
	} else if (bake(s, &e) < 0) {
		log_info("sandbox", s->id, "its template is not baked: %s", e.msg);
		sandbox_running(s);
	}
}
