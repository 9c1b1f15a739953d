/* FNV-1a of 64 bits (Fowler, Noll, Vo), for comparing data over ranks and runs: files have these values. */
#ifndef COMMON_HASH_H
#define COMMON_HASH_H

#include <stdint.h>

#define HASH_START 0xcbf29ce484222325u

/* A byte, or a word of more bytes as one. */
static inline uint64_t hash_word(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * 0x100000001b3u;
}

static inline uint64_t hash_bytes(uint64_t hash, const char *bytes, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        hash = hash_word(hash, (unsigned char)bytes[i]);
    return hash;
}

#endif
