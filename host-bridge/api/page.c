#include "host-bridge/api/page.h"

#include <stdio.h>
#include <string.h>

#include "host-bridge/api/api.h"

#define PREFIX "after."

int page_of(const struct api_request *r, struct page *p, struct err *e)
{
	bool set;
	uint64_t limit = LIST_LIMIT_DEFAULT;
	const char *token = http_query(r->x, "page_token");
	if (api_query_integer(r, "limit", LIST_LIMIT_MAX, &set, &limit, e) < 0)
		return -1;
	if (limit < 1)
		return err_field(e, ERR_INVALID_FIELD, "limit", "limit must be at least 1");
	p->limit = limit;
	p->after = "";
	if (token == NULL)
		return 0;
	if (strncmp(token, PREFIX, strlen(PREFIX)) != 0)
		return err_field(e, ERR_INVALID_FIELD, "page_token",
		                 "page_token must be a next_page of this list");
	p->after = token + strlen(PREFIX);
	return 0;
}

void page_token(const char *last_id, char token[PAGE_TOKEN_MAX])
{
	snprintf(token, PAGE_TOKEN_MAX, PREFIX "%s", last_id);
}

int page_list_begin(const struct api_request *r, struct page_list *l, struct err *e)
{
	*l = (struct page_list){0};
	if (page_of(r, &l->page, e) < 0)
		return -1;
	l->items = json_array();
	return 0;
}

bool page_list_takes(struct page_list *l, const char *id)
{
	if (strcmp(id, l->page.after) <= 0)
		return false;
	l->more = json_array_size(l->items) == l->page.limit;
	if (!l->more)
		l->last = id;
	return !l->more;
}

void page_list_reply(struct page_list *l, struct api_request *r)
{
	char token[PAGE_TOKEN_MAX];
	if (l->more)
		page_token(l->last, token);
	api_reply_json(
	    r, 200,
	    json_pack("{s:o, s:s?}", "items", l->items, "next_page", l->more ? token : NULL));
}
