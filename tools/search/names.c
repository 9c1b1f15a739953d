#include "names.h"

#include "lines.h"

#include "base/error.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20 }; /* of a name */

static shard_status add(row_names *n, const char *path, const char *text, size_t bytes)
{
    json_t *name = memchr(text, '\0', bytes) ? NULL : json_stringn(text, bytes);
    if (!name)
        return shard_error(SHARD_ERROR_FORMAT, "%s: line %" PRId64 " is not a name in UTF-8", path, n->count + 1);
    shard_status status = shard_grow(&n->at, &n->capacity, n->count + 1, sizeof *n->at);
    if (status != SHARD_OK)
        return json_decref(name), status;
    n->at[n->count++] = name;
    return SHARD_OK;
}

static int compare_names(const void *a, const void *b, void *context)
{
    const row_names *n = context;
    int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
    int order = strcmp(json_string_value(n->at[first]), json_string_value(n->at[second]));
    return order ? order : first < second ? -1 : first > second;
}

shard_status names_read(row_names *n, const char *path, int64_t rows)
{
    lines from;
    const char *text = NULL;
    size_t bytes;
    *n = (row_names){0};
    shard_status status = lines_open(&from, path);
    while (status == SHARD_OK && (status = lines_next(&from, MOST_BYTES, -1, &text, &bytes)) == SHARD_OK && text)
        status = add(n, path, text, bytes - (bytes > 0 && text[bytes - 1] == '\r'));
    lines_close(&from);
    SHARD_TRY(status);
    if (n->count != rows)
        return shard_error(SHARD_ERROR_SHAPE, "%s has %" PRId64 " names, and the tensor has %" PRId64 " rows", path, n->count,
                           rows);
    n->by_name = shard_calloc((size_t)rows, sizeof *n->by_name);
    for (int64_t i = 0; i < rows && n->by_name; i++)
        n->by_name[i] = i;
    if (n->by_name)
        qsort_r(n->by_name, (size_t)rows, sizeof *n->by_name, compare_names, n);
    return n->by_name ? SHARD_OK : shard_last_status();
}

void names_free(row_names *n)
{
    for (int64_t i = 0; i < n->count; i++)
        json_decref(n->at[i]);
    free(n->at);
    free(n->by_name);
    *n = (row_names){0};
}

int64_t names_find(const row_names *n, const char *name, int64_t *second)
{
    int64_t low = 0, high = n->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (strcmp(json_string_value(n->at[n->by_name[middle]]), name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < n->count && strcmp(json_string_value(n->at[n->by_name[low]]), name) == 0;
    bool again = found && low + 1 < n->count && strcmp(json_string_value(n->at[n->by_name[low + 1]]), name) == 0;
    *second = again ? n->by_name[low + 1] : -1;
    return found ? n->by_name[low] : -1;
}
