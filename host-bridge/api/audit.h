/*
 * The audit log: one JSON line a request, saying who did what to which sandbox and how it
 * ended. Never a command, its environment, its input or output, nor a token.
 */
#ifndef SANDGATE_AUDIT_H
#define SANDGATE_AUDIT_H

#include "proto/err.h"

struct audit;
struct api_request;

/* Append to `path` ("-": standard output; "" gives a log that drops everything). */
struct audit *audit_open(const char *path, struct err *e);
void audit_close(struct audit *a);

/* `status` is the reply's, or 499 when the client left before it. */
void audit_request(struct audit *a, const struct api_request *r, int status);

#endif
