/*
 * What the files of a sandbox share: sandbox.c (life), sandbox_link.c (spare link, first
 * question to the agent), sandbox_delete.c (the end), sandbox_store.c (registry),
 * sandbox_json.c, sandbox_set.c. Nobody else includes this.
 */
#ifndef SANDGATE_SANDBOX_PRIVATE_H
#define SANDGATE_SANDBOX_PRIVATE_H

#include "host-bridge/sandbox/launcher.h"
#include "host-bridge/sandbox/registry.h"
#include "host-bridge/sandbox/sandbox.h"

struct sandbox_set {
	struct ev_loop *loop;
	TAILQ_HEAD(sandbox_list, sandbox) all; /* in order of id */
	struct registry *registry;
	struct launcher_host host;
	char *state_dir, *rootfs_dir, *node, *launcher, *agent_path;
	ev_timer purge;
	struct kvm_trial *kvm_trial; /* NULL: answered, or not asked */
};

/* Somebody who waits: for ready (on_ready), or for the end (on_done). */
struct sandbox_waiter {
	SLIST_ENTRY(sandbox_waiter) entry;
	void (*on_ready)(struct sandbox *s, const struct err *e, void *arg);
	void (*on_done)(void *arg);
	void *arg;
	bool creator;
};
SLIST_HEAD(sandbox_waiters, sandbox_waiter);
LIST_HEAD(sandbox_listeners, sandbox_listener);

struct sandbox {
	TAILQ_ENTRY(sandbox) entry;
	struct sandbox_set *set;
	char id[128];
	enum sandbox_status status;
	struct sandbox_spec spec;
	const struct launcher *launcher;
	const char *isolation; /* one of the launchers' literals */
	struct vm *vm;         /* NULL: nothing of it is left */
	bool stopping;         /* vm_stop was called */
	struct endpoint endpoint;

	int64_t created_ms; /* wall clock */
	double born, up;    /* monotonic: create, every process runs */
	double active;      /* monotonic: last activity */
	double orphan_due;  /* monotonic; 0: it has an owner */
	unsigned holds;
	ev_timer timer; /* the next of: idle, lifetime, orphan; the steps of deletion */

	unsigned launch_ms, agent_ms; /* stages of the boot */
	json_t *agent;                /* {version, protocol, features}, once it has answered */
	struct err failure;           /* status failed: why */

	struct link *asked; /* creating: the link that asks the agent who it is */
	struct link *spare;
	ev_timer spare_timer;

	struct sandbox_waiters ready_waiters, done_waiters;
	ev_timer waiters_timer;
	struct sandbox_listeners listeners, told; /* told: on_end was called */

	bool deleted, ending; /* sandbox_delete was called; listeners were told of it */
	Sandgate__CancelReason reason;
	double cut_off_due; /* monotonic */
	struct farewell *farewell;
};

double sandbox_clock(void);    /* monotonic seconds */
int64_t sandbox_wall_ms(void); /* since the epoch */

/* sandbox.c */
struct sandbox *sandbox_new(struct sandbox_set *set, const char *id);
void sandbox_free(struct sandbox *s); /* at once, whoever holds it; the VM lives on */
extern const struct vm_handlers sandbox_vm_handlers;
void sandbox_running(struct sandbox *s); /* the agent has answered */
void sandbox_failed(struct sandbox *s, const struct err *why);
void sandbox_update_timer(struct sandbox *s);
void sandbox_timer_in(struct sandbox *s, double seconds);
void sandbox_tell_waiters(struct sandbox *s); /* soon, once the status has settled */
void sandbox_tell(struct sandbox *s, Sandgate__CancelReason reason); /* all listeners */
void sandbox_stop_vm(struct sandbox *s);
int sandbox_add_waiter(struct sandbox_waiters *to, const struct sandbox_waiter *w,
                       struct err *e);
double sandbox_expires_in(const struct sandbox *s); /* seconds; < 0: never */

/* sandbox_delete.c; called from the timer alone: whoever has news sets that to 0 */
void sandbox_delete_step(struct sandbox *s);

/* sandbox_link.c */
void sandbox_init_links(struct sandbox *s);
void sandbox_ask_agent(struct sandbox *s);
void sandbox_want_spare(struct sandbox *s, unsigned delay_ms);
void sandbox_drop_links(struct sandbox *s);

/* sandbox_store.c */
int sandbox_save(struct sandbox *s, struct err *e);
const char *sandbox_status_name(enum sandbox_status status);
struct sandbox *sandbox_load(struct sandbox_set *set, const struct registry_row *row,
                             json_t **vm_state);
int sandbox_copy_spec(struct sandbox_spec *to, const struct sandbox_spec *from);
void sandbox_free_spec(struct sandbox_spec *spec);

/* sandbox_set.c */
const char *sandbox_set_vm_dir(const struct sandbox_set *set, const char *id, char *out,
                               size_t room);

#endif
