/*
 * Taking leave of a VM that lives on: every exec that still runs in it is cancelled. Used
 * when an attached sandbox is deleted or expires. It is a link's user like any other.
 */
#ifndef SANDGATE_CANCEL_ALL_H
#define SANDGATE_CANCEL_ALL_H

#include "host-bridge/link/link.h"

struct cancel_all;

/* `on_done` once, never inside, after CONNECT_DEADLINE_MS at the latest: the guest may not
 * answer any more. NULL when nothing could be started. */
struct cancel_all *cancel_all_start(struct ev_loop *loop, const struct endpoint *to,
                                    Sandgate__CancelReason reason, void (*on_done)(void *arg),
                                    void *arg);
/* No on_done. NULL is fine. */
void cancel_all_stop(struct cancel_all *f);

#endif
