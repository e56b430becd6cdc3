/*
 * How many execs run in the sandboxes of one workspace. Those that a call of this bridge
 * serves are counted as they come and go; one that runs on without a call (detached, its
 * client gone) stays counted until the agents are asked, since only its agent sees its end.
 * So the number may be too high for a while, and is put right when it matters: before an exec
 * is refused. A sandbox that does not answer within QUOTA_COUNT_MS, or is paused, has none.
 *
 * Embedded in struct quota_use. It refuses nothing; exec_gate.c does.
 */
#ifndef SANDGATE_EXEC_COUNT_H
#define SANDGATE_EXEC_COUNT_H

#include <ev.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

struct api;
struct exec_question;

/* Somebody who wants to know; embedded in them. */
struct exec_count_waiter {
	TAILQ_ENTRY(exec_count_waiter) entry;
	struct exec_count *count; /* NULL: does not wait */
	unsigned round;           /* of questions, whose end it waits for */
	void (*on_counted)(struct exec_count_waiter *w);
};
TAILQ_HEAD(exec_count_waiters, exec_count_waiter);

struct exec_count {
	struct api *api;
	const char *workspace;
	size_t running;         /* the claimed ones among them */
	size_t claims, opening; /* of calls; of them, those that no Started has answered */
	bool counted;           /* the agents have been asked once */
	size_t sum;             /* of the answers so far */
	LIST_HEAD(, exec_question) questions;
	struct exec_count_waiters waiters; /* in order of round */
	unsigned round;                    /* the last that was begun */
	ev_timer timer;                    /* its end */
};

void exec_count_init(struct exec_count *n, struct api *api, const char *workspace);
void exec_count_stop(struct exec_count *n);

/* Whether the number can be too high. */
bool exec_count_is_doubtful(const struct exec_count *n);
/* Ask all agents, from now on; on_counted comes once, never inside. */
void exec_count_ask(struct exec_count *n, struct exec_count_waiter *w);
void exec_count_unask(struct exec_count_waiter *w); /* harmless when it does not wait */

/* A call's exec; embedded in the call. Zeroed, it claims nothing. */
struct exec_claim {
	struct exec_count *count;
	bool started;
};
void exec_claim_take(struct exec_claim *c, struct exec_count *n); /* NULL: takes none */
void exec_claim_started(struct exec_claim *c, bool existing);
/* It has ended or never ran; or the call goes and the exec may run on. Either once, what
 * comes later does nothing. */
void exec_claim_end(struct exec_claim *c);
void exec_claim_leave(struct exec_claim *c);

#endif
