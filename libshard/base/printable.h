#ifndef SHARD_BASE_PRINTABLE_H
#define SHARD_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* As shard_printable, of a text into at least one byte; false: a part of the text did not fit. */
bool shard_printable_cut(char *to, size_t bytes, const char *text);

/* "name", for messages: printable (shard_printable), cut if it is long; one of a few static buffers of the thread. */
const char *shard_quoted(const char *name);

/* The byte from which two texts are shown so that their first difference is seen: 0 if that is among the first `shown`, else
 * that of a character shortly before the difference. */
size_t shard_show_from(const char *left, const char *right, size_t shown);

#endif
