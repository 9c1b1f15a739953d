/* Allocations of structures and lists (base/memory.h) that all fail. */
#ifndef TESTS_SUPPORT_NO_MEMORY_H
#define TESTS_SUPPORT_NO_MEMORY_H

#include "base/memory.h"

#include <stddef.h>

static inline void *no_calloc(size_t count, size_t size)
{
    (void)count, (void)size;
    return NULL;
}

static inline void *no_realloc(void *memory, size_t bytes)
{
    (void)memory, (void)bytes;
    return NULL;
}

static const shard_memory_calls no_memory_calls = {no_calloc, no_realloc};

#endif
