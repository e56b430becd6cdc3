/*
 * UTF-8 as a decoder sees it (Unicode 15, section 3.9): which bytes are a character, which
 * are a broken one, and where a piece of a stream cuts one in two. Pure.
 */
#ifndef SANDGATE_UTF8_H
#define SANDGATE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* The length of the character at `s` (`len` > 0 bytes are there). With `*valid` false it is
 * the length of the longest broken start of one, which stands for one U+FFFD; `*cut` then
 * tells whether more bytes could have made it valid. */
size_t utf8_char(const char *s, size_t len, bool *valid, bool *cut);

/* How many bytes at the end of a buffer (0 to 3) are the start of an incomplete character:
 * hold them back until the rest has come. Broken bytes are not held back. */
size_t utf8_split(const char *s, size_t len);

#endif
