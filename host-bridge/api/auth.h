/*
 * Bearer tokens: who a request comes from. Tokens are known by their BLAKE2b-256 hash only.
 * The file is replaced atomically by whoever manages it and read again when it changes; a
 * new file that does not parse leaves the old tokens in force. One line a token:
 *
 *   <token id> <workspace> <member|admin> <64 hex digits>     (b2sum -l 256 of the token)
 *
 * Called by routes for each request; it never sees a body and logs no token.
 */
#ifndef SANDGATE_AUTH_H
#define SANDGATE_AUTH_H

#include <ev.h>
#include <stdbool.h>

#include "proto/err.h"

struct auth;

struct auth_identity {
	char token_id[64];  /* for the audit log */
	char workspace[64]; /* sandboxes of other workspaces do not exist for it */
	bool admin;         /* sees every workspace, may attach VMs and drain */
};

/* Read `token_file` ("" for none) and take `token` ("" for none) as the one admin token of
 * the workspace "default". Fails when there is no token at all. */
struct auth *auth_create(struct ev_loop *loop, const char *token_file, const char *token,
                         struct err *e);
void auth_destroy(struct auth *a);

/* Judge an Authorization header (NULL when absent): ERR_MISSING_TOKEN, ERR_INVALID_TOKEN. */
int auth_check(const struct auth *a, const char *authorization, struct auth_identity *who,
               struct err *e);

#endif
