/*
 * The agent as a process: its loop, listeners, sessions, execs, and what it tells about
 * itself. main.c creates and runs one; session_ops.c asks it for everything that is not
 * about one exec. Tests create one without listeners and adopt socketpairs.
 */
#ifndef SANDGATE_AGENT_H
#define SANDGATE_AGENT_H

#include <ev.h>
#include <stdint.h>

#include "guest-agent/config.h"
#include "guest-agent/exec_table.h"
#include "guest-agent/snapshot.h"
#include "proto/sandgate.pb-c.h"

struct agent;

/* `config` must outlive it; its environment grows by Resume. Signal dispositions, limits and
 * oom_score_adj of the process are set here, before the spawner learns them. */
struct agent *agent_create(struct config *config, struct err *e);
/* When an exec could not be ended, only the listeners are closed: the process is to exit. */
void agent_destroy(struct agent *a);
/* Serve until a Shutdown, or a SIGTERM, is carried out. */
void agent_run(struct agent *a);
/* Serve one connection; `fd` is taken over. */
void agent_adopt(struct agent *a, int fd);

struct ev_loop *agent_loop(struct agent *a);
const struct config *agent_config(const struct agent *a);
struct exec_table *agent_table(struct agent *a);
struct snapshot *agent_snapshot(struct agent *a);

/* Refuse new work, end all execs, then `on_idle` (may be NULL), then let agent_run() return
 * as soon as the sessions are gone, or a second later. */
void agent_shutdown(struct agent *a, uint64_t grace_ms, void (*on_idle)(void *arg), void *arg);
/* `arg` is gone: its on_idle is not called any more. */
void agent_shutdown_unwatch(struct agent *a, const void *arg);

/* Fill what the agent knows; strings and arrays stay its own. */
void agent_fill_opened(const struct agent *a, Sandgate__Opened *o);
void agent_fill_info(const struct agent *a, Sandgate__InfoReply *r);
void agent_fill_metrics(struct agent *a, Sandgate__MetricsReply *r);

#endif
