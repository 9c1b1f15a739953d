/*
 * Stochastic rounding to the 16-bit floating types: a number becomes one of its two neighbours, the upper one with the
 * probability of its distance from the lower one, so that the mean of many roundings is the number. 16 random bits decide.
 * As torchao's stochastic rounding to bfloat16.
 *
 * The bits depend on a key, the step, which array of the step is written, and the element's index in the whole parameter,
 * so that they do not depend on how the parameter is divided.
 */
#ifndef SHARD_BASE_ROUNDING_H
#define SHARD_BASE_ROUNDING_H

#include "base/random.h"

#include <math.h>
#include <stdbool.h>

/* The draw of an array in a step: 0, the parameter; 1, 2, 3, its states. */
SHARD_KERNEL shard_draw shard_rounding_draw(uint64_t key, int64_t step, int array)
{
    shard_draw draw = {key, (uint64_t)step * 4 + (uint64_t)array, NULL};
    return draw;
}

/* Eight blocks have the bits of 64 elements: the blocks' first two words those of the first 32 elements, their other words
 * those of the others. So vectors of blocks are vectors of bits, and four elements from a multiple of 4 on have one block. */
SHARD_KERNEL uint64_t shard_rounding_block(uint64_t index)
{
    return index / 64 * 8 + index % 32 / 4;
}

/* Seven rounds are the fewest with which Philox4x32 passes all tests of its authors (Salmon et al. 2011). */
#define SHARD_ROUNDING_ROUNDS 7

/* The block with the bits of element `index`. */
SHARD_KERNEL shard_philox shard_rounding_words(shard_draw draw, uint64_t index)
{
    return shard_philox_rounds(draw, shard_rounding_block(index), SHARD_ROUNDING_ROUNDS);
}

/* The 16 bits of element `index` in its block. */
SHARD_KERNEL uint32_t shard_rounding_bits(const shard_philox *block, uint64_t index)
{
    uint32_t first = index & 32 ? block->word[2] : block->word[0], second = index & 32 ? block->word[3] : block->word[1];
    return (index & 2 ? second : first) >> (16 * (index & 1)) & 0xffffu;
}

/* x rounded to bfloat16. Infinities and NaN stay. */
SHARD_KERNEL float shard_round_to_bfloat16(float x, uint32_t bits)
{
    union {
        float value;
        uint32_t bits;
    } y = {x};
    uint32_t rounded = (y.bits + bits) & 0xffff0000u;
    y.bits = (y.bits & 0x7f800000u) == 0x7f800000u ? y.bits : rounded;
    return y.value;
}

/* x rounded to float16; beyond its largest number this is not representable, and is rounded to infinity or that number.
 * Infinities and NaN stay. Below 2^-14 float16 has multiples of 2^-24: probabilities are multiples of 2^-16 there. */
SHARD_KERNEL float shard_round_to_float16(float x, uint32_t bits)
{
    union {
        float value;
        uint32_t bits;
    } y = {x};
    uint32_t exponent = y.bits & 0x7f800000u, sign = y.bits & 0x80000000u, rounded = (y.bits + (bits >> 3)) & 0xffffe000u;
    union {
        uint32_t bits;
        float value;
    } size = {exponent < 0x38800000u ? y.bits & 0x7fffffffu : 0}, small;
    small.value = (float)((int32_t)((uint32_t)(int32_t)(size.value * 0x1p40f) + bits) >> 16) * 0x1p-24f;
    y.bits = exponent == 0x7f800000u ? y.bits : exponent < 0x38800000u ? small.bits | sign : rounded;
    return y.value;
}

/* A compensation is stored times this factor. That of a float16 value, at most half a unit of its last place, then is as large as
 * the value: as it is, below 2^-14 float16 would have few of its digits, and of a value below 2^-13 none. */
SHARD_KERNEL float shard_rounding_unit(bool bfloat16)
{
    return bfloat16 ? 1.0f : 0x1p11f;
}

/* The compensation that is stored where x was rounded to the 16-bit value; 0 of an infinity. */
SHARD_KERNEL float shard_rounding_lost(bool bfloat16, float x, float value)
{
    float lost = x - value;
    return fabsf(lost) <= 0x1p127f ? lost * shard_rounding_unit(bfloat16) : 0.0f;
}

/* A value's compensation as it counts, of the stored one. Rounding takes at most 2^-11 of a float16 value, 2^-8 of a
 * bfloat16 one; more is of another value, which was overwritten between two steps, and counts as 0. Below 2^-14 float16 has units
 * of 2^-24. */
SHARD_KERNEL float shard_rounding_rest(bool bfloat16, float value, float stored)
{
    float size = fabsf(value), rest = stored / shard_rounding_unit(bfloat16);
    float most = bfloat16 ? 0x1p-8f * size : 0x1p-11f * (size < 0x1p-14f ? 0x1p-14f : size);
    return fabsf(rest) <= most ? rest : 0.0f;
}

#endif
