/*
 * The agent's settings. main.c fills one struct at start from, in rising order of
 * precedence, the configuration file, `sandgate.*` on the kernel's command line, and flags;
 * afterwards it is read only, but for the environment, to which a Resume adds. One table in
 * config.c names every setting for all three.
 */
#ifndef SANDGATE_CONFIG_H
#define SANDGATE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"
#include "proto/log.h"

#define CONFIG_FILE "/etc/sandgate/agent.conf"
#define CONFIG_CIDS_MAX 8

struct config {
	unsigned port;    /* vsock; 0: do not listen on vsock */
	char *unix_path;  /* NULL: no Unix socket */
	char *user;       /* who commands run as by default */
	char *token_file; /* NULL: no token is asked for */
	uint8_t *token;   /* its content */
	size_t token_len;
	unsigned cids[CONFIG_CIDS_MAX]; /* vsock peers accepted beside the host */
	size_t cid_count;
	char **env; /* NAME=value, for every command */
	size_t env_count;
	bool manage_machine;  /* a Resume may set its clock, names and network */
	double self_resume_s; /* no setting: tests shorten it */
	bool no_new_privs;    /* for every command; a request cannot widen it */
	bool narrow_caps;
	uint64_t caps;
	enum log_level log_level;
	bool log_json;
};

/* Defaults; everything in `c` is overwritten. */
void config_init(struct config *c);
void config_free(struct config *c);

/* One setting by name, as all three sources give it. ERR_INVALID_FIELD, field = name. */
int config_set(struct config *c, const char *name, const char *value, struct err *e);
/* `name = value` lines, # comments. A missing file is an error only when `must_exist`. */
int config_read_file(struct config *c, const char *path, bool must_exist, struct err *e);
/* The sandgate.* words of a kernel command line. Names that are no setting are skipped: the
 * line belongs to the machine, and stopping its init would help nobody. */
int config_read_cmdline(struct config *c, const char *cmdline, struct err *e);
/* All sources in order, then the token. Prints the help and exits for --help, --version. */
int config_load(struct config *c, int argc, char **argv, struct err *e);

#endif
