/*
 * A sandbox and the set from the inside, for the files named in sandbox_steps.h. Nobody
 * else includes this.
 */
#ifndef SANDGATE_SANDBOX_PRIVATE_H
#define SANDGATE_SANDBOX_PRIVATE_H

#include "host-bridge/launcher/launcher.h"
#include "host-bridge/sandbox/event_log.h"
#include "host-bridge/sandbox/freeze.h"
#include "host-bridge/sandbox/registry.h"
#include "host-bridge/sandbox/sandbox.h"
#include "host-bridge/sandbox/snapshot.h"

struct sandbox_set {
	struct ev_loop *loop;
	TAILQ_HEAD(sandbox_list, sandbox) all; /* in order of id */
	struct sandbox_list warm;              /* sandbox_warm.h */
	unsigned warm_pool;                    /* … how many of a kind */
	struct snapshots snapshots;            /* in order of id */
	bool unread; /* there are rows that say nothing to this bridge, but may to another */
	struct registry *registry;
	struct event_log *events;
	struct launcher_host host;
	struct vm_uids uids;
	char *state_dir, *rootfs_dir, *node, *launcher, *agent_path;
	char cgroups[PATH_MAX]; /* where VMs have theirs; "" where they cannot */
	char memory_dir[128];   /* guests' RAM: on a file system in memory where there is one */
	bool memory_on_disk;    /* there is none: it shares a disk with all the rest */
	ev_timer purge, sweep;  /* of the registry; of directories that could not be removed */
	int (*admit)(const struct sandbox_spec *spec, void *arg, struct err *e);
	void *admit_arg;
	struct kvm_trial *kvm_trial; /* NULL: answered, or not asked */
};

/* Somebody who waits: for ready (on_ready), or for the end (on_done). */
struct sandbox_waiter {
	SLIST_ENTRY(sandbox_waiter) entry;
	void (*on_ready)(struct sandbox *s, const struct err *e, void *arg);
	void (*on_done)(const struct err *e, void *arg);
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
	struct endpoint endpoint;
	json_t *agent;       /* {version, protocol, features}, once it has answered */
	uint64_t generation; /* the agent's */
	struct err failure;  /* status failed: why */

	/* Its VM. */
	struct vm *vm;                /* NULL: nothing of it is left */
	uid_t uid;                    /* that its processes run as, when the bridge is root */
	bool stopping;                /* vm_stop was called */
	unsigned launch_ms, agent_ms; /* stages of the boot */

	/* In the warm pool: sandbox_warm.h. */
	bool warm;      /* it is nobody's yet */
	bool warmed;    /* it is ready to be taken */
	bool rehearsed; /* its first exec was run, or is being run */

	/* Its age, and when it ends. */
	int64_t created_ms; /* wall clock */
	double made;        /* steady_now(): the same, where its lifetime begins */
	double born, up;    /* monotonic: create, every process runs */
	double active;      /* monotonic: last activity */
	double orphan_due;  /* monotonic; 0: it has an owner */
	unsigned holds;
	ev_timer timer; /* the next of: idle, lifetime, orphan; the steps of deletion */

	/* What it is made from. */
	char baked[PATH_MAX]; /* its template's snapshot: it was restored from it, or is to make
	                         it once it has booted; or "" */
	bool restored;        /* from that, or from `source` */
	bool baking;          /* it is making that */
	struct snapshot *source; /* creating: the user's snapshot that it starts from, held */
	bool serves; /* its template has a service, which runs from the first boot on */
	struct sandbox_start *start; /* creating: what the template runs in its first boot */
	struct said *said;           /* failed: what that printed, or NULL */

	/* What is done to it, or was when the bridge before ended. */
	struct sandbox_operation *operation; /* begun and not ended: snapshot, pause, … */
	struct freeze *freeze;   /* its state is being saved, or it becomes one of its own */
	bool frozen;             /* in its row: whoever reads that has to let the guest go on */
	bool recovers;           /* that is being done, by this bridge */
	bool waking;             /* hibernated: it is being brought back */
	bool unwoken;            /* that failed: who waits is told so, and it sleeps on */
	struct bracket *bracket; /* its agent is prepared: the VM's owner saves it. Or NULL */
	unsigned not_renewed;    /* by the Resume that ended that: bits of freeze_step() */

	/* Its links, and its agent's life. */
	struct link_gate gate; /* of the links in use */
	struct link *spare;
	ev_timer spare_timer;
	ev_timer ask_timer; /* running: the agent is to be asked again who it is */
	struct link *asked; /* a question that must be answered first: who its agent is, … */
	ev_timer pulse;     /* looks after an agent with calls in progress */
	unsigned silent;    /* looks since it has spoken */
	struct link *ping;  /* it is being asked whether it lives */
	struct link *idle;  /* it is being asked what still runs, before the sandbox expires */
	bool busy;          /* the answer to that so far */

	/* Execs, whose starts and ends are events. */
	LIST_HEAD(, sandbox_exec) followed; /* by calls */
	LIST_HEAD(, watched) watched;       /* left to run on: the agent tells their ends */
	unsigned watched_count;
	bool watch_all;       /* also those that run already, whoever left them */
	struct link *watch;   /* on which it tells */
	ev_timer watch_timer; /* opens it, and closes it when nothing is left */

	/* Who waits, and its end. */
	struct sandbox_waiters ready_waiters, done_waiters;
	ev_timer waiters_timer;
	struct sandbox_listeners listeners, told; /* told: on_end was called */
	bool unsaved; /* it has ended, and its row does not say so yet */
	bool deleted; /* sandbox_delete was called */
	bool ending;  /* listeners were told of that */
	bool gone;    /* all that it had is removed; who holds it still may */
	Sandgate__CancelReason reason;
	double cut_off_due; /* monotonic */
	double answer_due;  /* its VM is being removed: who waits is told by then; monotonic */
	struct cancel_all *cancel_all;
};

#endif
