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
