/* The registry: what is put comes back, one process at a time, nothing of a newer schema. */
#include <check.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host-bridge/sandbox/registry.h"
#include "tests/suite_fixture.h"

static char dir[64];

static void setup(void)
{
	strcpy(dir, "/tmp/check_registry.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
	remove_tree(dir);
}

static struct registry *open_registry(void)
{
	struct err e = {0};
	struct registry *r = registry_open(dir, &e);
	ck_assert_msg(r != NULL, "%s", e.msg);
	return r;
}

static void put(struct registry *r, const char *id, const char *state, int64_t deleted_ms)
{
	struct err e = {0};
	struct registry_row row = {.id = id,
	                           .workspace = "w1",
	                           .launcher = "qemu",
	                           .status = "running",
	                           .spec = "{\"quote\":\"'\"}",
	                           .state = state,
	                           .idempotency_key = "key",
	                           .request_digest = "abc",
	                           .created_ms = 1234567890123,
	                           .deleted_ms = deleted_ms};
	ck_assert_msg(registry_put(r, &row, &e) == 0, "%s", e.msg);
}

static char seen[256];

static void on_row(const struct registry_row *row, void *arg)
{
	(void)arg;
	strcat(seen, row->id);
	strcat(seen, " ");
	ck_assert_str_eq(row->workspace, "w1");
	ck_assert_str_eq(row->launcher, "qemu");
	ck_assert_str_eq(row->status, "running");
	ck_assert_str_eq(row->spec, "{\"quote\":\"'\"}");
	ck_assert_str_eq(row->idempotency_key, "key");
	ck_assert_str_eq(row->request_digest, "abc");
	ck_assert_int_eq(row->created_ms, 1234567890123);
}

static const char *ids(struct registry *r)
{
	struct err e = {0};
	seen[0] = '\0';
	ck_assert_int_eq(registry_each(r, on_row, NULL, &e), 0);
	return seen;
}

START_TEST(rows_come_back_in_order_after_reopening)
{
	struct registry *r = open_registry();
	put(r, "b", "{}", 0);
	put(r, "a", "", 0);
	put(r, "c", "x", 0);
	registry_close(r);
	r = open_registry();
	ck_assert_str_eq(ids(r), "a b c ");
	registry_close(r);
}
END_TEST

START_TEST(row_put_twice_is_one_row)
{
	struct registry *r = open_registry();
	put(r, "a", "", 0);
	put(r, "a", "", 5);
	ck_assert_str_eq(ids(r), "a ");
	ck_assert(registry_was_deleted(r, "a", NULL));
	registry_close(r);
}
END_TEST

START_TEST(deleted_is_known_to_its_workspace_only)
{
	struct registry *r = open_registry();
	put(r, "live", "", 0);
	put(r, "dead", "", 1);
	ck_assert(!registry_was_deleted(r, "live", NULL));
	ck_assert(registry_was_deleted(r, "dead", NULL));
	ck_assert(registry_was_deleted(r, "dead", "w1"));
	ck_assert(!registry_was_deleted(r, "dead", "w2"));
	ck_assert(!registry_was_deleted(r, "unknown", NULL));
	ck_assert(!registry_was_deleted(r, "' OR 1 --", NULL));
	registry_close(r);
}
END_TEST

START_TEST(purge_spares_the_living_the_recent_and_what_left_something)
{
	struct registry *r = open_registry();
	put(r, "living", "", 0);
	put(r, "old", "", 10);
	put(r, "recent", "", 100);
	put(r, "untidy", "{}", 10);
	registry_purge(r, 50);
	ck_assert_str_eq(ids(r), "living recent untidy ");
	registry_close(r);
}
END_TEST

START_TEST(second_process_is_refused_and_told_why)
{
	struct registry *r = open_registry();
	char mine[32];
	pid_t child = fork();
	if (child == 0) {
		struct err e = {0};
		snprintf(mine, sizeof(mine), "%d", (int)getppid());
		if (registry_open(dir, &e) != NULL || e.code != ERR_INVALID_STATE)
			_exit(1);
		_exit(strstr(e.msg, dir) != NULL && strstr(e.msg, mine) != NULL ? 0 : 2);
	}
	int status;
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	registry_close(r);
	registry_close(open_registry());
}
END_TEST

START_TEST(newer_schema_is_refused)
{
	char path[128];
	struct err e = {0};
	sqlite3 *db;
	registry_close(open_registry());
	snprintf(path, sizeof(path), "%s/registry.db", dir);
	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL);
	sqlite3_close(db);
	ck_assert_ptr_null(registry_open(dir, &e));
	ck_assert_int_eq(e.code, ERR_INVALID_STATE);
}
END_TEST

START_TEST(file_that_is_no_database_is_an_error)
{
	char path[128];
	struct err e = {0};
	snprintf(path, sizeof(path), "%s/registry.db", dir);
	FILE *f = fopen(path, "w");
	for (int i = 0; i < 1000; i++)
		fputs("not a database ", f);
	fclose(f);
	ck_assert_ptr_null(registry_open(dir, &e));
	ck_assert_int_eq(e.code, ERR_INTERNAL);
}
END_TEST

int main(void)
{
	TCase *t = new_case("registry", setup, teardown);
	tcase_add_test(t, rows_come_back_in_order_after_reopening);
	tcase_add_test(t, row_put_twice_is_one_row);
	tcase_add_test(t, deleted_is_known_to_its_workspace_only);
	tcase_add_test(t, purge_spares_the_living_the_recent_and_what_left_something);
	tcase_add_test(t, second_process_is_refused_and_told_why);
	tcase_add_test(t, newer_schema_is_refused);
	tcase_add_test(t, file_that_is_no_database_is_an_error);
	return run_suite("registry", t) != 0;
}
