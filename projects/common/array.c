#include "array.h"

#include <inttypes.h>
#include <stdlib.h>

shard_status array_grow(void *array, int64_t *room, int64_t wanted, size_t size)
{
    if (wanted <= *room)
        return SHARD_OK;
    int64_t larger = *room < 16 ? 16 : *room;
    while (larger < wanted && larger <= INT64_MAX / 4)
        larger *= 2;
    size_t bytes;
    void *moved =
        larger < wanted || __builtin_mul_overflow((size_t)larger, size, &bytes) ? NULL : realloc(*(void **)array, bytes);
    if (!moved)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " elements of %zu bytes", wanted, size);
    *(void **)array = moved;
    *room = larger;
    return SHARD_OK;
}
