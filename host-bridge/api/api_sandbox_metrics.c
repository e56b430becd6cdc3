/* What a sandbox uses: what its agent tells of the guest, and what its VM takes of this host.
 * To ask is no activity: it keeps nothing from expiring, and wakes nothing. */
#include <stdlib.h>
#include <string.h>

#include "host-bridge/api/api.h"
#include "host-bridge/api/dial.h"
#include "host-bridge/api/handlers.h"
#include "host-bridge/exec/result_json.h"
#include "host-bridge/vm/vm_usage.h"

struct gauge {
	struct api_request *r;
	enum sandbox_status status;
	struct dial dial;
	ev_timer late; /* for the agent */
	struct vm_usage_call *usage_call;
	struct vm_usage usage;
	Sandgate__MetricsReply guest; /* its numbers */
	bool has_guest, counts_cpu;   /* of execs: its agent */
	const char *guest_error;      /* why not, though it runs; or NULL */
};

static struct api_request *gauge_free(struct gauge *g)
{
	struct api_request *r = g->r;
	ev_timer_stop(r->api->loop, &g->late);
	dial_close(&g->dial);
	vm_usage_cancel(g->usage_call);
	r->on_gone = NULL;
	free(g);
	return r;
}

static void on_gone(struct api_request *r)
{
	gauge_free(r->owner);
}

/* ---- the reply ---- */

static void put_known(struct json_out *out, const char *key, bool known, uint64_t n)
{
	if (known)
		json_out_int(out, key, (int64_t)n);
	else
		json_out_null(out, key);
}

/* An agent says 0 of what it cannot read: neither it nor its machine is without memory. */
static void put_guest(struct json_out *out, const struct gauge *g)
{
	const Sandgate__MetricsReply *m = &g->guest;
	bool memory = m->memory_total_bytes > 0;
	json_out_object(out, "guest");
	put_known(out, "memory_total_bytes", memory, m->memory_total_bytes);
	put_known(out, "memory_available_bytes", memory, m->memory_available_bytes);
	put_known(out, "execs_cpu_ms", g->counts_cpu, m->cpu_usage_us / 1000);
	json_out_int(out, "execs_running", m->execs_running);
	json_out_int(out, "execs_retained", m->execs_retained);
	json_out_int(out, "retained_output_bytes", (int64_t)m->retained_bytes);
	json_out_int(out, "exec_cgroups", m->leaves);
	json_out_int(out, "agent_sessions", m->sessions);
	put_known(out, "agent_resident_bytes", m->agent_rss_bytes > 0, m->agent_rss_bytes);
	put_known(out, "agent_open_files", m->agent_fds > 0, m->agent_fds);
	json_out_end(out, '}');
}

static void put_part(struct json_out *out, const char *key, const struct vm_usage_part *p)
{
	if (!p->known) {
		json_out_null(out, key);
		return;
	}
	json_out_object(out, key);
	put_known(out, "resident_bytes", p->has_resident, p->resident_bytes);
	put_known(out, "proportional_bytes", p->has_proportional, p->proportional_bytes);
	json_out_int(out, "cpu_user_ms", (int64_t)p->cpu_user_ms);
	json_out_int(out, "cpu_system_ms", (int64_t)p->cpu_system_ms);
	json_out_end(out, '}');
}

static void put_host(struct json_out *out, const struct vm_usage *u)
{
	if (!u->vmm.known && !u->device.known) {
		json_out_null(out, "host");
		return;
	}
	json_out_object(out, "host");
	put_part(out, "vmm", &u->vmm);
	put_part(out, "device", &u->device);
	json_out_end(out, '}');
}

/* Once both have answered. */
static void gauge_step(struct gauge *g)
{
	struct json_out out = {0};
	size_t len;
	if (g->dial.link != NULL || g->usage_call != NULL)
		return;
	json_out_object(&out, NULL);
	json_out_string(&out, "sandbox_id", g->r->sandbox_id);
	json_out_string(&out, "status", sandbox_status_name(g->status));
	if (g->has_guest)
		put_guest(&out, g);
	else
		json_out_null(&out, "guest");
	json_out_string(&out, "guest_error", g->guest_error);
	put_host(&out, &g->usage);
	json_out_end(&out, '}');
	char *body = json_out_take(&out, &len);
	api_reply_take(gauge_free(g), 200, "application/json", body, len);
}

/* ---- the answers ---- */

static void on_usage(const struct vm_usage *u, void *arg)
{
	struct gauge *g = arg;
	g->usage_call = NULL;
	g->usage = *u;
	gauge_step(g);
}

static void no_guest(struct gauge *g, enum err_code why)
{
	g->guest_error = err_name(why);
	gauge_step(g);
}

static void on_frame(struct dial *d, const Sandgate__GuestFrame *f)
{
	struct gauge *g = (struct gauge *)((char *)d - offsetof(struct gauge, dial));
	dial_close(d);
	if (f->body_case != SANDGATE__GUEST_FRAME__BODY_METRICS) {
		no_guest(g, ERR_PROTOCOL);
		return;
	}
	g->has_guest = true;
	g->guest = *f->metrics;
	gauge_step(g);
}

static void on_end(struct dial *d, const struct dial_end *end)
{
	no_guest((struct gauge *)((char *)d - offsetof(struct gauge, dial)), end->err.code);
}

static void on_late(struct ev_loop *loop, ev_timer *t, int revents)
{
	struct gauge *g = t->data;
	(void)loop;
	(void)revents;
	if (g->dial.link == NULL)
		return;
	dial_close(&g->dial);
	no_guest(g, ERR_TIMEOUT);
}

static void ask_guest(struct gauge *g, struct sandbox *s)
{
	static const struct dial_handlers handlers = {.on_frame = on_frame, .on_end = on_end};
	Sandgate__Open open = SANDGATE__OPEN__INIT;
	Sandgate__Metrics metrics = SANDGATE__METRICS__INIT;
	struct err e = {0};
	open.op_case = SANDGATE__OPEN__OP_METRICS;
	open.metrics = &metrics;
	if (dial_open(&g->dial, s, &open, DIAL_ASKS, &handlers, &e) < 0) {
		g->guest_error = err_name(e.code);
		return;
	}
	dial_yield(&g->dial);
	ev_timer_start(g->r->api->loop, &g->late);
}

void api_sandbox_metrics(struct api_request *r, char *data, size_t len)
{
	struct err e = {0};
	struct sandbox *s = api_sandbox(r);
	struct gauge *g = s != NULL ? calloc(1, sizeof(*g)) : NULL;
	(void)data;
	(void)len;
	if (g == NULL) {
		if (s != NULL) {
			err_set(&e, ERR_CAPACITY, "out of memory");
			api_fail(r, &e, NULL);
		}
		return;
	}
	g->r = r;
	g->status = sandbox_status(s);
	g->counts_cpu = sandbox_agent_has(s, "cgroup2");
	ev_timer_init(&g->late, on_late, METRICS_ANSWER_S, 0.);
	g->late.data = g;
	r->owner = g;
	r->on_gone = on_gone;
	g->usage_call = sandbox_usage(s, on_usage, g, &e);
	if (g->status == SANDBOX_RUNNING)
		ask_guest(g, s);
	gauge_step(g);
}
