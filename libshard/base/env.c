#include "base/env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char local_rank[16];

void shard_env_provide_local_rank(int rank)
{
    snprintf(local_rank, sizeof local_rank, "%d", rank);
}

const char *shard_env_string(const char *name, const char *fallback)
{
    const char *value = getenv(name);
    if ((!value || !*value) && local_rank[0] && strcmp(name, "LOCAL_RANK") == 0)
        return local_rank;
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
