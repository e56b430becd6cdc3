/*
 * The body of `resumed`: how the guest of an attached sandbox goes on after its owner has saved
 * it, as the agent is told it. What is left to the agent to judge (names, counts, prefixes)
 * comes back as its refusal, with the field's name.
 */
#ifndef SANDGATE_BRACKET_BODY_H
#define SANDGATE_BRACKET_BODY_H

#include <jansson.h>

#include "host-bridge/api/api.h"
#include "host-bridge/link/transport.h"
#include "proto/sandgate.pb-c.h"

struct bracket_body {
	uint64_t generation;
	bool moves;
	struct endpoint endpoint; /* with moves */
	Sandgate__Resume resume;  /* points into the rest */

	json_t *doc;
	Sandgate__Network network;
	Sandgate__Address address[NETWORK_ADDRESSES_MAX], *addresses[NETWORK_ADDRESSES_MAX];
	ProtobufCBinaryData gateways[NETWORK_ADDRESSES_MAX],
	    name_servers[NETWORK_ADDRESSES_MAX];
	uint8_t ips[3 * NETWORK_ADDRESSES_MAX][16], mac[6];
	unsigned ip_count;
	Sandgate__EnvVar *env, **env_list;
};

/* `out` is freed by bracket_body_free, also after a failure. */
int bracket_body_parse(struct api_request *r, const char *data, size_t len,
                       struct bracket_body *out, struct err *e);
void bracket_body_free(struct bracket_body *b);

#endif
