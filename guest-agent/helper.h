/*
 * Work that may block for long, such as sync(2) or a file on a dead file system, in a forked
 * child: the loop only watches it, and gives it up after a while. Embedded in its owner.
 */
#ifndef SANDGATE_HELPER_H
#define SANDGATE_HELPER_H

#include <ev.h>
#include <stdbool.h>
#include <sys/types.h>

struct helper {
	struct ev_loop *loop;
	ev_io ended; /* its pidfd */
	ev_timer late;
	pid_t pid; /* 0: none is under way */
	void (*on_done)(struct helper *h, int status);
};

void helper_init(struct helper *h, struct ev_loop *loop,
                 void (*on_done)(struct helper *h, int status));

/* Fork a child that exits with what work(arg) returns, 0 to 255; it holds none of the agent's
 * descriptors but 0 to 2. on_done gets that from the loop, or -1 when it was killed, or after
 * `seconds`: then it is killed and forgotten, and the reaper's. Returns -1 with errno when
 * none could be started. At most one at a time. */
int helper_start(struct helper *h, int (*work)(const void *arg), const void *arg,
                 double seconds);
/* Kill and forget it; on_done is not called. Fine when none is under way. */
void helper_stop(struct helper *h);

/* Whether `pid` is the child: a reaper must leave it alone. */
static inline bool helper_owns(const struct helper *h, pid_t pid)
{
	return h->pid == pid;
}

#endif
