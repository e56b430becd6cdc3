/*
 * QEMU's machine protocol: one conversation over the monitor's socket, a script of commands
 * one after the other. vmm_qemu.c writes the scripts; nobody else speaks to a monitor.
 * A conversation is its own connection, so that nothing is kept while a VM merely runs, and a
 * VM that a restarted bridge takes up is spoken to like any other.
 */
#ifndef SANDGATE_QMP_H
#define SANDGATE_QMP_H

#include <ev.h>
#include <jansson.h>
#include <stdbool.h>

#include "proto/err.h"

#define QMP_STEPS_MAX 12

struct qmp;

/* One command. It is done when QEMU has answered it and, with `event`, has told of that event
 * since: for MIGRATION with status "completed" or "failed", else with `device` in its data. */
struct qmp_step {
	json_t *command;   /* {"execute": …}; owned */
	const char *event; /* literal; or NULL */
	const char *device;
	int fd;        /* sent along with it, owned; -1: none */
	bool may_fail; /* an error is an answer like any other; the event is still due, unless
	                * there is no such device */
};

struct qmp_script {
	struct qmp_step steps[QMP_STEPS_MAX];
	unsigned count;
	bool lacks,
	    too_long; /* it could not be made, for want of memory or room: told when run */
};

/* Append a command; `arguments` is as for json_pack, NULL for none. Returns the step, for an
 * event or a descriptor to be added; never NULL. */
struct qmp_step *qmp_add(struct qmp_script *s, const char *execute, const char *arguments, ...);
/* Free what a script that was not run owns. */
void qmp_script_free(struct qmp_script *s);

/* Connect to the socket at `path` and run `script`, which is taken over, within `seconds`.
 * `on_done` once, never from inside this call: err NULL when every step is done, else
 * ERR_LAUNCHER_FAILED with what QEMU said. The conversation is over then and `q` freed. */
struct qmp *qmp_run(struct ev_loop *loop, const char *path, struct qmp_script *script,
                    double seconds, void (*on_done)(const struct err *e, void *arg), void *arg,
                    struct err *e);
/* Break it off; on_done is not called. NULL is fine. */
void qmp_cancel(struct qmp *q);

#endif
