/*
 * Changes of the token file, as `host-bridge token` makes them: the whole file is written
 * anew beside the old one and takes its place at once, under a lock on the directory, so that
 * a bridge reads the old lines or the new ones, and of two changes none is lost. Lines that a
 * change does not concern, comments among them, stay as they are.
 */
#ifndef SANDGATE_TOKENS_EDIT_H
#define SANDGATE_TOKENS_EDIT_H

#include "host-bridge/api/tokens.h"

struct tokens_change {
	const struct token *add; /* NULL: none */
	const char *revoke;      /* the id of the token to take out; NULL: none */
	/* The workspace whose limits change, to those that are set; the others stay. NULL: no
	 * limits change. */
	const struct workspace_limits *limits;
	bool set[LIMIT_COUNT];
};

/* A new file belongs to the caller, mode 0600; one that exists keeps its owner, group and mode,
 * but for what it grants to all. Adding and limiting create it. ERR_INVALID_STATE: the id to
 * add is taken; ERR_FILE_NOT_FOUND: there is no such file, or no such id to revoke;
 * ERR_INTERNAL: the file is not valid, or could not be replaced. */
int tokens_edit(const char *path, const struct tokens_change *c, struct err *e);

#endif
