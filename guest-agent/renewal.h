/*
 * What a Resume asks of the machine: the message, checked and copied in the loop. renew.c
 * carries it out; snapshot.c owns it from the Resume to the answer.
 */
#ifndef SANDGATE_RENEWAL_H
#define SANDGATE_RENEWAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "guest-agent/network.h"
#include "proto/err.h"
#include "proto/limits.h"
#include "proto/sandgate.pb-c.h"

#define RENEW_ID_SIZE 16

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

#endif
