#include "text.h"

#include "base/printable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *shown(const char *text)
{
    enum { BUFFERS = 4 };
    static char *buffers[BUFFERS];
    static unsigned turn;
    char **buffer = &buffers[turn++ % BUFFERS];
    size_t bytes = 4 * strlen(text) + 1;
    char *grown = realloc(*buffer, bytes);
    if (!grown)
        return shard_quoted(text);
    *buffer = grown;
    return shard_printable(grown, bytes, text);
}

const char *dtype_text(const shard_entry *entry)
{
    shard_entry same = {.dtype = entry->dtype};
    const char *name = shard_entry_type_name(entry);
    return strcmp(name, shard_entry_type_name(&same)) == 0 ? shard_dtype_name(entry->dtype) : name;
}

const char *entry_shape_text(const shard_entry *entry)
{
    return entry->shape.ndim == 0 && entry->refusal && strstr(entry->refusal, "dimensions") ? "[...]"
                                                                                            : shard_shape_text(&entry->shape);
}
