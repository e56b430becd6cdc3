/*
 * The token file: who may use the API, and what each workspace may use. Lines of two kinds,
 * beside empty ones and those that begin with #:
 *
 *   <token id> <workspace> <member|admin> <hash> [<when it was added>]
 *   limits <workspace> [sandboxes=N] [memory_mib=N] [vcpus=N] [execs=N] [creates_per_minute=N]
 *
 * The hash is the token's BLAKE2b-256, in hexadecimal (b2sum -l 256). What no line limits is
 * bounded by the node alone. auth.c reads the file for the bridge, tokens_edit.c rewrites it
 * for the command; here is what both make of it. It watches nothing and keeps no token.
 */
#ifndef SANDGATE_TOKENS_H
#define SANDGATE_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

#define TOKENS_HASH_BYTES 32
#define TOKENS_NAME_MAX 63 /* bytes of an id or a workspace's name */

enum tokens_limit {
	LIMIT_SANDBOXES,          /* that are not deleted and have not failed */
	LIMIT_MEMORY_MIB,         /* theirs, together */
	LIMIT_VCPUS,              /* likewise */
	LIMIT_EXECS,              /* that run at once, in all of them */
	LIMIT_CREATES_PER_MINUTE, /* forks included */
	LIMIT_COUNT
};
#define LIMIT_NONE UINT64_MAX
#define LIMIT_VALUE_MAX UINT32_MAX

extern const char *const tokens_limit_names[LIMIT_COUNT]; /* as in the file */

struct token {
	char id[TOKENS_NAME_MAX + 1], workspace[TOKENS_NAME_MAX + 1];
	bool admin;
	unsigned char hash[TOKENS_HASH_BYTES];
	char created[32]; /* RFC 3339, or "" */
};

struct workspace_limits {
	char workspace[TOKENS_NAME_MAX + 1];
	uint64_t max[LIMIT_COUNT];
};

struct tokens {
	struct token *tokens;
	size_t count;
	struct workspace_limits *limits;
	size_t limits_count;
};

/* One line, with or without its newline. */
enum tokens_line { TOKENS_BAD, TOKENS_EMPTY, TOKENS_TOKEN, TOKENS_LIMITS };
enum tokens_line tokens_parse(const char *line, struct token *t, struct workspace_limits *l);

/* Read a whole file into `out`, which the caller frees. ERR_FILE_NOT_FOUND: there is none;
 * ERR_INTERNAL otherwise. */
int tokens_load(const char *path, struct tokens *out, struct err *e);
void tokens_free(struct tokens *t); /* leaves it empty */

/* Never NULL: a workspace without a line has no limits. */
const struct workspace_limits *tokens_limits(const struct tokens *t, const char *workspace);

/* A decimal number up to LIMIT_VALUE_MAX, or with `none` the word "none". */
bool tokens_limit_value(const char *text, bool none, uint64_t *value);

void tokens_hash(const char *token, unsigned char hash[TOKENS_HASH_BYTES]);

#endif
