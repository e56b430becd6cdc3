/*
 * What test programs of every kind need: the body of their main, and the end of a directory
 * of their own.
 */
#ifndef SANDGATE_SUITE_FIXTURE_H
#define SANDGATE_SUITE_FIXTURE_H

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* Run one case as a suite of its own. How many of its tests failed. */
static inline int run_suite(const char *name, TCase *t)
{
	Suite *s = suite_create(name);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed;
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
