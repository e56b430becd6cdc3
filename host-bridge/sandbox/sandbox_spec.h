/*
 * What a sandbox is asked to be. Filled in by the API's handler from a request, kept (as a
 * deep copy) by the sandbox, written to the registry.
 */
#ifndef SANDGATE_SANDBOX_SPEC_H
#define SANDGATE_SANDBOX_SPEC_H

#include <jansson.h>
#include <stdbool.h>

#include "host-bridge/link/transport.h"
#include "host-bridge/sandbox/image.h"

enum sandbox_status {
	SANDBOX_CREATING,
	SANDBOX_RUNNING,
	SANDBOX_PAUSED,
	SANDBOX_HIBERNATED,
	SANDBOX_FAILED,
	SANDBOX_DELETED
};

struct sandbox_spec {
	char template[64];
	char snapshot[128]; /* the id of what it starts from; "" for the template itself */
	char workspace[64];
	char idempotency_key[256];                /* "" for none */
	char request_digest[65];                  /* hex, of the create's body */
	double ttl_seconds, max_lifetime_seconds; /* 0: none */
	unsigned vcpus, memory_mib, disk_mib;     /* 0: the template's */
	char image[IMAGE_KEY_MAX]; /* the key of its root image; "" for none, or not yet */
	json_t *metadata;          /* object, owned by the spec's owner */
	json_t *exec_defaults;     /* object or NULL */
	bool persistent;           /* idle, it hibernates where it can, and is not deleted */
	bool attach;
	struct endpoint endpoint; /* with attach */
	bool tentative; /* a later bridge deletes it, unless sandbox_confirm was called */
};

#endif
