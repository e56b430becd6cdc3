/*
 * Paging of lists (api.md section 1): `page_token` and `limit` of a request's query. A list
 * is in order of id, so a token names the last id of its page; to clients it is opaque.
 */
#ifndef SANDGATE_PAGE_H
#define SANDGATE_PAGE_H

#include <stddef.h>

#include "proto/err.h"

struct api_request;

#define PAGE_TOKEN_MAX 128

struct page {
	const char *after; /* the last id of the page before, or "" */
	size_t limit;
};

int page_of(const struct api_request *r, struct page *p, struct err *e);
/* The token of the page behind `last_id`. */
void page_token(const char *last_id, char token[PAGE_TOKEN_MAX]);

#endif
