/*
 * Carries out a renewal: fresh entropy, the right time, and for a clone names and a network of
 * its own. renew() touches the machine, in a worker's thread, since files may hang; snapshot.c
 * has it called.
 */
#ifndef SANDGATE_RENEW_H
#define SANDGATE_RENEW_H

#include "guest-agent/renewal.h"

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

/* Before there can be a clone, as init: what one would have to make is made, so that a
 * restored guest, where all that runs first runs slowly, has less to do. */
void renew_get_ready(void);
/* Carry it out. Returns a set of 1 << enum renew_step, those that failed, each of which was
 * logged. A clone without its entropy stops there. The environment is not the machine's, and
 * not touched. */
int renew(const struct renewal *r);

const char *renew_step_name(enum renew_step step);

#endif
