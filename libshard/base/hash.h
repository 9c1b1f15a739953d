/* FNV-1a: hashes that say whether ranks mean the same, and that spread names. Each function
 * goes on from `hash`, at first SHARD_HASH_START. */
#ifndef SHARD_BASE_HASH_H
#define SHARD_BASE_HASH_H

#include <stdint.h>
#include <string.h>

#define SHARD_HASH_START 0xcbf29ce484222325u

/* A byte, as FNV-1a is defined, or a whole word at once. */
static inline uint64_t shard_hash_word(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * 0x100000001b3u;
}

static inline uint64_t shard_hash_words(uint64_t hash, const int64_t *word, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        hash = shard_hash_word(hash, (uint64_t)word[i]);
    return hash;
}

static inline uint64_t shard_hash_bytes(uint64_t hash, const void *data, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        hash = shard_hash_word(hash, ((const unsigned char *)data)[i]);
    return hash;
}

static inline uint64_t shard_hash_text(uint64_t hash, const char *text)
{
    return shard_hash_bytes(hash, text, (int64_t)strlen(text));
}

#endif
