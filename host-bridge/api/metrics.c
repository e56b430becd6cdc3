#include "host-bridge/api/metrics.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "host-bridge/exec/result_json.h"

#define OUTCOMES (SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED + 1) /* 0 is none */
#define UNSEEN 3
#define STATUS_MAX 600

static const double bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                0.25,  0.5,    1,     2.5,  5,     10,   60};
#define BOUNDS (sizeof(bounds) / sizeof(bounds[0]))

struct histogram {
	uint64_t buckets[BOUNDS + 1], count;
	double sum;
};

struct metrics {
	uint64_t requests[STATUS_MAX];
	uint64_t execs[OUTCOMES], unseen[UNSEEN];
	struct histogram exec_seconds, create_seconds;
	uint64_t sandboxes_created, sandboxes_failed;
};

static const char *const unseen_names[UNSEEN] = {
    [UNSEEN_ERROR] = "error",
    [UNSEEN_DETACHED] = "detached",
    [UNSEEN_CLIENT_GONE] = "client_gone",
};

struct metrics *metrics_create(void)
{
	return calloc(1, sizeof(struct metrics));
}

void metrics_destroy(struct metrics *m)
{
	free(m);
}

static void observe(struct histogram *h, double seconds)
{
	size_t i = 0;
	while (i < BOUNDS && seconds > bounds[i])
		i++;
	h->buckets[i]++;
	h->count++;
	h->sum += seconds;
}

void metrics_request(struct metrics *m, int status)
{
	if (status >= 0 && status < STATUS_MAX)
		m->requests[status]++;
}

void metrics_exec(struct metrics *m, Sandgate__Outcome outcome, double seconds)
{
	if ((unsigned)outcome < OUTCOMES)
		m->execs[outcome]++;
	observe(&m->exec_seconds, seconds);
}

void metrics_exec_unseen(struct metrics *m, enum metrics_unseen why)
{
	m->unseen[why]++;
}

void metrics_sandbox(struct metrics *m, bool ready, double seconds)
{
	if (!ready) {
		m->sandboxes_failed++;
		return;
	}
	m->sandboxes_created++;
	observe(&m->create_seconds, seconds);
}

static void print_histogram(FILE *f, const char *name, const char *help,
                            const struct histogram *h)
{
	uint64_t sum = 0;
	fprintf(f, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
	for (size_t i = 0; i < BOUNDS; i++) {
		sum += h->buckets[i];
		fprintf(f, "%s_bucket{le=\"%g\"} %ju\n", name, bounds[i], (uintmax_t)sum);
	}
	fprintf(f, "%s_bucket{le=\"+Inf\"} %ju\n%s_sum %.6f\n%s_count %ju\n", name,
	        (uintmax_t)h->count, name, h->sum, name, (uintmax_t)h->count);
}

static void print_gauge(FILE *f, const char *name, const char *help, size_t value)
{
	fprintf(f, "# HELP %s %s\n# TYPE %s gauge\n%s %zu\n", name, help, name, name, value);
}

static void print_exec(FILE *f, const char *outcome, uint64_t count)
{
	fprintf(f, "sandgate_execs_total{outcome=\"%s\"} %ju\n", outcome, (uintmax_t)count);
}

char *metrics_text(const struct metrics *m, const struct metrics_gauges *g, size_t *len)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, len);
	if (f == NULL)
		return NULL;
	fputs("# HELP sandgate_execs_total Execs started, by outcome; where the result was not "
	      "seen by why: error, detached, client_gone.\n"
	      "# TYPE sandgate_execs_total counter\n",
	      f);
	for (size_t i = 1; i < OUTCOMES; i++)
		print_exec(f, result_outcome_name(i), m->execs[i]);
	for (size_t i = 0; i < UNSEEN; i++)
		print_exec(f, unseen_names[i], m->unseen[i]);
	fputs("# HELP sandgate_http_requests_total Requests, by status (499: client left).\n"
	      "# TYPE sandgate_http_requests_total counter\n",
	      f);
	for (int i = 0; i < STATUS_MAX; i++)
		if (m->requests[i] > 0)
			fprintf(f, "sandgate_http_requests_total{status=\"%d\"} %ju\n", i,
			        (uintmax_t)m->requests[i]);
	fprintf(f,
	        "# HELP sandgate_sandboxes_created_total Sandboxes, children of forks "
	        "included, by success; what was refused is not counted.\n"
	        "# TYPE sandgate_sandboxes_created_total counter\n"
	        "sandgate_sandboxes_created_total{result=\"ready\"} %ju\n"
	        "sandgate_sandboxes_created_total{result=\"failed\"} %ju\n",
	        (uintmax_t)m->sandboxes_created, (uintmax_t)m->sandboxes_failed);
	print_histogram(f, "sandgate_exec_seconds", "From request to result.",
	                &m->exec_seconds);
	print_histogram(f, "sandgate_sandbox_create_seconds", "From request to ready.",
	                &m->create_seconds);
	print_gauge(f, "sandgate_sandboxes", "Sandboxes now.", g->sandboxes);
	print_gauge(f, "sandgate_execs_running", "Exec calls in progress.", g->calls);
	print_gauge(f, "sandgate_buffered_bytes", "Output held for replies to come.",
	            g->buffered);
	print_gauge(f, "sandgate_watchers", "Watchers of exec streams.", g->watchers);
	print_gauge(f, "sandgate_http_connections", "Open connections.", g->connections);
	print_gauge(f, "sandgate_http_requests", "Requests in progress.", g->requests);
	print_gauge(f, "sandgate_draining", "1 while this bridge drains.", g->draining);
	bool failed = ferror(f) != 0;
	if (fclose(f) != 0 || failed) {
		free(text);
		return NULL;
	}
	return text;
}
