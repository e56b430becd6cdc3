/*
 * Waiting for the end of an exec: everybody who waits for the same one shares a session with
 * its agent, so that any number of waiters costs a sandbox one connection. Handlers of exec
 * control call it; it starts and ends nothing.
 *
 *   asking ExecInfo ──► finished: reply │ attached ── Exit ──► asking once more ──► reply
 *      ▲                404: reply      │ a waiter's time is over: reply, as it runs
 *      └─ a pause ── link broken, a few times without an answer: sandbox.lost
 */
#ifndef SANDGATE_EXEC_WAIT_H
#define SANDGATE_EXEC_WAIT_H

#include "host-bridge/api/api.h"
#include "host-bridge/api/dial.h"

struct exec_wait_set;

struct exec_wait_set *exec_wait_set_create(void);
void exec_wait_set_destroy(struct exec_wait_set *set);

/* Answer the request with the Exec that its path names: at the exec's end, or as it is
 * `seconds` from now; earlier when the sandbox has no link to wait on. It asks as `kind`.
 * Everything, failures included, is the request's reply. */
void exec_wait_start(struct api_request *r, struct sandbox *s, enum dial_kind kind,
                     double seconds);

#endif
