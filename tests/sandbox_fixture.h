/*
 * For check_sandbox.c, check_sandbox_end.c and check_launchers.c: the sandboxes of one bridge,
 * and what their user hears.
 */
#ifndef SANDGATE_SANDBOX_FIXTURE_H
#define SANDGATE_SANDBOX_FIXTURE_H

#include "host-bridge/sandbox/sandbox.h"
#include "tests/loop_fixture.h"
#include "tests/suite_fixture.h"

static struct sandbox_set *set;

static struct {
	int ready, done, ended;
	struct err why; /* why one is not ready */
	Sandgate__CancelReason reason;
} heard;

static inline void on_ready(struct sandbox *s, const struct err *e, void *arg)
{
	(void)s;
	(void)arg;
	heard.ready++;
	if (e != NULL)
		heard.why = *e;
}

static inline void on_done(const struct err *e, void *arg)
{
	(void)arg;
	ck_assert_ptr_null(e);
	heard.done++;
}

/* Make the set, with what an earlier one has left. */
static inline void open_set(const struct sandbox_set_config *c)
{
	struct err e = {0};
	set = sandbox_set_create(loop, c, &e);
	ck_assert_msg(set != NULL, "%s", e.msg);
	ck_assert_int_eq(sandbox_set_adopt(set, &e), 0);
}

static inline struct sandbox *create_only(const struct sandbox_spec *spec)
{
	struct err e = {0};
	struct sandbox *s = sandbox_create(set, spec, on_ready, NULL, &e);
	ck_assert_msg(s != NULL, "%s", e.msg);
	ck_assert_int_eq(heard.ready, 0);
	return s;
}

/* Create one and wait until it runs. */
static inline struct sandbox *create_running(const struct sandbox_spec *spec)
{
	struct sandbox *s = create_only(spec);
	UNTIL(heard.ready);
	ck_assert_msg(heard.why.code == ERR_NONE, "%s", heard.why.msg);
	ck_assert_int_eq(sandbox_status(s), SANDBOX_RUNNING);
	return s;
}

static inline void delete_and_wait(struct sandbox *s)
{
	sandbox_delete(s, SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED, on_done, NULL);
	UNTIL(heard.done);
}

#endif
