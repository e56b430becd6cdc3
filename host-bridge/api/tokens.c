#include "host-bridge/api/tokens.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"

#define LIMITS_WORD "limits"
#define BLANKS " \t\r\n"

const char *const tokens_limit_names[LIMIT_COUNT] = {
    [LIMIT_SANDBOXES] = "sandboxes",
    [LIMIT_MEMORY_MIB] = "memory_mib",
    [LIMIT_VCPUS] = "vcpus",
    [LIMIT_EXECS] = "execs",
    [LIMIT_CREATES_PER_MINUTE] = "creates_per_minute",
};

static const struct workspace_limits unlimited = {
    .max = {[0 ... LIMIT_COUNT - 1] = LIMIT_NONE}};

void tokens_hash(const char *token, unsigned char hash[TOKENS_HASH_BYTES])
{
	crypto_generichash(hash, TOKENS_HASH_BYTES, (const unsigned char *)token, strlen(token),
	                   NULL, 0);
}

/* ---- a line ---- */

bool tokens_limit_value(const char *text, bool none, uint64_t *value)
{
	if (none && strcmp(text, "none") == 0) {
		*value = LIMIT_NONE;
		return true;
	}
	errno = 0;
	uint64_t v = strtoull(text, NULL, 10);
	if (*text == '\0' || text[strspn(text, "0123456789")] != '\0' || errno != 0 ||
	    v > LIMIT_VALUE_MAX)
		return false;
	*value = v;
	return true;
}

static bool parse_hash(const char *hex, unsigned char hash[TOKENS_HASH_BYTES])
{
	size_t len;
	return sodium_hex2bin(hash, TOKENS_HASH_BYTES, hex, strlen(hex), NULL, &len, NULL) ==
	           0 &&
	       len == TOKENS_HASH_BYTES;
}

static bool parse_token(const char *line, struct token *t)
{
	char role[16], hex[2 * TOKENS_HASH_BYTES + 2];
	int end = 0;
	*t = (struct token){0};
	int words = sscanf(line, "%63s %63s %15s %65s %n%31s %n", t->id, t->workspace, role,
	                   hex, &end, t->created, &end);
	if (words < 4 || line[end] != '\0')
		return false;
	t->admin = strcmp(role, "admin") == 0;
	return (t->admin || strcmp(role, "member") == 0) && parse_hash(hex, t->hash);
}

/* "name=value", each name once. */
static bool parse_limit(const char *word, struct workspace_limits *l)
{
	size_t n = strcspn(word, "=");
	for (int i = 0; i < LIMIT_COUNT; i++)
		if (strlen(tokens_limit_names[i]) == n &&
		    memcmp(tokens_limit_names[i], word, n) == 0)
			return word[n] == '=' && l->max[i] == LIMIT_NONE &&
			       tokens_limit_value(word + n + 1, false, &l->max[i]);
	return false;
}

static bool parse_limits(const char *line, struct workspace_limits *l)
{
	char word[64];
	int used = 0;
	*l = unlimited;
	if (sscanf(line, "%*s %63s %n", l->workspace, &used) != 1 || used == 0)
		return false;
	for (line += used; sscanf(line, "%63s %n", word, &used) == 1; line += used)
		if (!parse_limit(word, l))
			return false;
	return true;
}

enum tokens_line tokens_parse(const char *line, struct token *t, struct workspace_limits *l)
{
	line += strspn(line, BLANKS);
	if (*line == '\0' || *line == '#')
		return TOKENS_EMPTY;
	size_t n = strcspn(line, BLANKS);
	if (n == strlen(LIMITS_WORD) && memcmp(line, LIMITS_WORD, n) == 0)
		return parse_limits(line, l) ? TOKENS_LIMITS : TOKENS_BAD;
	return parse_token(line, t) ? TOKENS_TOKEN : TOKENS_BAD;
}

/* ---- the file ---- */

static bool has_limits(const struct tokens *to, const char *workspace)
{
	for (size_t i = 0; i < to->limits_count; i++)
		if (strcmp(to->limits[i].workspace, workspace) == 0)
			return true;
	return false;
}

static bool add_token(struct tokens *to, const struct token *t)
{
	struct token *grown = reallocarray(to->tokens, to->count + 1, sizeof(*grown));
	if (grown == NULL)
		return false;
	to->tokens = grown;
	grown[to->count++] = *t;
	return true;
}

static bool add_limits(struct tokens *to, const struct workspace_limits *l)
{
	struct workspace_limits *grown =
	    reallocarray(to->limits, to->limits_count + 1, sizeof(*grown));
	if (grown == NULL)
		return false;
	to->limits = grown;
	grown[to->limits_count++] = *l;
	return true;
}

/* `where` is the file and the line's number, for the message. */
static int take_line(const char *line, const char *where, struct tokens *to, struct err *e)
{
	struct token t;
	struct workspace_limits l;
	enum tokens_line kind = tokens_parse(line, &t, &l);
	if (kind == TOKENS_EMPTY)
		return 0;
	if (kind == TOKENS_BAD || (kind == TOKENS_LIMITS && has_limits(to, l.workspace)))
		return err_set(
		    e, ERR_INTERNAL,
		    "%s is neither \"id workspace member|admin hash\" (64 hex digits)"
		    " nor a workspace's one \"limits\"",
		    where);
	if (to->count + to->limits_count == TOKENS_LINES_MAX)
		return err_set(e, ERR_INTERNAL, "%s is one too many: %d are the most", where,
		               TOKENS_LINES_MAX);
	if (kind == TOKENS_TOKEN ? add_token(to, &t) : add_limits(to, &l))
		return 0;
	return err_set(e, ERR_CAPACITY, "out of memory");
}

int tokens_load(const char *path, struct tokens *out, struct err *e)
{
	*out = (struct tokens){0};
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return err_errno(e, errno == ENOENT ? ERR_FILE_NOT_FOUND : ERR_INTERNAL, errno,
		                 "cannot read %.80s", path);
	char *line = NULL, where[100];
	size_t room = 0;
	int rc = 0;
	for (int number = 1; rc == 0 && getline(&line, &room, f) >= 0; number++) {
		snprintf(where, sizeof(where), "%.60s:%d", path, number);
		rc = take_line(line, where, out, e);
	}
	if (rc == 0 && ferror(f))
		rc = err_errno(e, ERR_INTERNAL, errno, "cannot read %.80s", path);
	free(line);
	fclose(f);
	if (rc < 0)
		tokens_free(out);
	return rc;
}

void tokens_free(struct tokens *t)
{
	free(t->tokens);
	free(t->limits);
	*t = (struct tokens){0};
}

const struct workspace_limits *tokens_limits(const struct tokens *t, const char *workspace)
{
	for (size_t i = 0; i < t->limits_count; i++)
		if (strcmp(t->limits[i].workspace, workspace) == 0)
			return &t->limits[i];
	return &unlimited;
}
