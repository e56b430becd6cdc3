/*
 * An ExecResult as the reply to a request. Escaped, its output may be six times as long as it
 * was: a long one is encoded piece by piece as the client reads, so that the bridge holds the
 * raw bytes alone and no reply holds up the loop.
 */
#ifndef SANDGATE_BULK_REPLY_H
#define SANDGATE_BULK_REPLY_H

#include "host-bridge/api/api.h"
#include "host-bridge/api/call_buffer.h"
#include "host-bridge/exec/result_json.h"

/* Ends the request, now or when all is written. What the streams hold is taken over, unless
 * memory fails. */
void bulk_reply(struct api_request *r, const Sandgate__Result *result,
                struct call_buffer streams[2], bool base64);

#endif
