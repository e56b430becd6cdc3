/*
 * One exec that a client's request starts and waits for: from the sandbox's link to the
 * reply, buffered, streamed or (detached) only started. Handlers in api_execs.c create it;
 * it owns the owner's session, and never sends an Exec twice.
 *
 *   OPENING ── Started ──► RUNNING ── Exit ──► reply, gone
 *      │ refused: reply       │ link lost
 *      │ link lost ──────► ATTACHING ── Started ──► RUNNING
 *      │                      │ no such exec, no guest: sandbox.lost
 *   in any state: client gone ──► Cancel{client_gone}, gone
 *                 sandbox going ──► Cancel{reason}; its Exit, or sandbox.gone
 */
#ifndef SANDGATE_CALL_H
#define SANDGATE_CALL_H

#include <stddef.h>

#include "host-bridge/api/api.h"
#include "host-bridge/exec/call_request.h"

enum call_kind { CALL_RUN, CALL_STREAM, CALL_START };

struct call_set;

struct call_set *call_set_create(void);
size_t call_set_count(const struct call_set *set);
/* The end of draining: suspend every call. Its link is left without a Cancel, so that the
 * exec awaits a successor's Attach; the client is told bridge.draining and the exec's id. */
void call_set_suspend(struct call_set *set);
void call_set_destroy(struct call_set *set);

/* Start. `q` is taken over. Every failure is the request's reply. */
void call_start(struct api_request *r, struct sandbox *s, enum call_kind kind,
                struct call_request *q);

#endif
