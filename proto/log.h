/*
 * Logging of both programs: one line a record on standard error (or, for PID 1, the
 * console): level, module, an id when there is one, text. JSON when asked for.
 *
 * errno is preserved. Never pass argv, env, stdin or output of a user's command, nor
 * a token: there is no redaction here to save you.
 */
#ifndef SANDGATE_LOG_H
#define SANDGATE_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* What is below `level` is dropped; `json` switches the format. Default: info, text. */
void log_setup(enum log_level level, bool json);

/* "error" | "warn" | "info" | "debug" to a level; -1 for anything else. */
int log_level_parse(const char *s);

/* `module` is the file's own short name; `id` an exec, sandbox or request id, or NULL. */
void log_line(enum log_level level, const char *module, const char *id, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#define log_error(module, id, ...) log_line(LOG_ERROR, module, id, __VA_ARGS__)
#define log_warn(module, id, ...) log_line(LOG_WARN, module, id, __VA_ARGS__)
#define log_info(module, id, ...) log_line(LOG_INFO, module, id, __VA_ARGS__)
#define log_debug(module, id, ...) log_line(LOG_DEBUG, module, id, __VA_ARGS__)

/* For start-up only, before the loop runs: log at error level and exit(1). */
void fatal(const char *module, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));

#endif
