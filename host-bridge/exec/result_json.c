#include "host-bridge/exec/result_json.h"

#include <ctype.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host-bridge/http/utf8.h"

/* ---- names ---- */

const char *result_outcome_name(Sandgate__Outcome outcome)
{
	switch (outcome) {
	case SANDGATE__OUTCOME__OUTCOME_EXITED:
		return "exited";
	case SANDGATE__OUTCOME__OUTCOME_SIGNALED:
		return "signaled";
	case SANDGATE__OUTCOME__OUTCOME_TIMED_OUT:
		return "timed_out";
	case SANDGATE__OUTCOME__OUTCOME_OOM_KILLED:
		return "oom_killed";
	case SANDGATE__OUTCOME__OUTCOME_CPU_LIMIT:
		return "cpu_limit";
	case SANDGATE__OUTCOME__OUTCOME_CANCELLED:
		return "cancelled";
	case SANDGATE__OUTCOME__OUTCOME_SPAWN_FAILED:
		return "spawn_failed";
	default:
		return NULL;
	}
}

static const char *reason_name(Sandgate__CancelReason reason)
{
	switch (reason) {
	case SANDGATE__CANCEL_REASON__CANCEL_CLIENT_GONE:
		return "client_gone";
	case SANDGATE__CANCEL_REASON__CANCEL_KILLED:
		return "killed";
	case SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_DELETED:
		return "sandbox_deleted";
	case SANDGATE__CANCEL_REASON__CANCEL_SANDBOX_EXPIRED:
		return "sandbox_expired";
	case SANDGATE__CANCEL_REASON__CANCEL_SHUTDOWN:
		return "shutdown";
	case SANDGATE__CANCEL_REASON__CANCEL_FORKED:
		return "forked";
	case SANDGATE__CANCEL_REASON__CANCEL_BRIDGE_LOST:
		return "bridge_lost";
	default:
		return NULL;
	}
}

static const char *scope_name(Sandgate__OomScope scope)
{
	if (scope == SANDGATE__OOM_SCOPE__OOM_EXEC)
		return "exec";
	return scope == SANDGATE__OOM_SCOPE__OOM_GUEST ? "guest" : NULL;
}

void result_signal_name(uint32_t number, char name[16])
{
	const char *abbreviation = number < 65 ? sigabbrev_np((int)number) : NULL;
	if (abbreviation != NULL)
		snprintf(name, 16, "SIG%.12s", abbreviation);
	else
		snprintf(name, 16, "SIG%" PRIu32, number);
}

uint32_t result_signal_number(const char *name)
{
	char known[16];
	for (uint32_t n = 1; n < 65; n++) {
		result_signal_name(n, known);
		bool bare = isalpha((unsigned char)name[0]) && strcmp(name, known + 3) == 0;
		if (bare || strcmp(name, known) == 0)
			return n;
	}
	return 0;
}

void result_instant_json(struct json_out *out, const char *key, uint64_t ms)
{
	time_t seconds = (time_t)(ms / 1000);
	struct tm tm;
	char stamp[48];
	if (ms == 0 || gmtime_r(&seconds, &tm) == NULL) {
		json_out_null(out, key);
		return;
	}
	size_t n = strftime(stamp, 32, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(stamp + n, sizeof(stamp) - n, ".%03uZ", (unsigned)(ms % 1000));
	json_out_string(out, key, stamp);
}

/* ---- objects ---- */

static void usage(struct json_out *out, const Sandgate__Result *r)
{
	json_out_object(out, "usage");
	json_out_int(out, "cpu_user_ms", (int64_t)(r->cpu_user_us / 1000));
	json_out_int(out, "cpu_system_ms", (int64_t)(r->cpu_system_us / 1000));
	if (r->memory_peak_bytes != NULL)
		json_out_int(out, "memory_peak_bytes", (int64_t)r->memory_peak_bytes->value);
	else
		json_out_null(out, "memory_peak_bytes");
	json_out_end(out, '}');
}

static void spawn_error(struct json_out *out, const Sandgate__SpawnError *s)
{
	char number[16];
	if (s == NULL) {
		json_out_null(out, "spawn_error");
		return;
	}
	const char *name = strerrorname_np(s->error_number);
	snprintf(number, sizeof(number), "E%" PRId32, s->error_number);
	json_out_object(out, "spawn_error");
	json_out_string(out, "stage", s->stage);
	json_out_string(out, "errno", name != NULL ? name : number);
	json_out_string(out, "message", s->message);
	json_out_end(out, '}');
}

/* What precedes the streams. */
static void front(struct json_out *out, const char *exec_id, const Sandgate__Result *r)
{
	char name[16];
	if (r->signal != 0)
		result_signal_name(r->signal, name);
	json_out_string(out, "exec_id", exec_id);
	json_out_string(out, "outcome", result_outcome_name(r->outcome));
	json_out_int(out, "exit_code", r->exit_code);
	json_out_string(out, "signal", r->signal != 0 ? name : NULL);
	json_out_string(out, "cancel_reason", reason_name(r->cancel_reason));
}

struct kept {
	bool cut_stdout, cut_stderr, lossy;
};

static void counts(struct json_out *out, const Sandgate__Result *r, const struct kept *k)
{
	json_out_int(out, "stdout_bytes", (int64_t)r->stdout_bytes);
	json_out_int(out, "stderr_bytes", (int64_t)r->stderr_bytes);
	json_out_bool(out, "stdout_truncated", k->cut_stdout);
	json_out_bool(out, "stderr_truncated", k->cut_stderr);
	json_out_bool(out, "encoding_lossy", k->lossy);
}

static void back(struct json_out *out, const Sandgate__Result *r)
{
	json_out_int(out, "duration_ms", (int64_t)r->duration_ms);
	usage(out, r);
	json_out_int(out, "oom_kills", (int64_t)r->oom_kills);
	json_out_string(out, "oom_scope", scope_name(r->oom_scope));
	json_out_int(out, "pids_limit_hits", (int64_t)r->pids_limit_hits);
	json_out_int(out, "leftover_count", r->leftover_count);
	json_out_bool(out, "cleanup_pending", r->cleanup_pending);
	spawn_error(out, r->spawn_error);
}

/* A character that the cap cut in two is left out rather than repaired. */
static void stream(struct json_out *out, const char *key, const struct result_stream *s,
                   uint64_t total, bool base64)
{
	size_t cut = s->len < total ? utf8_split(s->data, s->len) : 0;
	if (base64)
		json_out_base64(out, key, s->data, s->len);
	else
		json_out_bytes(out, key, s->data, s->len - cut);
}

static size_t leave_out(struct json_out *out, const char *key, struct result_stream *s,
                        uint64_t total, bool base64)
{
	if (s->len < total && !base64)
		s->len -= utf8_split(s->data, s->len);
	json_out_string(out, key, "");
	return out->len - strlen("\"");
}

void result_json_around(struct json_out *out, const char *exec_id, const Sandgate__Result *r,
                        struct result_stream streams[2], bool base64, struct result_gaps *gaps)
{
	const struct kept k = {streams[0].len < r->stdout_bytes,
	                       streams[1].len < r->stderr_bytes, false};
	json_out_object(out, NULL);
	front(out, exec_id, r);
	gaps->at[0] = leave_out(out, "stdout", &streams[0], r->stdout_bytes, base64);
	gaps->at[1] = leave_out(out, "stderr", &streams[1], r->stderr_bytes, base64);
	counts(out, r, &k);
	gaps->lossy = out->len - strlen("false");
	back(out, r);
	json_out_end(out, '}');
}

void result_json_summary(struct json_out *out, const char *key, const char *exec_id,
                         const Sandgate__Result *r, const bool cut[2], bool lossy)
{
	const struct kept k = {cut[0] && r->stdout_bytes > 0, cut[1] && r->stderr_bytes > 0,
	                       lossy};
	json_out_object(out, key);
	front(out, exec_id, r);
	counts(out, r, &k);
	back(out, r);
	json_out_end(out, '}');
}

void result_json_partial(struct json_out *out, const char *key, const struct result_partial *p)
{
	if (p == NULL) {
		json_out_null(out, key);
		return;
	}
	json_out_object(out, key);
	stream(out, "stdout", &p->streams[0], p->bytes[0], p->base64);
	stream(out, "stderr", &p->streams[1], p->bytes[1], p->base64);
	json_out_int(out, "stdout_bytes", (int64_t)p->bytes[0]);
	json_out_int(out, "stderr_bytes", (int64_t)p->bytes[1]);
	json_out_end(out, '}');
}

void result_json_exec(struct json_out *out, const Sandgate__ExecState *s)
{
	static const char *const phases[] = {"starting", "running", "finished"};
	json_out_object(out, NULL);
	json_out_string(out, "exec_id", s->exec_id);
	json_out_string(out, "state", phases[(unsigned)s->phase < 3 ? (unsigned)s->phase : 1]);
	json_out_bool(out, "detached", s->detached);
	result_instant_json(out, "started_at", s->started_at_ms);
	result_instant_json(out, "finished_at", s->finished_at_ms);
	result_instant_json(out, "retained_until", s->retained_until_ms);
	/* Output that was given up with a reply is as cut as that reply. */
	bool lost = s->first_sequence > 0;
	const bool cut[2] = {s->released ? s->stdout_cut : lost,
	                     s->released ? s->stderr_cut : lost};
	if (s->result != NULL)
		result_json_summary(out, "result", s->exec_id, s->result, cut, false);
	else
		json_out_null(out, "result");
	json_out_end(out, '}');
}
