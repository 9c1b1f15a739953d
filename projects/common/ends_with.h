/* Whether a text ends with another one, as the names of a checkpoint's tensors with ".step". */
#ifndef COMMON_ENDS_WITH_H
#define COMMON_ENDS_WITH_H

#include <stdbool.h>
#include <string.h>

static inline bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

#endif
