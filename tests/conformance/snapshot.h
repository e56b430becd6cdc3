/*
 * Prepare and Resume as the checks use them. The agent under judgement is told that it is a
 * copy again and again; that it runs on where it is all the time is a case the protocol allows.
 */
#ifndef SANDGATE_CONFORMANCE_SNAPSHOT_H
#define SANDGATE_CONFORMANCE_SNAPSHOT_H

#include "tests/conformance/ask.h"

Sandgate__InfoReply *snapshot_info(const struct target *t);
/* The host's wall clock. */
uint64_t snapshot_now_ms(void);

/* Every check begins here: an agent that another check left prepared works again. */
void snapshot_begin(const struct target *t);

/* A Prepare, up to Opened; and from there to its end. */
struct conn *snapshot_begin_prepare(const struct target *t);
void snapshot_end_prepare(const struct target *t, struct conn *c);
void snapshot_prepare(const struct target *t);
/* The number of bytes up to Suspended, which must name their end, and be the last frame. */
uint64_t snapshot_read_suspended(struct conn *c, uint64_t from);

/* The next Resume in line, with the right time; good until the next one is made. */
Sandgate__Resume *snapshot_new_resume(const struct target *t, Sandgate__ResumeRole role);
Sandgate__Resumed *snapshot_send_resume(const struct target *t, Sandgate__Resume *m);
Sandgate__Resumed *snapshot_resume(const struct target *t, Sandgate__ResumeRole role);

#endif
