#include "pick.h"

#include "base/error.h"
#include "base/printable.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LISTED = 6, LIST_BYTES = 800 };

static bool is_table(const shard_entry *entry)
{
    return !entry->refusal && shard_dtype_is_float(entry->dtype) && entry->shape.ndim == 2;
}

/* Writes names and shapes of the first tables, and returns how many there are. */
static int64_t list_tables(const shard_safetensors *header, char *text, size_t bytes, const shard_entry **last)
{
    int64_t count = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < header->count; i++) {
        const shard_entry *entry = &header->entries[i];
        if (!is_table(entry))
            continue;
        *last = entry;
        if (count++ < LISTED && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s %s", used ? ", " : "", shard_quoted(entry->name),
                                     shard_shape_text(&entry->shape));
    }
    if (count > LISTED && used < bytes)
        snprintf(text + used, bytes - used, " and %" PRId64 " more, which shard-checkpoint inspect lists", count - LISTED);
    return count;
}

static const shard_entry *fail(shard_status status, const char *path, const char *what, const char *list, int64_t count)
{
    if (count > 0)
        shard_error(status, "%s %s; its floating tensors of two dimensions are %s: choose one by --tensor", path, what, list);
    else
        shard_error(status, "%s %s, and no floating tensor of two dimensions", path, what);
    return NULL;
}

const shard_entry *pick_tensor(const shard_safetensors *header, const char *path, const char *name)
{
    char list[LIST_BYTES], what[256];
    const shard_entry *only = NULL;
    int64_t count = list_tables(header, list, sizeof list, &only);
    if (!name) {
        snprintf(what, sizeof what, "has %" PRId64 " tensors", header->count);
        return count == 1 ? only : fail(SHARD_ERROR_ARGUMENT, path, what, list, count);
    }
    const shard_entry *entry = shard_safetensors_find(header, name);
    if (entry && is_table(entry))
        return entry;
    if (!entry)
        snprintf(what, sizeof what, "has no tensor %s", shard_quoted(name));
    else if (entry->refusal)
        snprintf(what, sizeof what, "has a tensor %s that %s", shard_quoted(name), entry->refusal);
    else
        snprintf(what, sizeof what, "has %s as %s of shape %s", shard_quoted(name), shard_dtype_name(entry->dtype),
                 shard_shape_text(&entry->shape));
    return fail(entry ? SHARD_ERROR_SHAPE : SHARD_ERROR_ARGUMENT, path, what, list, count);
}
