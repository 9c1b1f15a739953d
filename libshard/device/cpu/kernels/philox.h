/* Blocks of Philox (base/random.h), several at a time. */
#ifndef SHARD_CPU_PHILOX_H
#define SHARD_CPU_PHILOX_H

#include "device/cpu/kernels/kernels.h"

#include "base/random.h"

#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Philox is multiplications of 32-bit words to 64 bits, for which the compiler
 * finds no good vector code: words are kept in lanes of 64 bits, whose upper
 * halves do not count. */
#if defined(__AVX512F__)
#define LANES 8
#define MULTIPLY(a, b) ((lanes)_mm512_mul_epu32((__m512i)(a), _mm512_set1_epi64(b)))
#elif defined(__AVX2__)
#define LANES 4
#define MULTIPLY(a, b) ((lanes)_mm256_mul_epu32((__m256i)(a), _mm256_set1_epi64x(b)))
#elif defined(__SSE2__)
#define LANES 2
#define MULTIPLY(a, b) ((lanes)_mm_mul_epu32((__m128i)(a), _mm_set1_epi64x(b)))
#else
#define LANES 2
#define MULTIPLY(a, b) (((a) & (lanes){UINT32_MAX, UINT32_MAX}) * (uint64_t)(b))
#endif
typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

/* The most blocks at a time, with those to a multiple of LANES. */
enum { PHILOX_BLOCKS = SPAN / 4 + LANES, PHILOX_WORDS = 4 * PHILOX_BLOCKS };

/* shard_philox_rounds of each lane's block: words 0 and 1, then 2 and 3. */
static inline void philox_lanes(shard_draw draw, lanes index, int rounds, lanes *low, lanes *high)
{
    lanes c0 = index, c1 = index >> 32, c2 = index - index + (uint32_t)draw.number, c3 = index - index + (draw.number >> 32);
    uint32_t k0 = (uint32_t)draw.seed, k1 = (uint32_t)(draw.seed >> 32);
    for (int round = 0; round < rounds; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        lanes p0 = MULTIPLY(c0, 0xD2511F53u), p1 = MULTIPLY(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c3 = p0;
    }
    *low = (c0 & UINT32_MAX) | c1 << 32;
    *high = (c2 & UINT32_MAX) | c3 << 32;
}

/* The numbers of LANES blocks from the first on. */
static inline lanes philox_indices(uint64_t first)
{
    lanes index = {0};
    for (int lane = 0; lane < LANES; lane++)
        index[lane] = first + (uint64_t)lane;
    return index;
}

/* shard_philox_block of `count` blocks from the first on, and of some more to a multiple of LANES. */
static inline void philox_blocks(shard_draw draw, uint64_t first, int64_t count, uint32_t *words)
{
    uint64_t halves[2][PHILOX_BLOCKS];
    lanes index = philox_indices(first), low, high;
    for (int64_t i = 0; i < count; i += LANES, index += LANES) {
        philox_lanes(draw, index, 10, &low, &high);
        memcpy(halves[0] + i, &low, sizeof low);
        memcpy(halves[1] + i, &high, sizeof high);
    }
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        words[4 * i] = (uint32_t)halves[0][i];
        words[4 * i + 1] = (uint32_t)(halves[0][i] >> 32);
        words[4 * i + 2] = (uint32_t)halves[1][i];
        words[4 * i + 3] = (uint32_t)(halves[1][i] >> 32);
    }
}

#endif
