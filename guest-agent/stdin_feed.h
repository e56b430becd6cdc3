/*
 * The input of one exec on its way into the process's stdin pipe: queued bytes, written
 * without ever blocking the loop, counted from the input's start. exec.c owns it; it reports
 * room and nothing else. A process that closes its end (EPIPE) closes the feed, quietly.
 */
#ifndef SANDGATE_STDIN_FEED_H
#define SANDGATE_STDIN_FEED_H

#include <ev.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "guest-agent/workers.h"

struct stdin_feed;

/* `fd` is the non-blocking write end and is taken over; -1 makes a feed that is closed from
 * the start. `on_room` runs when a full feed has room again or is closed. */
struct stdin_feed *stdin_feed_create(struct ev_loop *loop, struct workers *workers, int fd,
                                     void (*on_room)(void *arg), void *arg);
/* From now on a process has the other end: the pipe is left to workers (pipe_job.h). */
void stdin_feed_share(struct stdin_feed *f);
void stdin_feed_destroy(struct stdin_feed *f);

/* Queue `data`, which was allocated with malloc and is taken over. -1: out of memory. On a
 * closed feed the bytes are dropped and do not count. */
int stdin_feed_push(struct stdin_feed *f, uint8_t *data, size_t len);
/* No more input comes: the process sees the end after what is queued. */
void stdin_feed_close(struct stdin_feed *f);

uint64_t stdin_feed_offset(const struct stdin_feed *f); /* bytes taken so far */
bool stdin_feed_closed(const struct stdin_feed *f);     /* no more is taken */
bool stdin_feed_full(const struct stdin_feed *f); /* over STDIN_WINDOW waits for the process */

#endif
