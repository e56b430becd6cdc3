/*
 * The inside of an exec, for exec.c (its life), exec_output.c (its pipes), exec_stop.c (ending
 * it), exec_peer.c (what sessions ask of it) and exec_result.c. Nobody else includes this.
 */
#ifndef SANDGATE_EXEC_PRIVATE_H
#define SANDGATE_EXEC_PRIVATE_H

#include "guest-agent/exec.h"
#include "guest-agent/stdin_feed.h"
#include "guest-agent/verdict.h"

struct exec {
	struct exec_env *env;
	void *link;
	struct exec_request req;
	enum exec_state state;
	struct cgroup_leaf *leaf; /* NULL once given up */
	struct ring *ring;
	struct stdin_feed *feed;
	struct exec_peer *peers, *owner;
	uint64_t held_from; /* what a suspended owner was not sent; UINT64_MAX: none was */
	uint64_t created_mono_ms, started_wall_ms;
	uint64_t stdin_taken;
	struct spawn *spawning; /* until on_spawned */
	pid_t pid;
	int child_fds[3]; /* the child's ends: of its input until it is spawned, of its output
	                     until the leader has ended */

	ev_io leader;                           /* the pidfd */
	ev_io pipes[RING_STREAMS];              /* fd -1: at its end */
	struct reading *readings[RING_STREAMS]; /* by a worker; NULL: none was needed yet */
	size_t owed[RING_STREAMS]; /* in the pipe when the leader ended: read whatever the
	                              window */

	ev_timer deadline;  /* the timeout */
	ev_timer phase;     /* STARTING: the spawn's deadline; RUNNING: until its pipes are
	                       read; DRAINING: silence */
	ev_timer look;      /* again at a leader that has ended, and that its tracer keeps */
	ev_timer kill;      /* from SIGTERM to the kill, then from kill to kill */
	ev_timer cpu;       /* next look at the CPU time */
	ev_timer link_lost; /* also once it is finished: what is held for the owner goes */

	/* facts */
	bool spawned, spawn_failed, reaped, drain_over, killed, kill_over, leaf_empty,
	    leaf_asked;
	bool kill_leftovers, detached;
	bool output_lost;                      /* there was no memory for it */
	bool is_read;                          /* RUNNING: its pipes are */
	bool released, stdout_cut, stderr_cut; /* as Release said */
	bool awaited; /* the owner was lost or suspended, and may come again */
	enum verdict_cause cause;
	Sandgate__CancelReason reason;
	int leader_code, leader_status; /* CLD_* and si_status */
	uint64_t reaped_ms, read_ms, killed_ms;
	struct cgroup_counters counters;

	Sandgate__Result result;
	Sandgate__SpawnError spawn_error;
	Sandgate__Uint64Value peak;
	char fail_message[200];
};

/* exec.c */
void exec_step(struct exec *x);
void exec_notify(struct exec *x); /* on_news to every peer */
void exec_fail_user(struct exec *x);

/* exec_peer.c */

/* The owner goes: who has stood by for the longest is next. False: nobody does, or it is over.
 */
bool exec_pass_on(struct exec *x);
/* Where the output begins that an owner is still to get; UINT64_MAX: there is no owner. */
uint64_t exec_owed_from(const struct exec *x);
void exec_give_up_owner(struct exec *x); /* it is awaited no more */

/* exec_output.c */
void exec_output_init(struct exec *x);
int exec_output_open(struct exec *x); /* -1 with errno */
void exec_interest(struct exec *x);   /* recompute which pipes are read */
bool exec_output_ended(const struct exec *x);
/* There is some that is about to be read: it is the agent that is slow, not who writes. */
bool exec_output_waits(const struct exec *x);
/* A worker reads some. */
bool exec_output_busy(const struct exec *x);
/* What is in pipes that nobody writes to any more is read now, so that it leaves together with
 * the result; of others, a worker begins to read what they hold. */
void exec_output_drain(struct exec *x);
/* The child's ends. They are held until the leader has ended, or a pipe that closes as it dies
 * would wake the agent in the middle of that, once for each: the end of the output is of no
 * interest before. */
void exec_output_close_child(struct exec *x);
/* Leftovers still write: what they print is dropped from now on. */
void exec_output_abandon(struct exec *x);
void exec_output_close(struct exec *x); /* all of it */

/* exec_result.c */
void exec_note_failure(struct exec *x, const char *stage, int errnum);
void exec_fill_result(struct exec *x, bool leftovers); /* whether any are in the leaf */

/* exec_stop.c */
void exec_stop_init(struct exec *x);
void exec_stop_timers(struct exec *x); /* all but look and link_lost */
void exec_arm_limits(struct exec *x);  /* once the process runs */
void exec_end(struct exec *x, enum verdict_cause cause, Sandgate__CancelReason reason,
              uint64_t grace_ms);
void exec_read_soon(struct exec *x);
void exec_look_again(struct exec *x); /* watch the leader anew after a pause */
/* The agent cannot serve it: it is ended, and no end of its own. */
void exec_give_up(struct exec *x);
void exec_kill(struct exec *x); /* the leaf and the leader, again until CLEARING is over */

#endif
