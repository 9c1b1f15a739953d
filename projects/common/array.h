/* Arrays that grow. */
#ifndef COMMON_ARRAY_H
#define COMMON_ARRAY_H

#include <shard/base.h>

/* Grows an array, the pointer at `array`, to at least `wanted` elements of `size` bytes; *room, its capacity, doubles. Errors:
 * MEMORY.
 */
shard_status array_grow(void *array, int64_t *room, int64_t wanted, size_t size);

#endif
