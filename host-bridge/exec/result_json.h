/*
 * What an exec's end looks like in JSON: the one place that knows the names of ExecResult,
 * ExecSummary and Exec (api.md section 3). Pure: it writes into the caller's buffer.
 */
#ifndef SANDGATE_RESULT_JSON_H
#define SANDGATE_RESULT_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "host-bridge/http/json_out.h"
#include "proto/sandgate.pb-c.h"

/* What was kept of one output stream. */
struct result_stream {
	const char *data;
	size_t len;
};

/* What came of the output before the guest was lost. */
struct result_partial {
	struct result_stream streams[2];
	uint64_t bytes[2]; /* … in all */
	bool base64;
};

/* ExecResult, with its streams left out: `gaps` tells where in the buffer the text of each
 * belongs, and the word false that is to be true when that text had to be repaired. A
 * character that the cap cut in two is taken off the streams, unless they go as base64. */
struct result_gaps {
	size_t at[2], lossy;
};
void result_json_around(struct json_out *out, const char *exec_id, const Sandgate__Result *r,
                        struct result_stream streams[2], bool base64, struct result_gaps *gaps);
/* ExecSummary, as the member `key`: without the streams. `cut`: not all of this stream's output
 * was told or can be had; `lossy`: not all was UTF-8. */
void result_json_summary(struct json_out *out, const char *key, const char *exec_id,
                         const Sandgate__Result *r, const bool cut[2], bool lossy);
/* PartialOutput, as the member `key`; null for none. */
void result_json_partial(struct json_out *out, const char *key, const struct result_partial *p);
/* Exec. */
void result_json_exec(struct json_out *out, const Sandgate__ExecState *s);

const char *result_outcome_name(Sandgate__Outcome outcome);
/* "SIGKILL" of 9; "SIG99" for a number without a name. */
void result_signal_name(uint32_t number, char name[16]);
/* The number of "SIGKILL" or "KILL", or 0. */
uint32_t result_signal_number(const char *name);

/* RFC 3339 in UTC with milliseconds, of milliseconds since the epoch; null for 0. */
void result_instant_json(struct json_out *out, const char *key, uint64_t ms);

#endif
