/* Philox4x32-10, written once for the host and (as plain C) for kernels. */
#ifndef SHARD_BASE_RANDOM_H
#define SHARD_BASE_RANDOM_H

#include <shard/base.h>

#include <math.h>

#ifndef SHARD_KERNEL
#define SHARD_KERNEL static inline
#endif

/* A draw: which random numbers, of all that a seed gives. */
typedef struct shard_draw {
    uint64_t seed;
    uint64_t number;
} shard_draw;

/* Takes the thread's next draw. */
shard_draw shard_next_draw(void);

typedef struct shard_philox {
    uint32_t word[4];
} shard_philox;

/* Four words for one block of a draw. */
SHARD_KERNEL shard_philox shard_philox_block(shard_draw draw, uint64_t block)
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)draw.number, c3 = (uint32_t)(draw.number >> 32);
    uint32_t k0 = (uint32_t)draw.seed, k1 = (uint32_t)(draw.seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    shard_philox words = {{c0, c1, c2, c3}};
    return words;
}

/* In [0, 1), 24 bits, for element `index` of the whole tensor. */
SHARD_KERNEL float shard_uniform_at(shard_draw draw, uint64_t index)
{
    shard_philox words = shard_philox_block(draw, index >> 2);
    return (float)(words.word[index & 3] >> 8) * 0x1p-24f;
}

/* Standard normal (Box and Muller), for element `index` of the whole tensor. */
SHARD_KERNEL float shard_normal_at(shard_draw draw, uint64_t index)
{
    shard_philox words = shard_philox_block(draw, index >> 2);
    uint32_t pair = (uint32_t)(index & 2);
    float radius = sqrtf(-2.0f * logf(((float)(words.word[pair] >> 8) + 0.5f) * 0x1p-24f));
    float angle = 6.28318530718f * (float)(words.word[pair + 1] >> 8) * 0x1p-24f;
    return radius * (index & 1 ? sinf(angle) : cosf(angle));
}

#endif
