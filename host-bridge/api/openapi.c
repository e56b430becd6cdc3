#include "host-bridge/api/openapi.h"

/* The assembler takes the file in; its path is relative to the top of the tree, where make
 * runs. The Makefile names it as this object's prerequisite. */
__asm__(".section .rodata\n"
        ".global openapi_json\n"
        "openapi_json:\n"
        ".incbin \"host-bridge/api/openapi.json\"\n"
        ".Lopenapi_end:\n"
        ".global openapi_json_len\n"
        ".balign 8\n"
        "openapi_json_len:\n"
        ".quad .Lopenapi_end - openapi_json\n"
        ".previous\n");
