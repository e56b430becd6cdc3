/*
 * Any bytes as an exec's, a sandbox's or a bracket's body: parsed or refused with an error that
 * says why, and what was parsed keeps to the bounds that the guest and the reply rely on.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "host-bridge/api/api.h"
#include "host-bridge/api/bracket_body.h"
#include "host-bridge/api/sandbox_body.h"
#include "host-bridge/exec/call_request.h"
#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_exec(const char *text, size_t len, bool detached)
{
	struct err e = {0};
	struct call_request *q = call_request_parse(text, len, NULL, detached, &e);
	if (q == NULL) {
		assert(e.code != ERR_NONE && e.msg[0] != '\0');
		return;
	}
	assert((q->exec.cmd.len > 0) != (q->exec.n_argv > 0));
	assert(q->exec.cmd.len == 0 || memchr(q->exec.cmd.data, '\0', q->exec.cmd.len) == NULL);
	assert(q->exec.timeout_ms > 0 || detached);
	assert(q->exec.timeout_ms <= EXEC_TIMEOUT_MAX_S * 1000ull);
	assert(q->output_bytes <= OUTPUT_BYTES_MAX);
	assert(strlen(q->exec_id) > 0 && strlen(q->exec_id) <= EXEC_ID_MAX);
	assert(frame_size(&q->exec.base) < FRAME_MAX_TO_GUEST);
	call_request_free(q);
}

static void check_sandbox(const char *text, size_t len)
{
	struct settings settings = {0};
	struct api api = {.settings = &settings};
	struct api_request r = {.api = &api, .who = {.admin = true, .workspace = "w"}};
	struct sandbox_spec spec = {0};
	struct sandbox_change change;
	struct err e = {0};
	json_t *doc = sandbox_body_parse(&r, text, len, &spec, &e);
	if (doc == NULL)
		assert(e.code != ERR_NONE && e.msg[0] != '\0');
	else
		assert((spec.template[0] != '\0' || spec.snapshot[0] != '\0') != spec.attach);
	json_decref(doc);
	sandbox_body_change(text, len, NULL, &change, &e);
	json_decref(change.patch.metadata);
}

static void check_snapshot(const char *text, size_t len)
{
	struct snapshot_body body;
	struct err e = {0};
	if (sandbox_body_snapshot(text, len, len % 2 == 0, &body, &e) == 0)
		assert(body.count <= FORK_MAX);
	else
		assert(e.code != ERR_NONE && body.metadata == NULL);
	json_decref(body.metadata);
}

static void check_bracket(const char *text, size_t len)
{
	struct settings settings = {0};
	struct api api = {.settings = &settings};
	struct api_request r = {.api = &api, .who = {.admin = true, .workspace = "w"}};
	struct bracket_body body;
	struct err e = {0};
	if (bracket_body_parse(&r, text, len, &body, &e) == 0) {
		assert(body.generation >= 1);
		assert(body.resume.role == SANDGATE__RESUME_ROLE__RESUME_CLONE ||
		       (body.resume.network == NULL && body.resume.n_env == 0 &&
		        body.resume.hostname.len == 0));
		assert(sandgate__resume__get_packed_size(&body.resume) <= len + 1024);
	} else {
		assert(e.code != ERR_NONE && e.msg[0] != '\0');
	}
	bracket_body_free(&body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_exec((const char *)data, size, false);
	check_exec((const char *)data, size, true);
	check_sandbox((const char *)data, size);
	check_snapshot((const char *)data, size);
	check_bracket((const char *)data, size);
	return 0;
}
