/*
 * What stands before an exec: whether its workspace may run one more. Handlers in api_execs.c
 * come here instead of to call_start; what is let through goes there at once, unless the
 * number of running execs is in doubt, and the agents are asked first.
 *
 *   under the limit ──► call_start
 *   at it: the agents are asked ──► under it: call_start
 *              └─ at it still: has the client named an exec that there is? ──► call_start
 *                      └─ no: quota.exceeded
 */
#ifndef SANDGATE_EXEC_GATE_H
#define SANDGATE_EXEC_GATE_H

#include "host-bridge/api/call.h"

/* As call_start: `q` is taken over, every failure is the request's reply. */
void exec_gate_start(struct api_request *r, struct sandbox *s, enum call_kind kind,
                     struct call_request *q);

#endif
