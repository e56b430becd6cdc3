/*
 * The protocol's operations as the checks use them: open a session and require an answer,
 * start an exec, gather what it says until its end. Everything returned lives until the
 * check's process ends. An answer of another kind fails the check, naming both.
 */
#ifndef SANDGATE_ASK_H
#define SANDGATE_ASK_H

#include "proto/err.h"
#include "tests/conformance/check.h"
#include "tests/conformance/conn.h"

/* How an exec ended and all that its session carried. */
struct ask_end {
	Sandgate__Result *result;
	uint8_t *bytes[2]; /* stdout, stderr; NUL-terminated for comparison */
	size_t len[2], room[2];
	uint64_t gap;      /* bytes that Gap frames announced */
	uint64_t sequence; /* of Exit */
};

ProtobufCBinaryData ask_text(const char *s);
Sandgate__Uint64Value *ask_number(uint64_t value);
/* A fresh exec id, never drawn before. */
char *ask_id(void);
/* `cmd` as an exec of a fresh id: 10 s of timeout, 200 ms of grace. */
Sandgate__Exec ask_sh(const char *cmd);
/* `argv` ends with NULL. */
Sandgate__Exec ask_argv(const char *const argv[]);

/* The Open of each operation, with the token and this tree's version. */
Sandgate__HostFrame *ask_open(const struct target *t, Sandgate__Open__OpCase op, void *body);

/* The next frame, which must be of that kind. */
Sandgate__GuestFrame *ask_next(struct conn *c, Sandgate__GuestFrame__BodyCase want);
/* Dial, send Open, take Opened. */
struct conn *ask_session(const struct target *t, Sandgate__Open__OpCase op, void *body);
/* A whole one-answer operation. */
Sandgate__GuestFrame *ask_once(const struct target *t, Sandgate__Open__OpCase op, void *body,
                               Sandgate__GuestFrame__BodyCase want);
/* An operation that must be refused with `code`; ERR_NONE: with any. */
Sandgate__Refused *ask_refused(const struct target *t, Sandgate__Open__OpCase op, void *body,
                               enum err_code code);
Sandgate__Refused *ask_next_refused(struct conn *c, enum err_code code);
/* A Ping on a connection of its own: the agent lives and serves. */
void ask_alive(const struct target *t);
bool ask_feature(const struct target *t, const char *name);

/* Start an exec as its owner, up to Started; and on, as ask_until(). */
struct conn *ask_start(const struct target *t, Sandgate__Exec *e);
struct conn *ask_start_until(const struct target *t, Sandgate__Exec *e, const char *word);
struct conn *ask_attach(const struct target *t, const char *id, Sandgate__Role role,
                        uint64_t offset);
/* Read to Exit, checking that sequence numbers have no hole that no Gap told of. */
struct ask_end ask_end(struct conn *c, uint64_t offset);
/* ask_start() and ask_end(). */
struct ask_end ask_run(const struct target *t, Sandgate__Exec *e);
struct ask_end ask_run_sh(const struct target *t, const char *cmd);
/* Whether the guest has a process of this number (`echo $!` prints it) that is no zombie. */
bool ask_lives(const struct target *t, const char *pid);
/* Read output of a running exec until stdout holds `word`; its end fails the check. */
void ask_until(struct conn *c, const char *word);

Sandgate__ExecState *ask_state(const struct target *t, const char *id);
/* Ask for the state until it is finished; which it must be by a cancel for `reason`. */
Sandgate__ExecState *ask_finished(const struct target *t, const char *id);
Sandgate__ExecState *ask_cancelled(const struct target *t, const char *id,
                                   Sandgate__CancelReason reason);
void ask_forget(const struct target *t, const char *id);
void ask_cancel(struct conn *c, Sandgate__CancelReason reason);
/* Input at its end; nothing is waited for. */
void ask_feed(struct conn *c, const char *text);

/* Wait between two questions of a loop that has a deadline of its own. */
void ask_pause(void);

void ask_expect(const struct ask_end *end, Sandgate__Outcome outcome, int exit_code);
void ask_expect_text(const struct ask_end *end, Sandgate__Stream stream, const char *text);

#endif
