#include "host-bridge/api/quota.h"

#include <math.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host-bridge/http/doc.h"
#include "host-bridge/steady.h"

#define MINUTE_S 60.
#define CLOCK_SLACK_S 1e-6 /* sums of parts of a minute are not exact */

struct quota {
	struct api *api;
	void *uses; /* a tree of struct quota_use (tsearch(3)) */
};

/* ---- use ---- */

static int compare(const void *a, const void *b)
{
	return strcmp(((const struct quota_use *)a)->workspace,
	              ((const struct quota_use *)b)->workspace);
}

struct quota_use *quota_use(struct quota *q, const char *workspace)
{
	struct quota_use *u = calloc(1, sizeof(*u)), **at;
	if (u == NULL)
		return NULL;
	snprintf(u->workspace, sizeof(u->workspace), "%s", workspace);
	at = tsearch(u, &q->uses, compare);
	if (at != NULL && *at == u) {
		exec_count_init(&u->execs, q->api, u->workspace);
		return u;
	}
	free(u);
	return at != NULL ? *at : NULL;
}

static void use_free(void *use)
{
	struct quota_use *u = use;
	exec_count_stop(&u->execs);
	free(u);
}

static void count_sandboxes(const struct quota *q, const char *workspace,
                            uint64_t used[LIMIT_COUNT])
{
	struct sandbox *s = NULL;
	while ((s = sandbox_next(q->api->sandboxes, s)) != NULL) {
		const struct sandbox_spec *spec = sandbox_spec(s);
		if (sandbox_status(s) == SANDBOX_FAILED ||
		    strcmp(spec->workspace, workspace) != 0)
			continue;
		used[LIMIT_SANDBOXES]++;
		used[LIMIT_MEMORY_MIB] += spec->memory_mib;
		used[LIMIT_VCPUS] += spec->vcpus;
	}
}

/* ---- the rate of creates ---- */

static double worked_off(const struct quota_use *u)
{
	return fmax(u->creates_due - steady_now(), 0);
}

/* Seconds until `count` more are allowed; not above 0: they are. */
static double creates_wait(const struct quota_use *u, uint64_t max, unsigned count)
{
	if (max == LIMIT_NONE)
		return 0;
	if (max == 0)
		return MINUTE_S;
	return worked_off(u) + count * MINUTE_S / (double)max - MINUTE_S - CLOCK_SLACK_S;
}

static void meter_create(struct quota_use *u, uint64_t max)
{
	if (max != LIMIT_NONE && max > 0)
		u->creates_due = steady_now() + worked_off(u) + MINUTE_S / (double)max;
}

static uint64_t creates_counted(const struct quota_use *u, uint64_t max)
{
	if (max == LIMIT_NONE)
		return 0;
	return (uint64_t)ceil(worked_off(u) * (double)max / MINUTE_S - CLOCK_SLACK_S);
}

/* ---- judging ---- */

int quota_refuse(enum tokens_limit which, uint64_t max, struct err *e)
{
	char field[sizeof(e->field)];
	snprintf(field, sizeof(field), "%s_limit", tokens_limit_names[which]);
	return err_field(e, ERR_QUOTA_EXCEEDED, field, "the workspace may have %ju %s",
	                 (uintmax_t)max, tokens_limit_names[which]);
}

/* `more` is what comes on top of what is counted. */
static int judge(struct quota *q, const struct quota_use *u, const uint64_t more[LIMIT_COUNT],
                 struct err *e)
{
	static const enum tokens_limit summed[] = {LIMIT_SANDBOXES, LIMIT_MEMORY_MIB,
	                                           LIMIT_VCPUS};
	const uint64_t *max = auth_limits(q->api->auth, u->workspace)->max;
	uint64_t used[LIMIT_COUNT] = {0};
	count_sandboxes(q, u->workspace, used);
	for (size_t i = 0; i < sizeof(summed) / sizeof(summed[0]); i++)
		if (used[summed[i]] + more[summed[i]] > max[summed[i]])
			return quota_refuse(summed[i], max[summed[i]], e);
	if (creates_wait(u, max[LIMIT_CREATES_PER_MINUTE],
	                 (unsigned)more[LIMIT_CREATES_PER_MINUTE]) > 0)
		return quota_refuse(LIMIT_CREATES_PER_MINUTE, max[LIMIT_CREATES_PER_MINUTE], e);
	return 0;
}

int quota_room(struct quota *q, const struct sandbox_spec *like, unsigned count, struct err *e)
{
	const uint64_t more[LIMIT_COUNT] = {
	    [LIMIT_SANDBOXES] = count,
	    [LIMIT_MEMORY_MIB] = (uint64_t)count * like->memory_mib,
	    [LIMIT_VCPUS] = (uint64_t)count * like->vcpus,
	    [LIMIT_CREATES_PER_MINUTE] = count,
	};
	struct quota_use *u = quota_use(q, like->workspace);
	if (u == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	return judge(q, u, more, e);
}

/* The new sandbox is in the set already. */
static int on_create(const struct sandbox_spec *spec, void *arg, struct err *e)
{
	static const uint64_t more[LIMIT_COUNT] = {[LIMIT_CREATES_PER_MINUTE] = 1};
	struct quota *q = arg;
	struct quota_use *u = quota_use(q, spec->workspace);
	if (u == NULL)
		return err_set(e, ERR_CAPACITY, "out of memory");
	if (judge(q, u, more, e) < 0)
		return -1;
	meter_create(u,
	             auth_limits(q->api->auth, spec->workspace)->max[LIMIT_CREATES_PER_MINUTE]);
	return 0;
}

static int retry_after(const struct quota_use *u, enum tokens_limit which, uint64_t max)
{
	switch (which) {
	case LIMIT_EXECS:
		return QUOTA_RETRY_EXECS_S;
	case LIMIT_CREATES_PER_MINUTE:
		return (int)fmax(ceil(creates_wait(u, max, 1)), 1);
	default:
		return QUOTA_RETRY_SANDBOXES_S;
	}
}

void quota_explain(struct quota *q, const char *workspace, const struct err *e,
                   struct api_details *d)
{
	struct quota_use *u = quota_use(q, workspace);
	if (e->code != ERR_QUOTA_EXCEEDED || u == NULL)
		return;
	for (int i = 0; i < LIMIT_COUNT; i++) {
		size_t n = strlen(tokens_limit_names[i]);
		if (strncmp(e->field, tokens_limit_names[i], n) != 0 ||
		    strcmp(e->field + n, "_limit") != 0)
			continue;
		d->has_limit = true;
		d->limit = auth_limits(q->api->auth, workspace)->max[i];
		d->retry_after = retry_after(u, i, d->limit);
	}
}

/* ---- what it says ---- */

json_t *quota_json(const struct quota *q, const struct quota_use *u)
{
	const uint64_t *max = auth_limits(q->api->auth, u->workspace)->max;
	uint64_t used[LIMIT_COUNT] = {
	    [LIMIT_EXECS] = u->execs.running,
	    [LIMIT_CREATES_PER_MINUTE] = creates_counted(u, max[LIMIT_CREATES_PER_MINUTE]),
	};
	count_sandboxes(q, u->workspace, used);
	json_t *doc = json_pack("{s:s,s:i}", "workspace", u->workspace,
	                        "execs_per_sandbox_limit", EXECS_RUNNING_MAX);
	for (int i = 0; i < LIMIT_COUNT; i++) {
		char key[64];
		snprintf(key, sizeof(key), "%s_used", tokens_limit_names[i]);
		doc_set(&doc, key, json_integer((json_int_t)used[i]));
		snprintf(key, sizeof(key), "%s_limit", tokens_limit_names[i]);
		doc_set(&doc, key,
		        max[i] == LIMIT_NONE ? json_null() : json_integer((json_int_t)max[i]));
	}
	return doc;
}

/* ---- life ---- */

struct quota *quota_create(struct api *api, struct err *e)
{
	struct quota *q = calloc(1, sizeof(*q));
	if (q == NULL) {
		err_set(e, ERR_CAPACITY, "out of memory");
		return NULL;
	}
	q->api = api;
	sandbox_set_on_create(api->sandboxes, on_create, q);
	return q;
}

void quota_destroy(struct quota *q)
{
	if (q == NULL)
		return;
	sandbox_set_on_create(q->api->sandboxes, NULL, NULL);
	tdestroy(q->uses, use_free);
	free(q);
}
