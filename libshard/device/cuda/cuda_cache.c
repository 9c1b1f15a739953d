#include "device/cuda/cuda_cache.h"

#include <stddef.h>
#include <string.h>

static uint64_t hash_of(const shard_cuda_key *key)
{
    uint64_t hash = 0;
    for (int i = 0; i < SHARD_CUDA_KEY_WORDS; i++) {
        hash = (hash ^ (uint64_t)key->word[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return hash;
}

void **shard_cuda_cache_find(shard_cuda_cache *cache, const shard_cuda_key *key)
{
    shard_cuda_cached *set = cache->entry[hash_of(key) % SHARD_CUDA_CACHE_SETS], *oldest = set;
    cache->clock++;
    for (int i = 0; i < SHARD_CUDA_CACHE_WAYS; i++) {
        if (set[i].value && memcmp(&set[i].key, key, sizeof *key) == 0) {
            set[i].used = cache->clock;
            return &set[i].value;
        }
        if (set[i].used < oldest->used)
            oldest = &set[i];
    }
    if (oldest->value)
        cache->destroy(oldest->value);
    *oldest = (shard_cuda_cached){.key = *key, .used = cache->clock};
    return &oldest->value;
}

int64_t shard_cuda_alignment(const void *pointer, int64_t most)
{
    int64_t alignment = most;
    while ((uintptr_t)pointer % (uintptr_t)alignment != 0)
        alignment /= 2;
    return alignment;
}
