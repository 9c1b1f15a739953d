/*
 * Functions that the compiler turns into vector code: for float as polynomials
 * without branches, for double libm's. Errors for float, in units of the last
 * place over all arguments (tests/test_cpu_vector_math.c):
 *   exp     1.0; results below 2^-125 are 0
 *   normal  4.3, its density 2.0
 */
#ifndef SHARD_CPU_VECTOR_MATH_H
#define SHARD_CPU_VECTOR_MATH_H

#include "base/dtype.h"

#include <math.h>

#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
#define MULTIPLY_ADD(a, b, c) __builtin_fmaf(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

/* exp(high + low) for high + low <= 88 and |low| much smaller than |high|.
 * = 2^n exp(r), |r| <= log(2) / 2, with n found by adding 1.5 * 2^23. */
static inline float exp_parts_float(float high, float low)
{
    float shifted = MULTIPLY_ADD(high + low, 0x1.715476p+0f, 0x1.8p+23f);
    float n = shifted - 0x1.8p+23f;
    float r = MULTIPLY_ADD(n, 0x1.bd0106p-13f, MULTIPLY_ADD(n, -0x1.63p-1f, high)) + low;
    float p = MULTIPLY_ADD(0x1.6a107ep-10f, r, 0x1.1245c8p-7f);
    p = MULTIPLY_ADD(p, r, 0x1.55593cp-5f);
    p = MULTIPLY_ADD(p, r, 0x1.555482p-3f);
    p = MULTIPLY_ADD(p, r, 0x1.fffffcp-2f);
    p = MULTIPLY_ADD(p * r, r, r) + 1.0f;
    float scaled = (p + p) * shard_bits_float((shard_float_bits(shifted) + 126u) << 23);
    return high < -86.6f ? 0.0f : scaled;
}

static inline float exp_float(float x)
{
    return exp_parts_float(x, 0.0f);
}

static inline double exp_parts_double(double high, double low)
{
    return exp(high + low);
}

static inline double exp_double(double x)
{
    return exp(x);
}

/* The standard normal distribution: P(X <= x), and its density at x. The tail is
 * exp(-z^2 / 2) times a smooth function of z = |x|, and z^2 is taken as the
 * exact square of z's leading bits and a rest, so that small values are as
 * accurate as large ones. */
static inline float normal_float(float x, float *density)
{
    float z = fabsf(x);
    z = z > 14.0f ? 14.0f : z;
    float leading = shard_bits_float(shard_float_bits(z) & 0xfffff000u);
    float e = exp_parts_float(-0.5f * leading * leading, -0.5f * (z - leading) * (z + leading));
    float t = (z - 3.5f) / (z + 3.5f);
    float p = MULTIPLY_ADD(0x1.1e40dp-14f, t, 0x1.e4a1c6p-14f);
    p = MULTIPLY_ADD(p, t, -0x1.0ee6fap-11f);
    p = MULTIPLY_ADD(p, t, -0x1.1ffb8cp-11f);
    p = MULTIPLY_ADD(p, t, 0x1.2108d4p-8f);
    p = MULTIPLY_ADD(p, t, -0x1.6ecc98p-8f);
    p = MULTIPLY_ADD(p, t, -0x1.82888p-7f);
    p = MULTIPLY_ADD(p, t, 0x1.035d0ap-4f);
    p = MULTIPLY_ADD(p, t, -0x1.23b05p-3f);
    p = MULTIPLY_ADD(p, t, 0x1.2b77ccp-2f);
    float tail = e * (p / MULTIPLY_ADD(0.5f, z, 1.0f));
    *density = 0.3989422804f * e;
    return x < 0 ? tail : 1.0f - tail;
}

static inline double normal_double(double x, double *density)
{
    *density = 0.39894228040143267794 * exp(-0.5 * x * x);
    return 0.5 * erfc(-0.70710678118654752440 * x);
}

#endif
