/*
 * One connection to the agent under judgement: dialling, whole frames in and out, raw
 * bytes. Blocking, every wait bounded. The checks call it; it judges nothing but the
 * framing, and ends the running check (check.h) when a connection does not work.
 */
#ifndef SANDGATE_CONN_H
#define SANDGATE_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/sandgate.pb-c.h"

/* No answer may take longer, and no check has reason to wait longer (milliseconds). */
#define CONN_WAIT_MS 8000

enum target_kind { TARGET_UNIX, TARGET_HYBRID, TARGET_VSOCK };

struct target {
	enum target_kind kind;
	char path[108];
	uint32_t cid, port;
	uint8_t token[256];
	size_t token_len;
};

struct conn;

/* "unix:PATH", "hybrid:PATH[:PORT]" or "vsock:CID:PORT". 0, or -1 with the reason in
 * `why`. CID 2 is refused: it is whatever hosts this machine, never a guest of ours. */
int target_parse(const char *spec, struct target *out, const char **why);

struct conn *conn_dial(const struct target *t);
void conn_close(struct conn *c);

/* False when the peer has closed: a refused session may vanish in the middle of a write. */
bool conn_write(struct conn *c, const void *bytes, size_t len);
bool conn_send(struct conn *c, const Sandgate__HostFrame *frame);

/* The next frame, the caller's until the check ends; NULL at the connection's end. Fails
 * the check after `wait_ms`, on a frame over its cap and on one that does not parse. */
Sandgate__GuestFrame *conn_recv(struct conn *c, int wait_ms);

/* Whether a frame or the end is there within `wait_ms`. */
bool conn_readable(struct conn *c, int wait_ms);

#endif
