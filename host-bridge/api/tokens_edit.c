#include "host-bridge/api/tokens_edit.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the lines ---- */

static const struct token *token_named(const struct tokens *t, const char *id)
{
	for (size_t i = 0; i < t->count; i++)
		if (strcmp(t->tokens[i].id, id) == 0)
			return &t->tokens[i];
	return NULL;
}

static int check(const struct tokens *old, const struct tokens_change *c, struct err *e)
{
	if (c->add != NULL && token_named(old, c->add->id) != NULL)
		return err_set(e, ERR_INVALID_STATE, "there is a token %s already", c->add->id);
	if (c->revoke != NULL && token_named(old, c->revoke) == NULL)
		return err_set(e, ERR_FILE_NOT_FOUND, "there is no token %s", c->revoke);
	return 0;
}

static bool stays(const struct tokens_change *c, const char *line)
{
	struct token t;
	struct workspace_limits l;
	switch (tokens_parse(line, &t, &l)) {
	case TOKENS_TOKEN:
		return c->revoke == NULL || strcmp(c->revoke, t.id) != 0;
	case TOKENS_LIMITS:
		return c->limits == NULL || strcmp(c->limits->workspace, l.workspace) != 0;
	default:
		return true;
	}
}

static void put_token(FILE *to, const struct token *t)
{
	char hex[2 * TOKENS_HASH_BYTES + 1];
	sodium_bin2hex(hex, sizeof(hex), t->hash, sizeof(t->hash));
	fprintf(to, "%s %s %s %s%s%s\n", t->id, t->workspace, t->admin ? "admin" : "member",
	        hex, t->created[0] != '\0' ? " " : "", t->created);
}

/* No line at all when nothing is limited. */
static void put_limits(FILE *to, const struct tokens *old, const struct tokens_change *c)
{
	const struct workspace_limits *before = tokens_limits(old, c->limits->workspace);
	bool begun = false;
	for (int i = 0; i < LIMIT_COUNT; i++) {
		uint64_t max = c->set[i] ? c->limits->max[i] : before->max[i];
		if (max == LIMIT_NONE)
			continue;
		if (!begun)
			fprintf(to, "limits %s", c->limits->workspace);
		fprintf(to, " %s=%ju", tokens_limit_names[i], (uintmax_t)max);
		begun = true;
	}
	if (begun)
		fputc('\n', to);
}

static void put_all(FILE *to, FILE *from, const struct tokens *old,
                    const struct tokens_change *c)
{
	char *line = NULL;
	size_t room = 0;
	while (from != NULL && getline(&line, &room, from) >= 0)
		if (stays(c, line))
			fprintf(to, "%s%s", line, strchr(line, '\n') == NULL ? "\n" : "");
	free(line);
	if (c->add != NULL)
		put_token(to, c->add);
	if (c->limits != NULL)
		put_limits(to, old, c);
}

/* ---- the file ---- */

/* Whoever could read the old file, the bridge's user above all, reads the new one. */
static int keep_owner(int fd, FILE *old, struct err *e)
{
	struct stat st;
	if (old == NULL)
		return 0;
	if (fstat(fileno(old), &st) < 0 || fchown(fd, st.st_uid, st.st_gid) < 0 ||
	    fchmod(fd, st.st_mode & 0660) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "cannot keep the token file's owner");
	return 0;
}

static int replace(const char *path, FILE *old, const struct tokens *was,
                   const struct tokens_change *c, struct err *e)
{
	char fresh[PATH_MAX];
	if ((size_t)snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path) >= sizeof(fresh))
		return err_set(e, ERR_INTERNAL, "the token file's path is too long");
	int fd = mkostemp(fresh, O_CLOEXEC); /* mode 0600 */
	FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (f == NULL) {
		err_errno(e, ERR_INTERNAL, errno, "cannot write %s", fresh);
		goto fail;
	}
	put_all(f, old, was, c);
	if (keep_owner(fd, old, e) < 0)
		goto fail;
	if (fflush(f) != 0 || ferror(f) || fsync(fd) < 0 || rename(fresh, path) < 0) {
		err_errno(e, ERR_INTERNAL, errno, "cannot write the token file");
		goto fail;
	}
	fclose(f);
	return 0;
fail:
	if (f != NULL)
		fclose(f);
	else if (fd >= 0)
		close(fd);
	if (fd >= 0)
		unlink(fresh);
	return -1;
}

/* The directory of the file, locked until it is closed. */
static int lock_directory(const char *path, struct err *e)
{
	char copy[PATH_MAX];
	snprintf(copy, sizeof(copy), "%s", path);
	int dir = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir >= 0 && flock(dir, LOCK_EX) == 0)
		return dir;
	err_errno(e, ERR_INTERNAL, errno, "the directory of %s", path);
	if (dir >= 0)
		close(dir);
	return -1;
}

static int edit_locked(const char *path, const struct tokens_change *c, struct err *e)
{
	struct tokens old;
	struct err why;
	if (tokens_load(path, &old, &why) < 0 &&
	    (why.code != ERR_FILE_NOT_FOUND || c->revoke != NULL)) {
		*e = why;
		return -1;
	}
	FILE *f = fopen(path, "re"); /* NULL: there is none yet */
	int rc = check(&old, c, e) < 0 || replace(path, f, &old, c, e) < 0 ? -1 : 0;
	if (f != NULL)
		fclose(f);
	tokens_free(&old);
	return rc;
}

int tokens_edit(const char *path, const struct tokens_change *c, struct err *e)
{
	char real[PATH_MAX];
	/* What a link names is replaced, not the link. */
	if (realpath(path, real) != NULL)
		path = real;
	int dir = lock_directory(path, e);
	if (dir < 0)
		return -1;
	int rc = edit_locked(path, c, e);
	if (rc == 0 && fsync(dir) < 0)
		rc = err_errno(e, ERR_INTERNAL, errno, "cannot write the token file");
	close(dir);
	return rc;
}
