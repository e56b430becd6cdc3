/*
 * JSON request bodies: a declarative table of fields says what a body may hold; one parser
 * checks the document against it and fills in a plain struct. Every handler that takes
 * JSON uses it. It knows nothing of what a field means.
 *
 * What a table does not name is refused with its path ("limits.memory_mib"), so is a wrong
 * type, a value out of range, and a NUL in a string; without its path a number that no C type
 * holds, and a NUL in a field's name. null means absent. Strings and subtrees are borrowed from
 * the document, which the caller keeps.
 */
#ifndef SANDGATE_BODY_H
#define SANDGATE_BODY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct body_str { /* NULL when absent; NUL-terminated besides */
	const char *s;
	size_t len;
};
struct body_num {
	bool set;
	double v;
};
struct body_int { /* BODY_INT, and the index of a BODY_ENUM's name */
	bool set;
	int64_t v;
};
struct body_bool {
	bool set, v;
};

enum body_type {
	BODY_STR,   /* struct body_str */
	BODY_BYTES, /* struct body_str that may hold NUL */
	BODY_NUM,   /* struct body_num, min..max; above min with `above` */
	BODY_INT,   /* struct body_int, min..max */
	BODY_BOOL,  /* struct body_bool */
	BODY_ENUM,  /* struct body_int, one of names */
	BODY_LIST,  /* json_t *, array of strings */
	BODY_MAP,   /* json_t *, object of strings */
	BODY_PATCH, /* json_t *, object of strings or nulls */
	BODY_JSON,  /* json_t *, an object that somebody else checks */
	BODY_GROUP, /* struct of the nested table at offset; members stay unset when absent */
};

struct body_field {
	const char *name;
	enum body_type type;
	size_t offset;
	double min, max;
	bool above; /* min itself is out */
	bool required;
	const char *const *names;        /* BODY_ENUM: NULL-terminated */
	const struct body_field *fields; /* BODY_GROUP */
};

/*
 * Parse `data` against `fields` (ended by a NULL name) into the zeroed struct `out`.
 * Returns the document, which the caller drops with json_decref after its last use of
 * `out`. An empty body is an empty object. Errors: ERR_MALFORMED_JSON, ERR_INVALID_FIELD,
 * ERR_MISSING_FIELD, ERR_INTERNAL.
 */
json_t *body_parse(const char *data, size_t len, const struct body_field *fields, void *out,
                   struct err *e);

/* The same for an object that was parsed before; `prefix` is its path, "" or "a.b.". */
int body_read(const char *prefix, json_t *doc, const struct body_field *fields, void *out,
              struct err *e);

#endif
