/* FNV-1a: hashes that show whether ranks have the same arguments, and hashes of names. Each function continues from
 * `hash`; the first one starts from SHARD_HASH_START. */
#ifndef SHARD_BASE_HASH_H
#define SHARD_BASE_HASH_H

#include <stdint.h>
#include <string.h>

#ifndef SHARD_KERNEL
#define SHARD_KERNEL static inline
#endif

#define SHARD_HASH_START 0xcbf29ce484222325u

/* Adds a byte, as FNV-1a defines it, or a whole word at once. */
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

/* The finalizer of SplitMix64: near numbers become numbers that are far from each other. */
SHARD_KERNEL uint64_t shard_hash_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The hash of one element of an array, by splitmix64. The sum of these is a hash of the array and does not depend on
 * the order of the additions. */
SHARD_KERNEL uint64_t shard_hash_element(int64_t i, int64_t value)
{
    return shard_hash_mix((uint64_t)value ^ ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u);
}

#endif
