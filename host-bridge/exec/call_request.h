/*
 * An ExecRequest turned into the protocol's Exec message: merged with the sandbox's
 * exec_defaults, converted to the wire's units, and hashed, so that the same id with another
 * request is told apart. What a request may say is in exec_body.h. It starts nothing.
 */
#ifndef SANDGATE_CALL_REQUEST_H
#define SANDGATE_CALL_REQUEST_H

#include <jansson.h>

#include "proto/err.h"
#include "proto/limits.h"
#include "proto/sandgate.pb-c.h"

#define CALL_LIMITS 11
#define CALL_DIGEST_BYTES 32

struct call_request {
	Sandgate__Exec exec; /* points into the members below and into doc */
	char exec_id[EXEC_ID_MAX + 1];
	bool id_given;   /* by the client: repeating the request is then safe */
	bool base64;     /* output_encoding */
	bool stdin_open; /* as asked for; exec.stdin_open also says that a rest follows */
	uint64_t output_bytes;
	/* Initial input that did not fit into the request's frame. */
	const uint8_t *stdin_rest;
	size_t stdin_rest_len;

	json_t *doc, *defaults;
	uint8_t digest[CALL_DIGEST_BYTES];
	uint8_t *stdin_decoded;
	Sandgate__Limits limits;
	Sandgate__Uint64Value values[CALL_LIMITS];
	Sandgate__BoolValue oom_group;
	Sandgate__Capabilities capabilities;
	char **keep;
	Sandgate__EnvVar *env;
	Sandgate__EnvVar **env_list;
	ProtobufCBinaryData *argv;
};

/* Parse a body. `defaults` is the sandbox's exec_defaults or NULL (a reference is taken). */
struct call_request *call_request_parse(const char *data, size_t len, json_t *defaults,
                                        bool detached, struct err *e);
void call_request_free(struct call_request *q);

#endif
