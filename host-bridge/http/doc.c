#include "host-bridge/http/doc.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

/* ---- all, or nothing ---- */

/* In front of all that jansson allocates. */
struct block {
	LIST_ENTRY(block) entry; /* of `made`; le_prev NULL: of nothing */
};

/* What the document has cost that is being made: where there is no memory it is left, and
 * jansson with it, in the middle. */
static LIST_HEAD(, block) made;
static jmp_buf no_memory;
static bool making;

static void *on_malloc(size_t size)
{
	struct block *b = malloc(sizeof(*b) + size);
	if (b == NULL && making)
		longjmp(no_memory, 1);
	if (b == NULL)
		return NULL;
	b->entry.le_prev = NULL;
	if (making)
		LIST_INSERT_HEAD(&made, b, entry);
	return b + 1;
}

static void on_free(void *p)
{
	if (p == NULL)
		return;
	struct block *b = (struct block *)p - 1;
	if (b->entry.le_prev != NULL)
		LIST_REMOVE(b, entry);
	free(b);
}

/* Before anything is allocated. */
__attribute__((constructor)) static void set_up(void)
{
	json_set_alloc_funcs(on_malloc, on_free);
}

static void end(bool keep)
{
	struct block *b;
	making = false;
	while ((b = LIST_FIRST(&made)) != NULL) {
		LIST_REMOVE(b, entry);
		b->entry.le_prev = NULL;
		if (!keep)
			free(b);
	}
}

json_t *doc_parse(const char *text, size_t len, size_t flags, json_error_t *why)
{
	if (setjmp(no_memory) != 0) {
		end(false);
		why->text[0] = '\0';
		return NULL;
	}
	making = true;
	json_t *doc = json_loadb(text, len, flags, why);
	end(true);
	return doc;
}

/* Members that there is no memory for it leaves out. */
int doc_copy(json_t **to, const json_t *json, struct err *e)
{
	*to = NULL;
	if (json == NULL)
		return 0;
	if (setjmp(no_memory) != 0) {
		end(false);
		return err_set(e, ERR_CAPACITY, "out of memory");
	}
	making = true;
	*to = json_deep_copy(json);
	end(true);
	return 0;
}

/* ---- reading ---- */

/* A fault of the text has words. */
bool doc_no_memory(const json_error_t *why)
{
	return why->text[0] == '\0';
}

json_t *doc_load(const char *path, size_t flags, enum err_code other, struct err *e)
{
	json_error_t why;
	char *text = NULL;
	size_t room = 0;
	FILE *f = fopen(path, "re");
	ssize_t len = f != NULL ? getdelim(&text, &room, EOF, f) : -1;
	if (f == NULL || (len < 0 && !feof(f))) {
		err_errno(e, err_of_errno(errno, other), errno, "it cannot be read");
		len = -1;
	} else if (len < 0) {
		err_set(e, other, "it is empty");
	}
	if (f != NULL)
		fclose(f);
	json_t *doc = len >= 0 ? doc_parse(text, (size_t)len, flags, &why) : NULL;
	free(text);
	if (len >= 0 && doc == NULL && doc_no_memory(&why))
		err_set(e, ERR_CAPACITY, "out of memory");
	else if (len >= 0 && doc == NULL)
		err_set(e, other, "%.80s", why.text);
	return doc;
}

/* ---- writing ---- */

struct text {
	FILE *to;
	bool failed;
};

/* jansson does not always hear it. */
static int on_text(const char *text, size_t len, void *data)
{
	struct text *t = data;
	t->failed |= fwrite(text, 1, len, t->to) != len;
	return t->failed ? -1 : 0;
}

char *doc_text(const json_t *doc, size_t flags)
{
	char *text = NULL;
	size_t len;
	struct text t = {.to = open_memstream(&text, &len)};
	if (t.to == NULL)
		return NULL;
	t.failed = json_dump_callback(doc, on_text, &t, flags) < 0 || t.failed;
	if (fclose(t.to) == 0 && !t.failed)
		return text;
	free(text);
	return NULL;
}

/* ---- bit by bit ---- */

static void settle(json_t **to, int rc)
{
	if (rc == 0)
		return;
	json_decref(*to);
	*to = NULL;
}

void doc_append(json_t **to, json_t *item)
{
	settle(to, json_array_append_new(*to, item));
}

void doc_set(json_t **to, const char *key, json_t *value)
{
	settle(to, json_object_set_new(*to, key, value));
}

bool doc_has(const json_t *list, const char *text)
{
	const char *item;
	for (size_t i = 0; i < json_array_size(list); i++) {
		item = json_string_value(json_array_get(list, i));
		if (item != NULL && strcmp(item, text) == 0)
			return true;
	}
	return false;
}
