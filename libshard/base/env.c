#include "base/env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

const char *shard_env_string(const char *name, const char *fallback)
{
    const char *value = getenv(name);
    return value && *value ? value : fallback;
}

const char *shard_env_path(const char *name, const char *fallback)
{
    const char *value = secure_getenv(name);
    return value && *value ? value : fallback;
}

shard_status shard_env_integer(const char *name, int64_t fallback, int64_t low, int64_t high, int64_t *value)
{
    *value = fallback;
    const char *text = shard_env_string(name, NULL);
    if (!text)
        return SHARD_OK;
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (errno || end == text || *end || parsed < low || parsed > high)
        return shard_error(SHARD_ERROR_ARGUMENT, "environment variable %s is \"%s\", not a whole number in [%" PRId64 ", %" PRId64 "]",
                           name, text, low, high);
    *value = parsed;
    return SHARD_OK;
}
