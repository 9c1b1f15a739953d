/*
 * A bounded cache of the data that a vendor's library prepares once per shape for a device: descriptors, algorithms,
 * plans. The least recently used are removed.
 */
#ifndef SHARD_DEVICE_CUDA_CACHE_H
#define SHARD_DEVICE_CUDA_CACHE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHARD_CUDA_KEY_WORDS = 20, SHARD_CUDA_CACHE_SETS = 128, SHARD_CUDA_CACHE_WAYS = 8 };

/* Everything that the preparation depends on; words that are not used are 0. */
typedef struct shard_cuda_key {
    int64_t word[SHARD_CUDA_KEY_WORDS];
} shard_cuda_key;

typedef struct shard_cuda_cached {
    shard_cuda_key key;
    void *value;
    uint64_t used;
} shard_cuda_cached;

typedef struct shard_cuda_cache {
    void (*destroy)(void *value);
    uint64_t clock;
    shard_cuda_cached entry[SHARD_CUDA_CACHE_SETS][SHARD_CUDA_CACHE_WAYS];
} shard_cuda_cache;

/* The place of the key's value; NULL there if it must be made. */
void **shard_cuda_cache_find(shard_cuda_cache *, const shard_cuda_key *);

/* The largest power of two, `most` at the most, that divides the pointer (NULL: most). */
int64_t shard_cuda_alignment(const void *, int64_t most);

#ifdef __cplusplus
}
#endif

#endif
