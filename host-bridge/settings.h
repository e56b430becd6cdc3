/*
 * The bridge's settings: a default, then the configuration file, then the environment,
 * then the command line; the later one wins. main.c fills it in once; everyone else reads
 * it. It opens nothing but its own file.
 */
#ifndef SANDGATE_SETTINGS_H
#define SANDGATE_SETTINGS_H

#include <stdbool.h>
#include <stdio.h>

#include "proto/err.h"
#include "proto/log.h"

#define SETTINGS_LISTEN_MAX 4
#define SETTINGS_ATTACH_DIRS_MAX 8

struct settings {
	char listen[SETTINGS_LISTEN_MAX][128]; /* "host:port" or "unix:path" */
	size_t listen_count;
	char token[256]; /* SANDGATE_TOKEN: one admin token, never from a flag */
	char token_file[256];
	char state_dir[256];
	unsigned warm_pool;
	char rootfs_dir[256];
	char agent_path[256];
	char launcher[32];
	char node[64];
	char vm_uids[32];    /* "" for the usual range */
	char audit_log[256]; /* "" for none, "-" for standard output */
	char attach_dirs[SETTINGS_ATTACH_DIRS_MAX][256];
	size_t attach_dir_count;
	double drain_seconds;
	enum log_level log_level;
	bool log_json;
	bool help, version; /* asked for: nothing else is to be done */
};

/* Gather all four sources. ERR_INVALID_FIELD names the setting at fault. */
int settings_load(struct settings *c, int argc, char **argv, struct err *e);

/* What --help prints. */
void settings_help(FILE *to);

#endif
