/*
 * Base64 of RFC 4648 section 4, with padding. Pure.
 */
#ifndef SANDGATE_BASE64_H
#define SANDGATE_BASE64_H

#include <stddef.h>

/* Characters that `len` bytes become. */
#define BASE64_LEN(len) (((len) + 2) / 3 * 4)

/* Write exactly BASE64_LEN(len) characters, no NUL. */
void base64_encode(char *out, const void *data, size_t len);

#endif
