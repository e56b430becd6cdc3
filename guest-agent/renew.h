/*
 * What a Resume makes of the machine: fresh entropy, the right time, and for a clone names
 * and a network of its own. renewal_parse() checks the message in the loop; renew() touches
 * the machine, in a worker's thread, since files may hang. snapshot.c calls both.
 */
#ifndef SANDGATE_RENEW_H
#define SANDGATE_RENEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "guest-agent/network.h"
#include "proto/err.h"
#include "proto/limits.h"
#include "proto/sandgate.pb-c.h"

#define RENEW_ID_SIZE 16

enum renew_step {
	RENEW_ENTROPY,
	RENEW_CLOCK,
	RENEW_HOSTNAME,
	RENEW_MACHINE_ID,
	RENEW_BOOT_ID,
	RENEW_NETWORK,
	RENEW_NAME_SERVERS,
	RENEW_STEPS
};

struct renewal {
	bool clone;
	bool may_manage;        /* anything but entropy is the agent's to set */
	uint64_t wall_clock_ms; /* 0: the clock is left alone */
	uint8_t entropy[RESUME_ENTROPY_MAX];
	size_t entropy_len;
	char hostname[HOSTNAME_MAX + 1]; /* "": kept */
	/* A clone's. */
	uint8_t instance[RENEW_ID_SIZE], machine_id[RENEW_ID_SIZE], boot_id[RENEW_ID_SIZE];
	struct network network;
	char **env; /* NAME=value, for all later execs */
	size_t env_count;
};

/* Check `m` and copy it, to be freed. NULL: refused. */
struct renewal *renewal_parse(const Sandgate__Resume *m, struct err *e);
void renewal_free(struct renewal *r); /* NULL is fine */

/* Before there can be a clone, as init: what one would have to make is made, so that a
 * restored guest, where all that runs first runs slowly, has less to do. */
void renew_get_ready(void);
/* Carry it out. Returns a set of 1 << enum renew_step, those that failed, each of which was
 * logged. A clone without its entropy stops there. The environment is not the machine's, and
 * not touched. */
int renew(const struct renewal *r);

const char *renew_step_name(enum renew_step step);

#endif
