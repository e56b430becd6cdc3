/* What becomes of a guest between its agent's first answer and its sandbox's running: its
 * template is baked, one that was restored is renewed, one that an earlier bridge left frozen
 * goes on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/sandbox/baked.h"
#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/sandbox/sandbox_warm.h"
#include "proto/limits.h"
#include "proto/log.h"

struct freeze_target sandbox_freeze_target(const struct sandbox *s)
{
	return (struct freeze_target){
	    .loop = s->set->loop,
	    .endpoint = s->endpoint,
	    .vm = s->vm,
	    .generation = s->generation,
	};
}

/* ---- after the first answer: a template is baked, a restored guest renewed ---- */

static void settle(struct sandbox *s, const struct freeze_result *r)
{
	s->freeze = NULL;
	s->generation = r->generation;
	if (r->lost.code != ERR_NONE)
		sandbox_failed(s, &r->lost);
	else if (s->warm)
		sandbox_warm_renewed(s);
	else
		sandbox_running(s);
}

static void renew(struct sandbox *s, bool same);

/* One that has the names of another, or its clock, is nobody's sandbox. Where the image's owner
 * has kept the agent from setting them, that is as it was wished. */
static void on_renewed(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	struct freeze_result judged = *r;
	if (s->recovers && r->lost.code == ERR_CAPACITY) {
		renew(s, true); /* it may well live */
		return;
	}
	bool clone = !s->waking && !s->recovers && s->restored;
	if (clone && r->lost.code == ERR_INTERNAL) /* the guest's fault, not this bridge's */
		judged.lost.code = ERR_LAUNCHER_FAILED;
	for (unsigned n = 0; clone && sandbox_agent_has(s, "machine") && freeze_step(n) != NULL;
	     n++)
		if (r->failed & 1u << n && judged.lost.code == ERR_NONE)
			err_set(&judged.lost, ERR_LAUNCHER_FAILED,
			        "the guest could not be given a %s of its own", freeze_step(n));
	settle(s, &judged);
}

/* Who the agent is, beside its guest's files: what starts from them need not ask. */
void sandbox_write_agent(const struct sandbox *s, const char *dir)
{
	char path[PATH_MAX + sizeof(SNAPSHOT_AGENT)];
	json_t *json =
	    json_pack("{s:I, s:O}", "generation", (json_int_t)s->generation, "agent", s->agent);
	snprintf(path, sizeof(path), "%s/" SNAPSHOT_AGENT, dir);
	if (json_dump_file(json, path, JSON_COMPACT) < 0) {
		log_warn("sandbox", s->id, "%s could not be written", path);
		unlink(path); /* half of it would be a lie */
	}
	json_decref(json);
}

void sandbox_read_agent(struct sandbox *s, const char *dir)
{
	char path[PATH_MAX + sizeof(SNAPSHOT_AGENT)];
	json_int_t generation;
	json_t *agent;
	snprintf(path, sizeof(path), "%s/" SNAPSHOT_AGENT, dir);
	json_t *json = doc_load(path, 0, ERR_INTERNAL, NULL);
	if (json_unpack(json, "{s:I, s:o}", "generation", &generation, "agent", &agent) == 0) {
		s->generation = (uint64_t)generation;
		s->agent = json_incref(agent);
	}
	json_decref(json);
}

/* A template that is not baked is merely slower. */
static void on_baked(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	struct err e = r->not_saved;
	char part[PATH_MAX];
	s->baking = false;
	s->generation = r->generation;
	baked_part(s->baked, part);
	if (e.code == ERR_NONE)
		sandbox_write_agent(s, part);
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
	struct freeze_target t = sandbox_freeze_target(s);
	if (baked_begin(s->baked, part, e) < 0)
		return -1;
	s->freeze = freeze_save(&t, part, on_baked, s, e);
	s->baking = s->freeze != NULL;
	if (s->baking)
		return 0;
	baked_drop(s->baked);
	return -1;
}

/* As the same guest, or as one of its own. */
static void renew(struct sandbox *s, bool same)
{
	struct err e = {0};
	char hostname[64];
	struct freeze_target t = sandbox_freeze_target(s);
	Sandgate__Resume how = SANDGATE__RESUME__INIT;
	if (!same) {
		how.role = SANDGATE__RESUME_ROLE__RESUME_CLONE;
		launcher_hostname(s->id, hostname);
		how.hostname.data = (uint8_t *)hostname;
		how.hostname.len = strlen(hostname);
	}
	s->freeze = freeze_renew(&t, &how, on_renewed, s, &e);
	if (s->freeze == NULL && !sandbox_ask_agent_later(s, &e))
		sandbox_failed(s, &e);
}

void sandbox_started(struct sandbox *s)
{
	struct err e = {0};
	if (s->baked[0] == '\0' || baked_exists(s->baked)) {
		sandbox_running(s);
	} else if (bake(s, &e) < 0) {
		log_info("sandbox", s->id, "its template is not baked: %s", e.msg);
		sandbox_running(s);
	}
}

void sandbox_answered(struct sandbox *s)
{
	bool same = s->waking || s->recovers;
	struct err e = {0};
	if (same || s->restored) {
		renew(s, same);
	} else if (vm_check_boot(s->vm, &e) < 0) {
		sandbox_failed(s, &e);
	} else if (s->start != NULL) {
		sandbox_start(s);
	} else {
		sandbox_started(s);
	}
}

/* ---- what an earlier bridge left frozen ---- */

static void on_recovered(const struct err *e, void *arg)
{
	struct sandbox *s = arg;
	if (e != NULL)
		sandbox_failed(s, e);
	else
		sandbox_ask_agent(
		    s); /* it may wait for Resume, or not have heard of anything */
}

void sandbox_recover(struct sandbox *s)
{
	struct err e = {0};
	s->recovers = true;
	link_gate_close(&s->gate, NULL);
	if (vm_ask(s->vm, VM_RECOVER, NULL, on_recovered, s, &e) < 0)
		sandbox_failed(s, &e);
}
