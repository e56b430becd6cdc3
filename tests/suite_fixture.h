/*
 * What test programs of every kind need: their cases, the body of their main, and the end of a
 * directory of their own.
 */
#ifndef SANDGATE_SUITE_FIXTURE_H
#define SANDGATE_SUITE_FIXTURE_H

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define CASE_TIMEOUT_S 60 /* of each test: the machine may be busy */

/* Tests that share what is done before and after each of them; either may be NULL. */
static inline TCase *new_case(const char *name, SFun setup, SFun teardown)
{
	TCase *t = tcase_create(name);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_set_timeout(t, CASE_TIMEOUT_S);
	return t;
}

/* Run cases, up to NULL, as the program's one suite. How many of their tests failed. */
static inline int run_cases(const char *name, TCase *const *cases)
{
	Suite *s = suite_create(name);
	while (*cases != NULL)
		suite_add_tcase(s, *cases++);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed;
}

#define run_suite(name, ...) run_cases(name, (TCase *[]){__VA_ARGS__, NULL})

/* Let this process have no more descriptors than it has, and `spare`: 0 or 1. The limit that
 * was before. */
static inline struct rlimit limit_descriptors(unsigned spare)
{
	struct rlimit before, now;
	int next = dup(STDERR_FILENO);
	ck_assert_int_ge(next, 0);
	close(next);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
	now = (struct rlimit){(rlim_t)next + spare, before.rlim_max};
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
	return before;
}

static inline int on_tree_entry(const char *path, const struct stat *st, int type,
                                struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

/* Remove a directory and all that is in it. */
static inline void remove_tree(const char *dir)
{
	nftw(dir, on_tree_entry, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
