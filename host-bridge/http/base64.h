/*
 * Base64 of RFC 4648 section 4, with padding. Decoding is strict: no white space, no other
 * alphabet, canonical padding and zero pad bits only. Pure.
 */
#ifndef SANDGATE_BASE64_H
#define SANDGATE_BASE64_H

#include <stddef.h>
#include <sys/types.h>

/* Characters that `len` bytes become; bytes that `len` characters can become at most. */
#define BASE64_LEN(len) (((len) + 2) / 3 * 4)
#define BASE64_DECODED_MAX(len) ((len) / 4 * 3)

/* Write exactly BASE64_LEN(len) characters, no NUL. */
void base64_encode(char *out, const void *data, size_t len);
/* Write at most BASE64_DECODED_MAX(len) bytes; the number written, or -1 for bad input.
 * `out` may be `text`. */
ssize_t base64_decode(void *out, const char *text, size_t len);

#endif
