/*
 * A JSON writer into a growable buffer, for replies and SSE events: callers write members
 * in order, commas come by themselves. What it writes is always valid JSON in valid UTF-8;
 * bytes that are not UTF-8 become U+FFFD and set `repaired`. Parsing is jansson's business.
 *
 *	struct json_out j = {0};
 *	json_out_object(&j, NULL);
 *	json_out_string(&j, "code", "internal");
 *	json_out_end(&j, '}');
 *
 * `key` is the member's name inside an object (ASCII, ours: not escaped), NULL elsewhere.
 * Failure (memory) sticks: later calls do nothing and json_out_take gives NULL.
 */
#ifndef SANDGATE_JSON_OUT_H
#define SANDGATE_JSON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_out {
	char *data; /* not NUL-terminated */
	size_t len, cap;
	unsigned depth;
	bool repaired; /* a string had bytes that were no UTF-8 */
	bool failed;
};

void json_out_object(struct json_out *j, const char *key);
void json_out_array(struct json_out *j, const char *key);
/* `bracket` is '}' or ']'. */
void json_out_end(struct json_out *j, char bracket);

/* NULL gives null. */
void json_out_string(struct json_out *j, const char *key, const char *value);
/* Any bytes, NULs included. */
void json_out_bytes(struct json_out *j, const char *key, const void *data, size_t len);
void json_out_base64(struct json_out *j, const char *key, const void *data, size_t len);
void json_out_int(struct json_out *j, const char *key, int64_t value);
void json_out_bool(struct json_out *j, const char *key, bool value);
void json_out_null(struct json_out *j, const char *key);

/* Text that is not JSON, around the outermost value only: the lines of an SSE event. */
void json_out_raw(struct json_out *j, const char *text, size_t len);
/* The inside of such a string, without its quotes and what comes before it: for a long one
 * that is written piece by piece. Cut characters, and base64 not at threes, end with it. */
void json_out_text(struct json_out *j, const void *data, size_t len);
void json_out_base64_text(struct json_out *j, const void *data, size_t len);

/* Hand over the buffer (free() it) and start empty; NULL after a failure. */
char *json_out_take(struct json_out *j, size_t *len);
/* Empty it for reuse, keeping the memory. */
void json_out_reset(struct json_out *j);
void json_out_free(struct json_out *j);

#endif
