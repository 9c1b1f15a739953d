#ifndef SHARD_BASE_PRINTABLE_H
#define SHARD_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* As shard_printable, of a text into at least one byte; false: a part of the text did not fit. */
bool shard_printable_cut(char *to, size_t bytes, const char *text);

#endif
