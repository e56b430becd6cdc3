/*
 * Errors: one object, one table.
 *
 * Every function that can fail for a reason the caller must tell apart takes a
 * `struct err *` as its last argument, returns -1 (or NULL), and fills it in. On
 * success it is left untouched. The storage is the caller's; nothing is allocated.
 *
 * The codes are shared by the agent, the wire protocol (`Refused.code` carries the
 * number) and the HTTP API (`error.code` carries the name). The table below is the
 * only place that knows a code's number, name and HTTP status. Numbers are part of
 * the protocol: append, never renumber.
 */
#ifndef SANDGATE_ERR_H
#define SANDGATE_ERR_H

#include <stdbool.h>
#include <stdint.h>

/* X(enumerator, number, public name, HTTP status, repeating it can run nothing twice) */
#define ERR_TABLE(X)                                                                    \
	X(ERR_INTERNAL, 1, "internal", 500, false)                                      \
	X(ERR_MALFORMED_JSON, 2, "request.malformed_json", 400, false)                  \
	X(ERR_INVALID_FIELD, 3, "request.invalid_field", 400, false)                    \
	X(ERR_MISSING_FIELD, 4, "request.missing_field", 400, false)                    \
	X(ERR_MISSING_TOKEN, 5, "auth.missing_token", 401, false)                       \
	X(ERR_INVALID_TOKEN, 6, "auth.invalid_token", 401, false)                       \
	X(ERR_FORBIDDEN, 7, "auth.forbidden", 403, false)                               \
	X(ERR_ROUTE_NOT_FOUND, 8, "route.not_found", 404, false)                        \
	X(ERR_SANDBOX_NOT_FOUND, 9, "sandbox.not_found", 404, false)                    \
	X(ERR_EXEC_NOT_FOUND, 10, "exec.not_found", 404, false)                         \
	X(ERR_TEMPLATE_NOT_FOUND, 11, "template.not_found", 404, false)                 \
	X(ERR_METHOD_NOT_ALLOWED, 12, "method.not_allowed", 405, false)                 \
	X(ERR_INVALID_STATE, 13, "sandbox.invalid_state", 409, false)                   \
	X(ERR_EXEC_ID_CONFLICT, 14, "exec.id_conflict", 409, false)                     \
	X(ERR_STDIN_OFFSET, 15, "exec.stdin_offset", 409, false)                        \
	X(ERR_IDEMPOTENCY_CONFLICT, 16, "request.idempotency_conflict", 409, false)     \
	X(ERR_SANDBOX_GONE, 17, "sandbox.gone", 410, false)                             \
	X(ERR_TOO_LARGE, 18, "request.too_large", 413, false)                           \
	X(ERR_UNSUPPORTED_MEDIA_TYPE, 19, "request.unsupported_media_type", 415, false) \
	X(ERR_LIMIT_UNSUPPORTED, 20, "limit.unsupported", 422, false)                   \
	X(ERR_QUOTA_EXCEEDED, 21, "quota.exceeded", 429, true)                          \
	X(ERR_STORAGE_FULL, 22, "storage.full", 507, true)                              \
	X(ERR_SANDBOX_LOST, 23, "sandbox.lost", 502, false)                             \
	X(ERR_PROTOCOL, 24, "agent.protocol_error", 502, false)                         \
	X(ERR_INCOMPATIBLE, 25, "agent.incompatible", 502, false)                       \
	X(ERR_LAUNCHER_FAILED, 26, "launcher.failed", 502, true)                        \
	X(ERR_UNREACHABLE, 27, "agent.unreachable", 503, true)                          \
	X(ERR_CAPACITY, 28, "capacity.unavailable", 503, true)                          \
	X(ERR_DRAINING, 29, "bridge.draining", 503, true)                               \
	X(ERR_TIMEOUT, 30, "agent.timeout", 504, false)                                 \
	X(ERR_SNAPSHOT_NOT_FOUND, 31, "snapshot.not_found", 404, false)                 \
	X(ERR_FILE_NOT_FOUND, 32, "file.not_found", 404, false)                         \
	X(ERR_FILE_CONFLICT, 33, "file.conflict", 409, false)                           \
	X(ERR_FILE_UNSUPPORTED, 34, "file.unsupported", 422, false)                     \
	X(ERR_OUTPUT_GONE, 35, "exec.output_gone", 410, false)

enum err_code {
	ERR_NONE = 0,
#define X(sym, num, name, status, retry) sym = num,
	ERR_TABLE(X)
#undef X
};

struct err {
	enum err_code code;
	char field[64]; /* the request field at fault, or "" */
	uint64_t limit; /* the bound that was passed; 0: there is none */
	char msg[160];  /* one English sentence, no secrets, no user data beyond short names */
};

/* Fill in `e` (may be NULL) and return -1, so that `return err_set(e, …)` reads well. */
int err_set(struct err *e, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a fault of one request field; `field` is copied. */
int err_field(struct err *e, enum err_code code, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The same for one that is past `limit`. */
int err_limit(struct err *e, enum err_code code, const char *field, uint64_t limit,
              const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Append ": <strerror(errnum)>" to a formatted message. */
int err_errno(struct err *e, enum err_code code, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Whether what failed so is worth a later try: this process or the host has no descriptor,
 * memory or process to spare. EAGAIN is that of clone(2): not for what does not block. */
bool err_is_shortage(int errnum);

/* What could not be written or made, as `errnum` says: ERR_STORAGE_FULL where the disk has no
 * room, ERR_CAPACITY in another shortage, else `other`. */
enum err_code err_of_errno(int errnum, enum err_code other);

/* The public name ("sandbox.lost"). An unknown number gives "internal". */
const char *err_name(enum err_code code);

/* The HTTP status of a code; 500 for an unknown number. */
int err_http_status(enum err_code code);

/* Whether repeating the very request cannot run anything twice, as the table says. */
bool err_retryable(enum err_code code);

/* A number that came from a peer, as a code: ERR_PROTOCOL when the table lacks it. */
enum err_code err_from_wire(uint32_t number);

#endif
