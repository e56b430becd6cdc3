/*
 * JSON documents: read, made bit by bit, and written with jansson; whole, or not at all.
 * jansson does not get by without memory: it leaves characters out of the strings that it
 * reads, or reads on past their ends, and leaves members out of what it copies and keys out of
 * what it writes. So nobody else calls its json_load…, json_…copy and json_dump….
 */
#ifndef SANDGATE_DOC_H
#define SANDGATE_DOC_H

#include <jansson.h>
#include <stdbool.h>

#include "proto/err.h"

/* The document that a text is; `flags` are jansson's. NULL: it is none, as `why` says; or there
 * is no memory, which doc_no_memory tells of. */
json_t *doc_parse(const char *text, size_t len, size_t flags, json_error_t *why);
bool doc_no_memory(const json_error_t *why);
/* The same of a file: ERR_CAPACITY, …, where it cannot be read, else `other`. */
json_t *doc_load(const char *path, size_t flags, enum err_code other, struct err *e);
/* Its text, to be freed; NULL: there is no memory, or no document. */
char *doc_text(const json_t *doc, size_t flags);

/* Append `item` to the array, or set it in the object; it is taken over. On failure, also when
 * `item` or `*to` is NULL already, `*to` is freed and NULL: json_pack and doc_text then fail,
 * so that nobody is told of a part. */
void doc_append(json_t **to, json_t *item);
void doc_set(json_t **to, const char *key, json_t *value);
/* `json` copied to `*to`, NULL as NULL. ERR_CAPACITY. */
int doc_copy(json_t **to, const json_t *json, struct err *e);
/* Whether the array has that string. */
bool doc_has(const json_t *list, const char *text);

#endif
