/* The list of a sandbox's execs. */
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/ask.h"
#include "host-bridge/api/handlers.h"
#include "host-bridge/api/page.h"
#include "host-bridge/exec/result_json.h"

/* The agent answers in as many frames as it needs, in no order; a page is in order of id,
 * which does not move while a client pages. So the page's best candidates are kept. */
struct item {
	char id[EXEC_ID_MAX + 1];
	uint8_t *packed; /* an ExecState: frames are freed behind us */
	size_t len;
};

struct list {
	struct ask ask;
	struct page page;
	struct item *items; /* in order; room for one more than the page holds */
	size_t count;
	bool lacks; /* one that there was no memory for */
};

static void on_free(struct ask *a)
{
	struct list *l = (struct list *)a;
	for (size_t i = 0; i < l->count; i++)
		free(l->items[i].packed);
	free(l->items);
}

/* Put one in its place, and push the last out when the page and its lookahead are full. */
static void add(struct list *l, const Sandgate__ExecState *x)
{
	struct item item;
	size_t at = l->count;
	if (strlen(x->exec_id) > EXEC_ID_MAX || strcmp(x->exec_id, l->page.after) <= 0)
		return;
	while (at > 0 && strcmp(l->items[at - 1].id, x->exec_id) > 0)
		at--;
	if (at > l->page.limit)
		return;
	strcpy(item.id, x->exec_id);
	item.packed = malloc(sandgate__exec_state__get_packed_size(x) + 1);
	if (item.packed == NULL) {
		l->lacks = true;
		return;
	}
	item.len = sandgate__exec_state__pack(x, item.packed);
	if (l->count > l->page.limit)
		free(l->items[--l->count].packed);
	memmove(&l->items[at + 1], &l->items[at], (l->count - at) * sizeof(item));
	l->items[at] = item;
	l->count++;
}

static void reply(struct list *l)
{
	struct json_out out = {0};
	size_t len, n = l->count < l->page.limit ? l->count : l->page.limit;
	char token[PAGE_TOKEN_MAX];
	out.failed = l->lacks;
	json_out_object(&out, NULL);
	json_out_array(&out, "items");
	for (size_t i = 0; i < n; i++) {
		Sandgate__ExecState *x =
		    sandgate__exec_state__unpack(NULL, l->items[i].len, l->items[i].packed);
		if (x != NULL)
			result_json_exec(&out, x);
		out.failed |= x == NULL;
		sandgate__exec_state__free_unpacked(x, NULL);
	}
	json_out_end(&out, ']');
	if (l->count > n)
		page_token(l->items[n - 1].id, token);
	json_out_string(&out, "next_page", l->count > n ? token : NULL);
	json_out_end(&out, '}');
	char *body = json_out_take(&out, &len);
	api_reply_take(ask_done(&l->ask), 200, "application/json", body, len);
}

static void on_list(struct ask *a, const Sandgate__GuestFrame *f)
{
	struct list *l = (struct list *)a;
	if (f->body_case == SANDGATE__GUEST_FRAME__BODY_EXEC_LIST)
		for (size_t i = 0; i < f->exec_list->n_execs; i++)
			add(l, f->exec_list->execs[i]);
	else if (f->body_case == SANDGATE__GUEST_FRAME__BODY_DONE)
		reply(l);
}

static void list(struct api_request *r, struct sandbox *s, char *data, size_t len)
{
	struct err e;
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__ListExecs what = SANDGATE__LIST_EXECS__INIT;
	(void)data;
	(void)len;
	struct list *l = ask_create(r, s, sizeof(*l));
	if (l == NULL)
		return;
	l->ask.on_free = on_free;
	if (page_of(r, &l->page, &e) < 0) {
		ask_fail(&l->ask, &e);
		return;
	}
	l->items = calloc(l->page.limit + 2, sizeof(*l->items));
	if (l->items == NULL) {
		err_set(&e, ERR_CAPACITY, "out of memory");
		ask_fail(&l->ask, &e);
		return;
	}
	open.op_case = SANDGATE__OPEN__OP_LIST_EXECS;
	open.list_execs = &what;
	ask_open(&l->ask, &open, on_list);
}

void api_exec_list(struct api_request *r, char *data, size_t len)
{
	ask_running(r, list, data, len);
}
