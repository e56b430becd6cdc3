/*
 * Paging of lists (api.md section 1): `page_token` and `limit` of a request's query. A list
 * is in order of id, so a token names the last id of its page; to clients it is opaque.
 */
#ifndef SANDGATE_PAGE_H
#define SANDGATE_PAGE_H

#include <jansson.h>
#include <stdbool.h>
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

/* A page of what the bridge itself holds, looked through in order of id until there is `more`
 * than fits. */
struct page_list {
	struct page page;
	json_t *items;
	const char *last; /* id of the last item, which lives until the reply */
	bool more;
};

int page_list_begin(const struct api_request *r, struct page_list *l, struct err *e);
/* Whether the one with this id is on the page: the caller then adds it to `items`. */
bool page_list_takes(struct page_list *l, const char *id);
/* {items, next_page} */
void page_list_reply(struct page_list *l, struct api_request *r);

#endif
