/*
 * The frame codec: what it says of a prefix must hold of the whole. A frame found early is
 * the frame found late, a need is never less than what was there, and a length over the
 * cap is refused from its header alone.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"
#include "proto/limits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	size_t max = FRAME_MAX_TO_HOST;

	for (size_t at = 0; at < len;) {
		struct frame whole = {0}, part = {0};
		enum frame_status status = frame_parse(data + at, len - at, max, &whole);
		for (size_t n = 0; n < len - at && n < 64; n++) {
			uint8_t *exact = malloc(n > 0 ? n : 1); /* ends where a read must end */
			memcpy(exact, data + at, n);
			enum frame_status early = frame_parse(exact, n, max, &part);
			if (early == FRAME_NEED_MORE)
				assert(part.need > n && part.need <= FRAME_HEADER + max);
			else
				assert(early == status);
			if (early == FRAME_OK)
				assert(part.consumed == whole.consumed && part.consumed <= n);
			free(exact);
		}
		if (status != FRAME_OK)
			return 0;
		assert(whole.payload + whole.payload_len <= data + len);
		at += whole.consumed;
	}
	return 0;
}
