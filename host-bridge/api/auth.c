#include "host-bridge/api/auth.h"

#include <errno.h>
#include <limits.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/log.h"

struct auth {
	struct ev_loop *loop;
	ev_stat watch;
	char *path; /* links resolved: inotify would watch the link */
	struct tokens file;
	struct token own; /* SANDGATE_TOKEN's */
	bool has_own;
};

static void on_file_change(struct ev_loop *loop, ev_stat *w, int revents)
{
	struct auth *a = w->data;
	struct tokens fresh;
	struct err e;
	(void)loop;
	(void)revents;
	if (tokens_load(a->path, &fresh, &e) < 0) {
		log_error("auth", NULL, "%s; the tokens read before stay in force", e.msg);
		return;
	}
	tokens_free(&a->file);
	a->file = fresh;
	log_info("auth", NULL, "%zu tokens read, limits of %zu workspaces", fresh.count,
	         fresh.limits_count);
}

/* Watched first, so that a change between the two is not missed. */
static int open_file(struct auth *a, const char *path, struct err *e)
{
	a->path = realpath(path, NULL);
	if (a->path == NULL)
		return err_errno(e, ERR_INTERNAL, errno, "cannot read %.80s", path);
	ev_stat_init(&a->watch, on_file_change, a->path, 0.);
	ev_stat_start(a->loop, &a->watch);
	return tokens_load(a->path, &a->file, e);
}

struct auth *auth_create(struct ev_loop *loop, const char *token_file, const char *token,
                         struct err *e)
{
	struct auth *a = calloc(1, sizeof(*a));
	if (a == NULL || sodium_init() < 0) {
		free(a);
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	a->loop = loop;
	ev_stat_init(&a->watch, on_file_change, "", 0.);
	a->watch.data = a;
	if (token[0] != '\0') {
		a->own = (struct token){"environment", "default", .admin = true};
		tokens_hash(token, a->own.hash);
		a->has_own = true;
	}
	int rc = 0;
	if (token_file[0] != '\0')
		rc = open_file(a, token_file, e);
	else if (!a->has_own)
		rc = err_set(e, ERR_INTERNAL, "no token: set SANDGATE_TOKEN or --token-file");
	if (rc == 0)
		return a;
	auth_destroy(a);
	return NULL;
}

void auth_destroy(struct auth *a)
{
	if (a == NULL)
		return;
	ev_stat_stop(a->loop, &a->watch);
	tokens_free(&a->file);
	free(a->path);
	free(a);
}

/* Every token is compared, so that the time taken tells nothing of which one is near. */
static const struct token *find(const struct auth *a,
                                const unsigned char hash[TOKENS_HASH_BYTES])
{
	const struct token *found = NULL;
	if (a->has_own && sodium_memcmp(a->own.hash, hash, TOKENS_HASH_BYTES) == 0)
		found = &a->own;
	for (size_t i = 0; i < a->file.count; i++)
		if (sodium_memcmp(a->file.tokens[i].hash, hash, TOKENS_HASH_BYTES) == 0)
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
	unsigned char hash[TOKENS_HASH_BYTES];
	tokens_hash(authorization + 7 + strspn(authorization + 7, " "), hash);
	const struct token *t = find(a, hash);
	if (t == NULL)
		return err_set(e, ERR_INVALID_TOKEN, "the token is not known");
	memcpy(who->token_id, t->id, sizeof(who->token_id));
	memcpy(who->workspace, t->workspace, sizeof(who->workspace));
	who->admin = t->admin;
	return 0;
}

const struct workspace_limits *auth_limits(const struct auth *a, const char *workspace)
{
	return tokens_limits(&a->file, workspace);
}
