/* A sandbox that takes no memory while nobody needs it: saved to disk, its VM gone, and brought
 * back, the same machine, by whoever asks for something. Until it runs again it stays
 * hibernated, for a later bridge as well: what was saved is only removed then. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host-bridge/sandbox/sandbox_steps.h"
#include "host-bridge/steady.h"
#include "host-bridge/vm/vm_sweep.h"
#include "proto/log.h"

void sandbox_saved_dir(const struct sandbox_set *set, const char *id, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%s/hibernated%s%s", set->state_dir, id != NULL ? "/" : "",
	         id != NULL ? id : "");
}

static void saved_dir(const struct sandbox *s, char out[PATH_MAX])
{
	sandbox_saved_dir(s->set, s->id, out);
}

void sandbox_drop_saved(struct sandbox *s)
{
	char dir[PATH_MAX];
	saved_dir(s, dir);
	if (access(dir, F_OK) == 0)
		vm_discard_dir(dir);
}

bool sandbox_is_saved(const struct sandbox *s)
{
	char path[PATH_MAX + 16];
	saved_dir(s, path);
	return access(path, F_OK) == 0 || errno != ENOENT;
}

static int make_dir(struct sandbox *s, struct err *e)
{
	char dir[PATH_MAX];
	sandbox_drop_saved(s); /* of a try that did not succeed */
	saved_dir(s, dir);
	if (mkdir(dir, 0700) == 0)
		return 0;
	return err_errno(e, err_of_errno(errno, ERR_INTERNAL), errno, "%s", dir);
}

/* ---- to sleep ---- */

/* Written down before the VM is stopped: a bridge that finds both takes what was saved. */
static void fall_asleep(struct sandbox *s)
{
	struct err e = {0};
	s->status = SANDBOX_HIBERNATED;
	if (sandbox_save(s, &e) < 0) { /* then the next bridge would not find it asleep */
		s->status = SANDBOX_RUNNING;
		sandbox_drop_saved(s);
		sandbox_operation_end(s, NULL, &e);
		sandbox_recover(s);
		return;
	}
	sandbox_event(s, "hibernated", NULL, NULL);
	log_info("sandbox", s->id, "hibernates");
	sandbox_stop_vm(s);
}

static void on_saved(const struct freeze_result *r, void *arg)
{
	struct sandbox *s = arg;
	s->freeze = NULL;
	s->generation = r->generation;
	if (r->not_saved.code == ERR_NONE) {
		fall_asleep(s); /* on_gone tells */
		return;
	}
	sandbox_drop_saved(s);
	if (freeze_is_loss(r)) {
		sandbox_failed(s, &r->lost);
		return;
	}
	sandbox_reopen(s);
	sandbox_operation_end(s, NULL, &r->not_saved);
}

static void on_quiet(struct link_gate *g)
{
	struct sandbox *s = (struct sandbox *)((char *)g - offsetof(struct sandbox, gate));
	struct freeze_target t = sandbox_freeze_target(s);
	struct freeze_result r = {.generation = s->generation};
	char dir[PATH_MAX];
	t.stays = true;
	saved_dir(s, dir);
	s->freeze = freeze_save(&t, dir, on_saved, s, &r.not_saved);
	if (s->freeze == NULL)
		on_saved(&r, s);
}

int sandbox_hibernate(struct sandbox *s, sandbox_done *on_done, void *arg, struct err *e)
{
	if (sandbox_is_called(s))
		return err_set(e, ERR_INVALID_STATE, "calls are in progress in the sandbox");
	if (sandbox_check_vmm(s, e) < 0 ||
	    sandbox_operation_begin(s, SANDBOX_RUNNING, on_done, arg, e) < 0)
		return -1;
	if (make_dir(s, e) < 0) {
		sandbox_operation_forget(s);
		return -1;
	}
	sandbox_quiesce(s);
	link_gate_close(&s->gate, on_quiet);
	return 0;
}

/* Its VM is gone. Who came meanwhile waits at the gate. */
void sandbox_asleep(struct sandbox *s)
{
	struct err e = {0};
	if (s->operation != NULL)
		sandbox_operation_end(s, NULL, NULL);
	bool wanted = sandbox_is_called(s) || !SLIST_EMPTY(&s->ready_waiters);
	if (wanted && !s->unwoken && sandbox_wake(s, &e) < 0)
		sandbox_not_woken(s, &e);
	sandbox_update_timer(s);
}

/* ---- and back ---- */

int sandbox_wake(struct sandbox *s, struct err *e)
{
	char dir[PATH_MAX];
	if (s->status != SANDBOX_HIBERNATED)
		return err_set(e, ERR_INVALID_STATE, "the sandbox is %s",
		               sandbox_status_name(s->status));
	s->unwoken = false;
	if (s->waking || s->vm != NULL)
		return 0; /* it is on its way, or its VM still ends: sandbox_asleep wakes it */
	saved_dir(s, dir);
	s->waking = true;
	sandbox_event(s, "booting", NULL, "wake");
	s->born = steady_now();
	link_gate_close(&s->gate, NULL);
	if (sandbox_restart(s, dir, e) == 0)
		return 0;
	s->waking = false;
	return -1;
}

void sandbox_not_woken(struct sandbox *s, const struct err *why)
{
	s->waking = false;
	s->unwoken = true;
	s->failure = *why;
	log_warn("sandbox", s->id, "does not wake up: %s", why->msg);
	sandbox_stop_vm(s);
	sandbox_tell_waiters(s);
	sandbox_tell(s, SANDGATE__CANCEL_REASON__CANCEL_NONE);
}
