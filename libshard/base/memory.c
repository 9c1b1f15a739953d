#include "base/memory.h"

#include "base/error.h"
#include "base/plain_text.h"

#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ADVICE " on the host: take a smaller batch or more ranks, or end other programs"

static const shard_memory_calls system_calls = {calloc, realloc};
const shard_memory_calls *shard_memory_calls_used = &system_calls;

void *shard_calloc(size_t count, size_t size)
{
    void *memory = shard_memory_calls_used->calloc(count ? count : 1, size ? size : 1);
    if (!memory)
        return shard_fail_null(SHARD_ERROR_MEMORY, "no memory for %zu x %zu bytes" ADVICE, count, size);
    return memory;
}

shard_status shard_grow(void *array, int64_t *capacity, int64_t count, size_t size)
{
    if (count <= *capacity)
        return SHARD_OK;
    int64_t grown = *capacity + *capacity / 2;
    if (grown < count)
        grown = count < 8 ? 8 : count;
    void **slot = array;
    void *memory = (size_t)grown > SIZE_MAX / size ? NULL : shard_memory_calls_used->realloc(*slot, (size_t)grown * size);
    if (!memory)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %lld x %zu bytes" ADVICE, (long long)grown, size);
    *slot = memory;
    *capacity = grown;
    return SHARD_OK;
}

char *shard_strdup(const char *text)
{
    return shard_format("%s", text);
}

char *shard_format(const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = shard_plain_vsnprintf(NULL, 0, format, arguments);
    char *text = length < 0 ? NULL : shard_calloc((size_t)length + 1, 1);
    if (length < 0)
        shard_error(SHARD_ERROR_ARGUMENT, "a text of more than %d bytes", INT_MAX);
    if (text)
        shard_plain_vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

bool shard_multiply(int64_t a, int64_t b, int64_t *product)
{
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, product);
}
