/*
 * What a check is and how it ends. A check is a function that runs in a process of its
 * own: it returns when the agent did right, and calls fail() or skip() otherwise, so that
 * what it opened and allocated needs no cleaning up, and a check that hangs or crashes
 * costs itself only. main.c runs the tables; nothing here knows the protocol.
 */
#ifndef SANDGATE_CHECK_H
#define SANDGATE_CHECK_H

#include <stddef.h>

#include "tests/conformance/conn.h"

struct check {
	unsigned requirement; /* P-n of proto/README.md */
	const char *name;
	void (*run)(const struct target *t);
};

struct check_table {
	const struct check *checks;
	size_t count;
};

#define CHECK_TABLE(name, array) \
	const struct check_table name = {array, sizeof(array) / sizeof((array)[0])}

extern const struct check_table checks_frame, checks_open, checks_outcome, checks_spawn,
    checks_output, checks_owner, checks_stdin, checks_signal, checks_id, checks_limits,
    checks_query, checks_snapshot, checks_resume;

_Noreturn void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define expect(condition, ...)             \
	do {                               \
		if (!(condition))          \
			fail(__VA_ARGS__); \
	} while (0)

#endif
