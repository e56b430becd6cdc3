#include "host-bridge/sandbox/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/log.h"

/* What makes a registry of version n one of n + 1; the first makes one of nothing. Append only:
 * those out there have been through the earlier ones. */
static const char *const migrations[] = {
    "CREATE TABLE sandboxes ("
    " id TEXT PRIMARY KEY, workspace TEXT NOT NULL, launcher TEXT NOT NULL,"
    " status TEXT NOT NULL, spec TEXT NOT NULL, state TEXT NOT NULL,"
    " idempotency_key TEXT NOT NULL, request_digest TEXT NOT NULL,"
    " created_ms INTEGER NOT NULL, deleted_ms INTEGER NOT NULL"
    ") WITHOUT ROWID;"
    "CREATE INDEX deleted ON sandboxes (deleted_ms);"
    "CREATE INDEX keys ON sandboxes (idempotency_key);",
    "CREATE TABLE snapshots ("
    " id TEXT PRIMARY KEY, workspace TEXT NOT NULL, info TEXT NOT NULL,"
    " created_ms INTEGER NOT NULL"
    ") WITHOUT ROWID;",
};
#define SCHEMA_VERSION (int)(sizeof(migrations) / sizeof(*migrations))

#define COLUMNS                                                                          \
	"id, workspace, launcher, status, spec, state, idempotency_key, request_digest," \
	" created_ms, deleted_ms"

struct registry {
	int lock;
	sqlite3 *db;
	sqlite3_stmt *put, *each, *deleted, *key_deleted, *purge;
	sqlite3_stmt *put_snapshot, *each_snapshot, *delete_snapshot;
};

static int db_error(struct registry *r, struct err *e, const char *what)
{
	enum err_code code = ERR_INTERNAL;
	int why = sqlite3_errcode(r->db), errnum = 0;
	if (why == SQLITE_FULL)
		code = ERR_STORAGE_FULL;
	else if (why == SQLITE_NOMEM)
		code = ERR_CAPACITY;
	else if (why == SQLITE_IOERR || why == SQLITE_CANTOPEN)
		code = err_of_errno(errnum = sqlite3_system_errno(r->db), code);
	return err_errno(e, code, errnum, "the registry: %s: %s", what, sqlite3_errmsg(r->db));
}

/* A lock of the process, which a child that is about to become a VM does not inherit: the
 * next bridge is not kept waiting for it (fcntl(2), F_SETLK). */
static int lock_dir(const char *state_dir, struct err *e)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char path[PATH_MAX];
	if (mkdir(state_dir, 0700) < 0 && errno != EEXIST)
		return err_errno(e, ERR_INTERNAL, errno, "the state directory %s", state_dir);
	snprintf(path, sizeof(path), "%s/lock", state_dir);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_errno(e, ERR_INTERNAL, errno, "%s", path);
	if (fcntl(fd, F_SETLK, &lock) == 0)
		return fd;
	if (fcntl(fd, F_GETLK, &lock) < 0)
		lock.l_pid = 0;
	close(fd);
	return err_set(e, ERR_INVALID_STATE, "the state directory %s is in use by process %d",
	               state_dir, (int)lock.l_pid);
}

static int schema_version(struct registry *r)
{
	sqlite3_stmt *s = NULL;
	int version = -1;
	if (sqlite3_prepare_v2(r->db, "PRAGMA user_version", -1, &s, NULL) == SQLITE_OK &&
	    sqlite3_step(s) == SQLITE_ROW)
		version = sqlite3_column_int(s, 0);
	sqlite3_finalize(s);
	return version;
}

/* Each step is whole or not done at all, its number included. */
static int migrate(struct registry *r, struct err *e)
{
	int version = schema_version(r);
	if (version < 0)
		return db_error(r, e, "schema version");
	if (version > SCHEMA_VERSION)
		return err_set(e, ERR_INVALID_STATE,
		               "the registry was written by a newer bridge (schema %d)",
		               version);
	for (; version < SCHEMA_VERSION; version++) {
		char *sql =
		    sqlite3_mprintf("BEGIN IMMEDIATE; %s PRAGMA user_version = %d; COMMIT;",
		                    migrations[version], version + 1);
		int rc =
		    sql != NULL ? sqlite3_exec(r->db, sql, NULL, NULL, NULL) : SQLITE_NOMEM;
		sqlite3_free(sql);
		if (rc != SQLITE_OK)
			return db_error(r, e, "migration");
	}
	return 0;
}

static int prepare(struct registry *r, struct err *e)
{
	const struct {
		const char *sql;
		sqlite3_stmt **to;
	} statements[] = {
	    {"REPLACE INTO sandboxes (" COLUMNS ") VALUES (?,?,?,?,?,?,?,?,?,?)", &r->put},
	    {"SELECT " COLUMNS " FROM sandboxes ORDER BY id", &r->each},
	    {"SELECT 1 FROM sandboxes WHERE id = ?1 AND deleted_ms > 0"
	     " AND (?2 IS NULL OR workspace = ?2)",
	     &r->deleted},
	    {"SELECT 1 FROM sandboxes WHERE idempotency_key = ? AND workspace = ?"
	     " AND created_ms >= ? AND deleted_ms > 0",
	     &r->key_deleted},
	    {"DELETE FROM sandboxes WHERE deleted_ms > 0 AND deleted_ms < ? AND state = ''",
	     &r->purge},
	    {"REPLACE INTO snapshots (id, workspace, info, created_ms) VALUES (?,?,?,?)",
	     &r->put_snapshot},
	    {"SELECT id, workspace, info, created_ms FROM snapshots ORDER BY id",
	     &r->each_snapshot},
	    {"DELETE FROM snapshots WHERE id = ?", &r->delete_snapshot},
	};
	for (size_t i = 0; i < sizeof(statements) / sizeof(*statements); i++)
		if (sqlite3_prepare_v2(r->db, statements[i].sql, -1, statements[i].to, NULL) !=
		    SQLITE_OK)
			return db_error(r, e, "set-up");
	return 0;
}

/* Nobody else reads it while we live: so its index is kept in memory, and a bridge can start
 * where the disk has no room for one (sqlite.org/wal.html, "Use of WAL Without Shared-Memory").
 */
static int open_db(struct registry *r, const char *state_dir, struct err *e)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/registry.db", state_dir);
	if (sqlite3_open(path, &r->db) != SQLITE_OK)
		return db_error(r, e, path);
	if (chmod(path, 0600) < 0)
		return err_errno(e, ERR_INTERNAL, errno, "%s", path);
	if (sqlite3_exec(r->db,
	                 "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL;"
	                 " PRAGMA synchronous = NORMAL;",
	                 NULL, NULL, NULL) != SQLITE_OK)
		return db_error(r, e, "set-up");
	return migrate(r, e) < 0 ? -1 : prepare(r, e);
}

struct registry *registry_open(const char *state_dir, struct err *e)
{
	struct registry *r = calloc(1, sizeof(*r));
	if (r == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	r->lock = lock_dir(state_dir, e);
	if (r->lock < 0 || open_db(r, state_dir, e) < 0) {
		registry_close(r);
		return NULL;
	}
	return r;
}

void registry_close(struct registry *r)
{
	if (r == NULL)
		return;
	sqlite3_finalize(r->put);
	sqlite3_finalize(r->each);
	sqlite3_finalize(r->deleted);
	sqlite3_finalize(r->key_deleted);
	sqlite3_finalize(r->purge);
	sqlite3_finalize(r->put_snapshot);
	sqlite3_finalize(r->each_snapshot);
	sqlite3_finalize(r->delete_snapshot);
	sqlite3_close(r->db);
	if (r->lock >= 0)
		close(r->lock);
	free(r);
}

int registry_put(struct registry *r, const struct registry_row *row, struct err *e)
{
	const char *text[] = {
	    row->id,   row->workspace, row->launcher,        row->status,
	    row->spec, row->state,     row->idempotency_key, row->request_digest};
	int column = 1;
	for (size_t i = 0; i < sizeof(text) / sizeof(*text); i++)
		sqlite3_bind_text(r->put, column++, text[i], -1, SQLITE_STATIC);
	sqlite3_bind_int64(r->put, column++, row->created_ms);
	sqlite3_bind_int64(r->put, column, row->deleted_ms);
	int rc = sqlite3_step(r->put) == SQLITE_DONE ? 0 : db_error(r, e, "write");
	sqlite3_reset(r->put);
	sqlite3_clear_bindings(r->put);
	return rc;
}

int registry_begin(struct registry *r, struct err *e)
{
	return sqlite3_exec(r->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK
	           ? 0
	           : db_error(r, e, "begin");
}

/* SQLite rolls some failures back by itself: then there is nothing left to do. */
int registry_end(struct registry *r, bool keep, struct err *e)
{
	if (keep && sqlite3_exec(r->db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK)
		return 0;
	int rc = keep ? db_error(r, e, "commit") : 0;
	sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
	return rc;
}

/* No column is ever NULL: without a text there was no memory for it, as `*lacks` says then. */
static const char *text_of(sqlite3_stmt *s, int column, bool *lacks)
{
	const char *t = (const char *)sqlite3_column_text(s, column);
	*lacks |= t == NULL;
	return t;
}

static int no_memory(sqlite3_stmt *s, struct err *e)
{
	sqlite3_reset(s);
	return err_set(e, ERR_CAPACITY, "the registry: read: out of memory");
}

int registry_each(struct registry *r, void (*each)(const struct registry_row *row, void *arg),
                  void *arg, struct err *e)
{
	bool lacks = false;
	int rc;
	while ((rc = sqlite3_step(r->each)) == SQLITE_ROW) {
		struct registry_row row = {
		    .id = text_of(r->each, 0, &lacks),
		    .workspace = text_of(r->each, 1, &lacks),
		    .launcher = text_of(r->each, 2, &lacks),
		    .status = text_of(r->each, 3, &lacks),
		    .spec = text_of(r->each, 4, &lacks),
		    .state = text_of(r->each, 5, &lacks),
		    .idempotency_key = text_of(r->each, 6, &lacks),
		    .request_digest = text_of(r->each, 7, &lacks),
		    .created_ms = sqlite3_column_int64(r->each, 8),
		    .deleted_ms = sqlite3_column_int64(r->each, 9),
		};
		if (lacks)
			return no_memory(r->each, e);
		each(&row, arg);
	}
	int result = rc == SQLITE_DONE ? 0 : db_error(r, e, "read");
	sqlite3_reset(r->each);
	return result;
}

bool registry_was_deleted(struct registry *r, const char *id, const char *workspace)
{
	sqlite3_bind_text(r->deleted, 1, id, -1, SQLITE_STATIC);
	if (workspace != NULL)
		sqlite3_bind_text(r->deleted, 2, workspace, -1, SQLITE_STATIC);
	else
		sqlite3_bind_null(r->deleted, 2);
	bool found = sqlite3_step(r->deleted) == SQLITE_ROW;
	sqlite3_reset(r->deleted);
	sqlite3_clear_bindings(r->deleted);
	return found;
}

bool registry_key_was_deleted(struct registry *r, const char *workspace, const char *key,
                              int64_t since_ms)
{
	sqlite3_bind_text(r->key_deleted, 1, key, -1, SQLITE_STATIC);
	sqlite3_bind_text(r->key_deleted, 2, workspace, -1, SQLITE_STATIC);
	sqlite3_bind_int64(r->key_deleted, 3, since_ms);
	bool found = sqlite3_step(r->key_deleted) == SQLITE_ROW;
	sqlite3_reset(r->key_deleted);
	sqlite3_clear_bindings(r->key_deleted);
	return found;
}

void registry_purge(struct registry *r, int64_t before_ms)
{
	sqlite3_bind_int64(r->purge, 1, before_ms);
	if (sqlite3_step(r->purge) != SQLITE_DONE)
		log_warn("registry", NULL, "purge: %s", sqlite3_errmsg(r->db));
	sqlite3_reset(r->purge);
}

int registry_put_snapshot(struct registry *r, const struct registry_snapshot *row,
                          struct err *e)
{
	sqlite3_bind_text(r->put_snapshot, 1, row->id, -1, SQLITE_STATIC);
	sqlite3_bind_text(r->put_snapshot, 2, row->workspace, -1, SQLITE_STATIC);
	sqlite3_bind_text(r->put_snapshot, 3, row->info, -1, SQLITE_STATIC);
	sqlite3_bind_int64(r->put_snapshot, 4, row->created_ms);
	int rc = sqlite3_step(r->put_snapshot) == SQLITE_DONE ? 0 : db_error(r, e, "write");
	sqlite3_reset(r->put_snapshot);
	sqlite3_clear_bindings(r->put_snapshot);
	return rc;
}

int registry_each_snapshot(struct registry *r,
                           void (*each)(const struct registry_snapshot *row, void *arg),
                           void *arg, struct err *e)
{
	bool lacks = false;
	int rc;
	while ((rc = sqlite3_step(r->each_snapshot)) == SQLITE_ROW) {
		struct registry_snapshot row = {
		    .id = text_of(r->each_snapshot, 0, &lacks),
		    .workspace = text_of(r->each_snapshot, 1, &lacks),
		    .info = text_of(r->each_snapshot, 2, &lacks),
		    .created_ms = sqlite3_column_int64(r->each_snapshot, 3),
		};
		if (lacks)
			return no_memory(r->each_snapshot, e);
		each(&row, arg);
	}
	int result = rc == SQLITE_DONE ? 0 : db_error(r, e, "read");
	sqlite3_reset(r->each_snapshot);
	return result;
}

int registry_delete_snapshot(struct registry *r, const char *id, struct err *e)
{
	sqlite3_bind_text(r->delete_snapshot, 1, id, -1, SQLITE_STATIC);
	int rc = sqlite3_step(r->delete_snapshot) == SQLITE_DONE ? 0 : db_error(r, e, "write");
	sqlite3_reset(r->delete_snapshot);
	return rc;
}
