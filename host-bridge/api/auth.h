/*
 * Bearer tokens: who a request comes from, and what its workspace may use. Tokens are known
 * by their hash only, from the token file (tokens.h). That is replaced atomically by whoever
 * manages it and read again when it changes, which inotify tells, or a look every 30 s where
 * the file system is a network's. A new file that is not valid leaves the old lines in force.
 *
 * A token is judged when a request begins: what has begun goes on when it is revoked.
 *
 * Called by routes for each request; it never sees a body and logs no token.
 */
#ifndef SANDGATE_AUTH_H
#define SANDGATE_AUTH_H

#include <ev.h>
#include <stdbool.h>

#include "host-bridge/api/tokens.h"
#include "proto/err.h"

struct auth;

struct auth_identity {
	char token_id[TOKENS_NAME_MAX + 1];  /* for the audit log */
	char workspace[TOKENS_NAME_MAX + 1]; /* sandboxes of others do not exist for it */
	bool admin; /* sees every workspace, may attach VMs and drain */
};

/* Read `token_file` ("" for none) and take `token` ("" for none) as the one admin token of
 * the workspace "default". Fails when there is no token at all. */
struct auth *auth_create(struct ev_loop *loop, const char *token_file, const char *token,
                         struct err *e);
void auth_destroy(struct auth *a);

/* Judge an Authorization header (NULL when absent): ERR_MISSING_TOKEN, ERR_INVALID_TOKEN. */
int auth_check(const struct auth *a, const char *authorization, struct auth_identity *who,
               struct err *e);

/* The limits of a workspace, as they are now. Never NULL; valid until the loop turns. */
const struct workspace_limits *auth_limits(const struct auth *a, const char *workspace);

#endif
