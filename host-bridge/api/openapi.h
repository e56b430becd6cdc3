/* The OpenAPI document, as it lies in openapi.json beside this file. */
#ifndef SANDGATE_OPENAPI_H
#define SANDGATE_OPENAPI_H

#include <stddef.h>

extern const char openapi_json[];
extern const size_t openapi_json_len;

#endif
