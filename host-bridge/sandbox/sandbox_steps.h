/*
 * What the files of a sandbox call of each other: its life (sandbox.c), who waits, its links,
 * its end, its row in the registry, the set. Nobody else includes this.
 */
#ifndef SANDGATE_SANDBOX_STEPS_H
#define SANDGATE_SANDBOX_STEPS_H

#include "host-bridge/sandbox/sandbox_private.h"

/* sandbox.c */
struct sandbox *sandbox_new(struct sandbox_set *set, const char *id);
void sandbox_insert(struct sandbox *s); /* into the list of all */
void sandbox_free(struct sandbox *s);   /* at once, whoever holds it; the VM lives on */
extern const struct vm_handlers sandbox_vm_handlers;
void sandbox_running(struct sandbox *s); /* the agent has answered */
void sandbox_failed(struct sandbox *s, const struct err *why);
void sandbox_stop_vm(struct sandbox *s);

/* sandbox_expiry.c */
void sandbox_init_timer(struct sandbox *s);
void sandbox_update_timer(struct sandbox *s);
void sandbox_timer_in(struct sandbox *s, double seconds);
double sandbox_expires_in(const struct sandbox *s); /* seconds; < 0: never */
bool sandbox_is_due(const struct sandbox *s);       /* idle for its time, or too old */
void sandbox_expire(struct sandbox *s);             /* or hibernate, when it is persistent */

/* sandbox_waiters.c */
void sandbox_init_waiters(struct sandbox *s);
void sandbox_drop_waiters(struct sandbox *s); /* without a word */
int sandbox_add_waiter(struct sandbox_waiters *to, const struct sandbox_waiter *w,
                       struct err *e);
void sandbox_tell_waiters(struct sandbox *s); /* soon, once the status has settled */
void sandbox_tell(struct sandbox *s, Sandgate__CancelReason reason); /* all listeners */
void sandbox_tell_mute(struct sandbox *s, bool yielding); /* all, or those that yield */
bool sandbox_is_called(const struct sandbox *s); /* calls are in progress that do not yield */

/* sandbox_delete.c; called from the timer alone: whoever has news sets that to 0 */
void sandbox_delete_step(struct sandbox *s);

/* sandbox_link.c */
void sandbox_init_links(struct sandbox *s);
void sandbox_ask_agent(struct sandbox *s);
/* One that may well live could not be asked, nor told, for want of something: it is asked
 * again. False: that is not why. */
bool sandbox_ask_agent_later(struct sandbox *s, const struct err *why);
void sandbox_want_spare(struct sandbox *s, unsigned delay_ms);
void sandbox_drop_links(struct sandbox *s);

/* sandbox_freeze.c: its agent has said who it is. sandbox_running or sandbox_failed follows. */
void sandbox_answered(struct sandbox *s);
void sandbox_started(struct sandbox *s); /* it has booted, and runs what its template does */
/* Who its agent is, beside what it was saved to, and read when one is made from that: whether
 * it was known shows in s->agent. */
void sandbox_write_agent(const struct sandbox *s, const char *dir);
void sandbox_read_agent(struct sandbox *s, const char *dir);
/* The bridge before was about to save or pause it: let it go on, and its agent. */
void sandbox_recover(struct sandbox *s);
struct freeze_target sandbox_freeze_target(const struct sandbox *s);

/* sandbox_operation.c: one at a time. Begin it, tell that it has ended, or forget it when it
 * did not begin. */
int sandbox_operation_begin(struct sandbox *s, enum sandbox_status from, sandbox_done *on_done,
                            void *arg, struct err *e);
void sandbox_operation_end(struct sandbox *s, struct snapshot *n, const struct err *e);
void sandbox_operation_forget(struct sandbox *s);
/* The VM is about to be stopped: tell who waits for one that it has failed. */
void sandbox_operation_cancel(struct sandbox *s);
int sandbox_check_vmm(const struct sandbox *s, struct err *e); /* it can be paused and saved */
/* Before the guest is stopped: calls that yield end, and the sandbox's own links. */
void sandbox_quiesce(struct sandbox *s);
void sandbox_reopen(struct sandbox *s); /* the guest goes on: let in who waits */

/* sandbox_start.c: what the template runs in its first boot, taken from `t`; NULL: no memory.
 * sandbox_start runs it once the agent has answered; sandbox_started or sandbox_failed follows.
 */
struct sandbox_start *sandbox_start_new(struct sandbox *s, struct template *t);
void sandbox_start(struct sandbox *s);
void sandbox_start_free(struct sandbox *s); /* also when there is none */

/* sandbox_bracket.c: its agent is prepared, as an earlier bridge or somebody else has left it:
 * let nobody in until it goes on. ERR_INTERNAL. */
int sandbox_enter_bracket(struct sandbox *s, struct err *e);
void sandbox_drop_bracket(struct sandbox *s); /* without a word to the agent */
/* Before it is deleted: true when its agent is being told to go on, so that what runs there can
 * be cancelled; the step of deletion comes again then. */
bool sandbox_leave_bracket(struct sandbox *s);

/* sandbox_hibernate.c */
void sandbox_asleep(struct sandbox *s); /* hibernated, and its VM is gone */
void sandbox_not_woken(struct sandbox *s, const struct err *why);
void sandbox_drop_saved(struct sandbox *s); /* what it was saved to, if anything */
bool sandbox_is_saved(const struct sandbox *s);
/* Where one is saved to; for NULL, where all are. */
void sandbox_saved_dir(const struct sandbox_set *set, const char *id, char out[PATH_MAX]);

/* sandbox_create.c: a VM for a sandbox that has none, from what it was saved to */
int sandbox_restart(struct sandbox *s, const char *saved, struct err *e);

/* sandbox_json.c */
json_t *sandbox_instant(int64_t ms);
json_t *sandbox_resources_json(unsigned vcpus, unsigned memory_mib,
                               unsigned disk_mib); /* 0: none */

/* sandbox_pulse.c */
void sandbox_init_pulse(struct sandbox *s);
void sandbox_start_pulse(struct sandbox *s); /* there are listeners */
void sandbox_stop_pulse(struct sandbox *s);

/* sandbox_idle.c: the end of its idle time has come. Calls sandbox_expire or
 * sandbox_update_timer, once its agent has said whether an exec with a deadline runs. */
void sandbox_check_idle(struct sandbox *s);
void sandbox_stop_idle(struct sandbox *s);

/* sandbox_watch.c: once it runs; `all`: others may have left execs in it */
void sandbox_init_watch(struct sandbox *s);
void sandbox_start_watch(struct sandbox *s, bool all);
void sandbox_stop_watch(struct sandbox *s); /* until it is started again */
void sandbox_free_watch(struct sandbox *s);

/* sandbox_store.c */
int sandbox_save(struct sandbox *s, struct err *e);
/* Where a failure changes nothing: it has ended, and a bridge that finds the row as it was sees
 * that. */
void sandbox_save_end(struct sandbox *s);
/* NULL: with ERR_CAPACITY there is no memory, else the row cannot be read. */
struct sandbox *sandbox_load(struct sandbox_set *set, const struct registry_row *row,
                             json_t **vm_state, struct err *e);
int sandbox_copy_spec(struct sandbox_spec *to, const struct sandbox_spec *from);
void sandbox_free_spec(struct sandbox_spec *spec);

/* sandbox_set.c */
void sandbox_set_sweep_images(struct sandbox_set *set); /* root images that nothing lies on */
int sandbox_set_new_id(const struct sandbox_set *set, const char *kind, char *out, size_t room,
                       struct err *e); /* "<kind>-<node>-<ULID>" */
const char *sandbox_set_vm_dir(const struct sandbox_set *set, const char *id, char *out,
                               size_t room);
const char *sandbox_set_memory(const struct sandbox_set *set, const char *id, char *out,
                               size_t room);
const char *sandbox_set_cgroup(const struct sandbox_set *set, const char *id,
                               char out[PATH_MAX]); /* "" for none */

#endif
