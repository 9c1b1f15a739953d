/* Conversions of the 16-bit floating types, rounding to nearest even. */
#ifndef SHARD_BASE_DTYPE_H
#define SHARD_BASE_DTYPE_H

#include <shard/base.h>

#include <stdbool.h>
#include <string.h>

static inline bool shard_dtype_is_half(shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 || dtype == SHARD_FLOAT16;
}

static inline uint32_t shard_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float shard_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float shard_bfloat16_to_float(uint16_t half)
{
    return shard_bits_float((uint32_t)half << 16);
}

static inline uint16_t shard_float_to_bfloat16(float value)
{
    uint32_t bits = shard_float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u); /* keeps a NaN a NaN */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float shard_float16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) /* infinity, NaN */
        return shard_bits_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x400u)
        return shard_bits_float(sign | ((rest << 13) + 0x38000000u));
    float subnormal = (float)rest * 0x1p-24f;
    return shard_bits_float(sign | shard_float_bits(subnormal));
}

static inline uint16_t shard_float_to_float16(float value)
{
    uint32_t bits = shard_float_bits(value), sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (bits >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) { /* subnormal: the addition rounds at 2^-24 */
        float shifted = shard_bits_float(bits) + 0.5f;
        return (uint16_t)(sign | (shard_float_bits(shifted) - 0x3f000000u));
    }
    uint32_t odd = bits >> 13 & 1u;
    return (uint16_t)(sign | ((bits - 0x38000000u + 0xfffu + odd) >> 13));
}

#endif
