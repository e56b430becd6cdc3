/*
 * Work that would block the loop (copies, removal of trees), done in a child process of the
 * bridge. The child shares nothing but a copy of memory: it closes every descriptor it has
 * inherited, opens what it needs by path, and says how it went.
 */
#ifndef SANDGATE_TASK_H
#define SANDGATE_TASK_H

#include <ev.h>

#include "proto/err.h"

struct task;

/* Run `work` in a child; it returns 0, or -1 with its err. `input` must stay as it is until
 * this call returns. `on_done` once, never from inside this call, err NULL on success. */
struct task *task_start(struct ev_loop *loop, int (*work)(const void *input, struct err *e),
                        const void *input, void (*on_done)(const struct err *e, void *arg),
                        void *arg, struct err *e);
/* Kill the child; on_done is not called. NULL is fine. */
void task_cancel(struct task *t);

#endif
