/* Characters of Unicode as bytes. */
#ifndef MINGPT_UTF8_H
#define MINGPT_UTF8_H

#include <stdint.h>

/* Writes a code point to `to`, which has room for 4 bytes; returns their number. */
int utf8_write(char *to, uint32_t code);

/* The code point at `at` < end, and its bytes in *bytes; -1, and 1 byte, for malformed UTF-8. */
int64_t utf8_read(const char *at, const char *end, int *bytes);

#endif
