#include "host-bridge/http/body.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "host-bridge/http/doc.h"

/* Where we are in the document: "limits." */
struct place {
	const char *prefix;
};

static int bad(const struct place *at, const char *name, struct err *e, const char *what)
{
	char path[64];
	snprintf(path, sizeof(path), "%s%.48s", at->prefix, name);
	return err_field(e, ERR_INVALID_FIELD, path, "%s %s", path, what);
}

static bool holds_nul(const json_t *v)
{
	return memchr(json_string_value(v), '\0', json_string_length(v)) != NULL;
}

static int read_str(const struct place *at, const struct body_field *f, const json_t *v,
                    void *out, struct err *e)
{
	if (!json_is_string(v))
		return bad(at, f->name, e, "must be a string");
	if (f->type != BODY_BYTES && holds_nul(v))
		return bad(at, f->name, e, "must not contain a NUL");
	*(struct body_str *)out =
	    (struct body_str){json_string_value(v), json_string_length(v)};
	return 0;
}

static int out_of_range(const struct place *at, const struct body_field *f, double n,
                        struct err *e)
{
	char what[96];
	double bound = n > f->max ? f->max : f->min;
	snprintf(what, sizeof(what), "must be %s %.15g and at most %.15g",
	         f->above ? "above" : "at least", f->min, f->max);
	bad(at, f->name, e, what);
	e->limit = bound >= 1 ? (uint64_t)bound : 0;
	return -1;
}

static int read_num(const struct place *at, const struct body_field *f, const json_t *v,
                    void *out, struct err *e)
{
	if (!json_is_number(v))
		return bad(at, f->name, e, "must be a number");
	double n = json_number_value(v);
	if (!(n >= f->min && n <= f->max) || (f->above && n <= f->min))
		return out_of_range(at, f, n, e);
	*(struct body_num *)out = (struct body_num){true, n};
	return 0;
}

static int read_int(const struct place *at, const struct body_field *f, const json_t *v,
                    void *out, struct err *e)
{
	if (!json_is_integer(v))
		return bad(at, f->name, e, "must be an integer");
	int64_t n = json_integer_value(v);
	if ((double)n < f->min || (double)n > f->max)
		return out_of_range(at, f, (double)n, e);
	*(struct body_int *)out = (struct body_int){true, n};
	return 0;
}

static int read_enum(const struct place *at, const struct body_field *f, const json_t *v,
                     void *out, struct err *e)
{
	char what[96] = "must be one of";
	size_t n = strlen(what);
	for (int i = 0; f->names[i] != NULL; i++) {
		if (json_is_string(v) && strcmp(json_string_value(v), f->names[i]) == 0 &&
		    json_string_length(v) == strlen(f->names[i])) {
			*(struct body_int *)out = (struct body_int){true, i};
			return 0;
		}
		n += (size_t)snprintf(what + n, sizeof(what) - n, "%s%s", i > 0 ? ", " : " ",
		                      f->names[i]);
		if (n >= sizeof(what))
			n = sizeof(what) - 1;
	}
	return bad(at, f->name, e, what);
}

static int read_list(const struct place *at, const struct body_field *f, json_t *v, void *out,
                     struct err *e)
{
	size_t i;
	json_t *item;
	char name[64];
	if (!json_is_array(v))
		return bad(at, f->name, e, "must be an array of strings");
	json_array_foreach (v, i, item) {
		snprintf(name, sizeof(name), "%s[%zu]", f->name, i);
		if (!json_is_string(item))
			return bad(at, name, e, "must be a string");
		if (holds_nul(item))
			return bad(at, name, e, "must not contain a NUL");
	}
	*(json_t **)out = v;
	return 0;
}

static int read_map(const struct place *at, const struct body_field *f, json_t *v, void *out,
                    struct err *e)
{
	const char *key;
	json_t *item;
	char name[128];
	if (!json_is_object(v))
		return bad(at, f->name, e, "must be an object of strings");
	json_object_foreach (v, key, item) {
		snprintf(name, sizeof(name), "%s.%.48s", f->name, key);
		if (f->type == BODY_PATCH && json_is_null(item))
			continue;
		if (!json_is_string(item))
			return bad(at, name, e, "must be a string");
		if (holds_nul(item))
			return bad(at, name, e, "must not contain a NUL");
	}
	*(json_t **)out = v;
	return 0;
}

static int read_fields(const char *prefix, json_t *doc, const struct body_field *fields,
                       void *out, struct err *e);

static int read_group(const struct place *at, const struct body_field *f, json_t *v, char *base,
                      struct err *e)
{
	char prefix[64];
	snprintf(prefix, sizeof(prefix), "%s%s.", at->prefix, f->name);
	if (!json_is_object(v))
		return bad(at, f->name, e, "must be an object");
	return read_fields(prefix, v, f->fields, base + f->offset, e);
}

static int read_bool(const struct place *at, const struct body_field *f, const json_t *v,
                     void *out, struct err *e)
{
	if (!json_is_boolean(v))
		return bad(at, f->name, e, "must be true or false");
	*(struct body_bool *)out = (struct body_bool){true, json_is_true(v)};
	return 0;
}

static int read_value(const struct place *at, const struct body_field *f, json_t *v, char *base,
                      struct err *e)
{
	void *out = base + f->offset;
	switch (f->type) {
	case BODY_STR:
	case BODY_BYTES:
		return read_str(at, f, v, out, e);
	case BODY_NUM:
		return read_num(at, f, v, out, e);
	case BODY_INT:
		return read_int(at, f, v, out, e);
	case BODY_BOOL:
		return read_bool(at, f, v, out, e);
	case BODY_ENUM:
		return read_enum(at, f, v, out, e);
	case BODY_LIST:
		return read_list(at, f, v, out, e);
	case BODY_MAP:
	case BODY_PATCH:
		return read_map(at, f, v, out, e);
	case BODY_JSON:
		if (!json_is_object(v))
			return bad(at, f->name, e, "must be an object");
		*(json_t **)out = v;
		return 0;
	case BODY_GROUP:
		return read_group(at, f, v, base, e);
	}
	return -1;
}

static const struct body_field *field_named(const struct body_field *fields, const char *name)
{
	for (; fields->name != NULL; fields++)
		if (strcmp(fields->name, name) == 0)
			return fields;
	return NULL;
}

static int read_fields(const char *prefix, json_t *doc, const struct body_field *fields,
                       void *out, struct err *e)
{
	const struct place at = {prefix};
	const char *key;
	json_t *v;
	json_object_foreach (doc, key, v) {
		const struct body_field *f = field_named(fields, key);
		if (f == NULL)
			return bad(&at, key, e, "is not a known field");
		if (!json_is_null(v) && read_value(&at, f, v, out, e) < 0)
			return -1;
	}
	for (const struct body_field *f = fields; f->name != NULL; f++) {
		char path[128];
		v = json_object_get(doc, f->name);
		if (!f->required || (v != NULL && !json_is_null(v)))
			continue;
		snprintf(path, sizeof(path), "%s%s", prefix, f->name);
		return err_field(e, ERR_MISSING_FIELD, path, "%s is required", path);
	}
	return 0;
}

int body_read(const char *prefix, json_t *doc, const struct body_field *fields, void *out,
              struct err *e)
{
	return read_fields(prefix, doc, fields, out, e);
}

/* A NUL in a key, one that comes twice, or a number that no C type holds is JSON, but jansson
 * ends its parse there and does not say in which object that was: the message tells the place,
 * and no field is named. */
static void say_why(const json_error_t *why, struct err *e)
{
	enum err_code code = ERR_INVALID_FIELD;
	const char *what;
	if (doc_no_memory(why)) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return;
	}
	if (json_error_code(why) == json_error_null_byte_in_key) {
		what = "a field's name must not contain a NUL";
	} else if (json_error_code(why) == json_error_duplicate_key) {
		what = "a field is given twice";
	} else if (json_error_code(why) == json_error_numeric_overflow) {
		what = "a number is out of range";
	} else {
		code = ERR_MALFORMED_JSON;
		what = "the body is not valid JSON";
	}
	err_set(e, code, "%s (line %d, column %d)", what, why->line, why->column);
}

json_t *body_parse(const char *data, size_t len, const struct body_field *fields, void *out,
                   struct err *e)
{
	json_error_t why;
	json_t *doc = len == 0
	                  ? json_object()
	                  : doc_parse(data, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	if (doc == NULL) {
		if (len == 0)
			err_set(e, ERR_CAPACITY, "out of memory");
		else
			say_why(&why, e);
		return NULL;
	}
	if (!json_is_object(doc))
		err_set(e, ERR_MALFORMED_JSON, "the body must be a JSON object");
	else if (read_fields("", doc, fields, out, e) == 0)
		return doc;
	json_decref(doc);
	return NULL;
}
