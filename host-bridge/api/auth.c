#include "host-bridge/api/auth.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/limits.h"
#include "proto/log.h"

#define AUTH_HASH_BYTES 32

struct auth_token {
	struct auth_identity who;
	unsigned char hash[AUTH_HASH_BYTES];
};

struct auth_list {
	struct auth_token *tokens;
	size_t count;
};

struct auth {
	struct ev_loop *loop;
	ev_stat watch;
	char path[256];
	struct auth_list file;
	struct auth_token own; /* SANDGATE_TOKEN's */
	bool has_own;
};

static void hash_token(unsigned char out[AUTH_HASH_BYTES], const char *token, size_t len)
{
	crypto_generichash(out, AUTH_HASH_BYTES, (const unsigned char *)token, len, NULL, 0);
}

static int parse_line(const char *line, struct auth_token *t)
{
	char role[16], hex[2 * AUTH_HASH_BYTES + 2];
	int end = 0;
	size_t len;
	if (sscanf(line, "%63s %63s %15s %65s %n", t->who.token_id, t->who.workspace, role, hex,
	           &end) != 4 ||
	    line[end] != '\0')
		return -1;
	t->who.admin = strcmp(role, "admin") == 0;
	if (!t->who.admin && strcmp(role, "member") != 0)
		return -1;
	return sodium_hex2bin(t->hash, sizeof(t->hash), hex, strlen(hex), NULL, &len, NULL) ==
	                   0 &&
	               len == sizeof(t->hash)
	           ? 0
	           : -1;
}

static int append(struct auth_list *list, const struct auth_token *t)
{
	struct auth_token *grown =
	    reallocarray(list->tokens, list->count + 1, sizeof(*list->tokens));
	if (grown == NULL)
		return -1;
	list->tokens = grown;
	list->tokens[list->count++] = *t;
	return 0;
}

static int load(const char *path, struct auth_list *list, struct err *e)
{
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return err_errno(e, ERR_INTERNAL, errno, "cannot read the token file");
	char line[AUTH_LINE_MAX];
	int rc = 0;
	for (int number = 1; rc == 0 && fgets(line, sizeof(line), f) != NULL; number++) {
		struct auth_token t = {0};
		const char *text = line + strspn(line, " \t\r\n");
		if (*text == '\0' || *text == '#')
			continue;
		if (list->count == AUTH_TOKENS_MAX || parse_line(text, &t) < 0)
			rc = err_set(e, ERR_INTERNAL, "the token file's line %d is not valid",
			             number);
		else if (append(list, &t) < 0)
			rc = err_set(e, ERR_INTERNAL, "out of memory");
	}
	fclose(f);
	return rc;
}

static void on_file_change(struct ev_loop *loop, ev_stat *w, int revents)
{
	struct auth *a = w->data;
	struct auth_list fresh = {0};
	struct err e;
	(void)loop;
	(void)revents;
	if (load(a->path, &fresh, &e) < 0) {
		log_error("auth", NULL, "%s; the tokens read before stay in force", e.msg);
		free(fresh.tokens);
		return;
	}
	free(a->file.tokens);
	a->file = fresh;
	log_info("auth", NULL, "%zu tokens read", fresh.count);
}

struct auth *auth_create(struct ev_loop *loop, const char *token_file, const char *token,
                         struct err *e)
{
	struct auth *a = calloc(1, sizeof(*a));
	if (a == NULL || sodium_init() < 0) {
		free(a);
		err_set(e, ERR_INTERNAL, "out of memory");
		return NULL;
	}
	a->loop = loop;
	ev_stat_init(&a->watch, on_file_change, a->path, 0.);
	a->watch.data = a;
	if (token[0] != '\0') {
		a->own.who = (struct auth_identity){"environment", "default", true};
		hash_token(a->own.hash, token, strlen(token));
		a->has_own = true;
	}
	if (token_file[0] != '\0') {
		snprintf(a->path, sizeof(a->path), "%s", token_file);
		if (load(a->path, &a->file, e) < 0) {
			auth_destroy(a);
			return NULL;
		}
		ev_stat_start(loop, &a->watch);
	} else if (!a->has_own) {
		err_set(e, ERR_INTERNAL, "no token: set SANDGATE_TOKEN or --token-file");
		auth_destroy(a);
		return NULL;
	}
	return a;
}

void auth_destroy(struct auth *a)
{
	if (a == NULL)
		return;
	ev_stat_stop(a->loop, &a->watch);
	free(a->file.tokens);
	free(a);
}

/* Every token is compared, so that the time taken tells nothing of which one is near. */
static const struct auth_token *find(const struct auth *a,
                                     const unsigned char hash[AUTH_HASH_BYTES])
{
	const struct auth_token *found = NULL;
	if (a->has_own && sodium_memcmp(a->own.hash, hash, AUTH_HASH_BYTES) == 0)
		found = &a->own;
	for (size_t i = 0; i < a->file.count; i++)
		if (sodium_memcmp(a->file.tokens[i].hash, hash, AUTH_HASH_BYTES) == 0)
			found = &a->file.tokens[i];
	return found;
}

int auth_check(const struct auth *a, const char *authorization, struct auth_identity *who,
               struct err *e)
{
	/* RFC 6750 section 2.1; the scheme's name is case-insensitive (RFC 9110, 11.1). */
	if (authorization == NULL)
		return err_set(e, ERR_MISSING_TOKEN,
		               "an Authorization: Bearer token is required");
	if (strncasecmp(authorization, "Bearer ", 7) != 0)
		return err_set(e, ERR_INVALID_TOKEN, "the Authorization scheme must be Bearer");
	const char *token = authorization + 7 + strspn(authorization + 7, " ");
	unsigned char hash[AUTH_HASH_BYTES];
	hash_token(hash, token, strlen(token));
	const struct auth_token *t = find(a, hash);
	if (t == NULL)
		return err_set(e, ERR_INVALID_TOKEN, "the token is not known");
	*who = t->who;
	return 0;
}
