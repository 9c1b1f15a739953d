/*
 * Included first in each file that tools/analyze looks at. An analyzer sees one file, and not the functions below, which nearly
 * every file calls: an error is never SHARD_OK and is kept for shard_last_status, and a lack of memory is an error.
 */
#if __has_include(<shard/base.h>)
#include <shard/base.h>
#include <stdlib.h>
#include <string.h>

/* The thread's error, as far as it was set in this file. */
__attribute__((unused)) static shard_status analyze_status;

static inline shard_status analyze_error(shard_status status)
{
    if (analyze_status == SHARD_OK)
        analyze_status = status;
    return analyze_status;
}

#define shard_error(status, ...) ((void)shard_error(status, __VA_ARGS__), analyze_error(status))
#define shard_last_status() analyze_status
#if __has_include("base/error.h")
#include "base/error.h"
#include "base/memory.h"
#include "comm/comm.h"

static inline void *analyze_memory(void *memory)
{
    if (!memory)
        analyze_error(SHARD_ERROR_MEMORY);
    return memory;
}

static inline shard_status analyze_result(shard_status status)
{
    return status == SHARD_OK ? SHARD_OK : analyze_error(status);
}

#define shard_null_argument(...) ((void)shard_null_argument(__VA_ARGS__), analyze_error(SHARD_ERROR_ARGUMENT))
#ifdef __clang_analyzer__
#define shard_calloc(count, size) analyze_memory(calloc((count) ? (count) : 1, size))
#else /* gcc takes memory for lost that a structure holds */
#define shard_calloc(...) analyze_memory(shard_calloc(__VA_ARGS__))
#endif
#define shard_format(...) ((char *)analyze_memory(shard_format(__VA_ARGS__)))
#define shard_strdup(text) ((char *)analyze_memory(shard_strdup(text)))
#define shard_grow(...) analyze_result(shard_grow(__VA_ARGS__))
#define shard_group_fail(group) ((void)shard_group_fail(group), analyze_error(SHARD_ERROR_INTERNAL))
#endif
#endif
