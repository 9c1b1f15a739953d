/*
 * Functions that the compiler turns into vector code: for float as polynomials
 * without branches, for double libm's. Errors for float, in units of the last
 * place over all arguments (tests/test_cpu_vector_math.c):
 *   exp     1.0; results below 2^-125 are 0
 *   exp_all 1.0; for every argument
 *   log     1.0
 *   log1p   2.5
 *   tanh    3.0
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

/* exp(high + low) = 2^n exp(r), |r| <= log(2) / 2, with n found by adding 1.5 * 2^23:
 * exp(r), and that sum in *shifted. */
static inline float exp_rest_float(float high, float low, float *shifted)
{
    *shifted = MULTIPLY_ADD(high + low, 0x1.715476p+0f, 0x1.8p+23f);
    float n = *shifted - 0x1.8p+23f;
    float r = MULTIPLY_ADD(n, 0x1.bd0106p-13f, MULTIPLY_ADD(n, -0x1.63p-1f, high)) + low;
    float p = MULTIPLY_ADD(0x1.6a107ep-10f, r, 0x1.1245c8p-7f);
    p = MULTIPLY_ADD(p, r, 0x1.55593cp-5f);
    p = MULTIPLY_ADD(p, r, 0x1.555482p-3f);
    p = MULTIPLY_ADD(p, r, 0x1.fffffcp-2f);
    return MULTIPLY_ADD(p * r, r, r) + 1.0f;
}

/* exp(high + low) for high + low <= 88 and |low| much smaller than |high|. */
static inline float exp_parts_float(float high, float low)
{
    float shifted, p = exp_rest_float(high, low, &shifted);
    float scaled = (p + p) * shard_bits_float((shard_float_bits(shifted) + 126u) << 23);
    return high < -86.6f ? 0.0f : scaled;
}

static inline float exp_float(float x)
{
    return exp_parts_float(x, 0.0f);
}

/* Over all of float: 2^n in two factors, as n may be 128 or that of a subnormal number. */
static inline float exp_all_float(float x)
{
    float z = x > 90.0f ? 90.0f : x < -110.0f ? -110.0f : x;
    float shifted, p = exp_rest_float(z, 0.0f, &shifted);
    int n = (int)(shard_float_bits(shifted) - 0x4b400000u), half = n >> 1;
    return p * shard_bits_float((unsigned)(half + 127) << 23) * shard_bits_float((unsigned)(n - half + 127) << 23);
}

static inline double exp_all_double(double x)
{
    return exp(x);
}

static inline double exp_parts_double(double high, double low)
{
    return exp(high + low);
}

static inline double exp_double(double x)
{
    return exp(x);
}

/* log(x) + correction for a finite x > 0, as FreeBSD's e_logf.c: x = 2^k (1 + f) with 1 + f in
 * [sqrt(1/2), sqrt(2)), log(1 + f) by f / (2 + f). */
static inline float log_parts_float(float x, float correction)
{
    float scaled = x < 0x1p-126f ? x * 0x1p25f : x;
    unsigned bits = shard_float_bits(scaled) + (0x3f800000u - 0x3f3504f3u);
    float k = (float)((int)(bits >> 23) - 127) - (x < 0x1p-126f ? 25.0f : 0.0f);
    float f = shard_bits_float((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float s = f / (2.0f + f), z = s * s, w = z * z, half = 0.5f * f * f;
    float even = w * MULTIPLY_ADD(w, 0xf89e26.0p-26f, 0xccce13.0p-25f);
    float odd = z * MULTIPLY_ADD(w, 0x91e9ee.0p-25f, 0xaaaaaa.0p-24f);
    return s * (half + (odd + even)) + (k * 9.0580006145e-06f + correction) - half + f + k * 6.9313812256e-01f;
}

static inline float log_float(float x)
{
    float y = log_parts_float(x, 0.0f);
    y = x == INFINITY ? x : y;
    return x > 0 ? y : x == 0 ? -INFINITY : NAN;
}

static inline double log_double(double x)
{
    return log(x);
}

/* log(u), corrected for the rounding of 1 + x to u. */
static inline float log1p_float(float x)
{
    float u = 1.0f + x, lost = u >= 2.0f ? 1.0f - (u - x) : x - (u - 1.0f);
    float y = log_parts_float(u, lost / u);
    y = x == INFINITY || x == 0 ? x : y;
    return x > -1.0f ? y : x == -1.0f ? -INFINITY : NAN;
}

static inline double log1p_double(double x)
{
    return log1p(x);
}

/* As Cephes' tanhf.c: a polynomial below 0.625, 1 - 2 / (exp(2 x) + 1) above. */
static inline float tanh_float(float x)
{
    float size = fabsf(x), z = size > 20.0f ? 20.0f : size, square = x * x;
    float large = 1.0f - 2.0f / (exp_float(z + z) + 1.0f);
    float p = MULTIPLY_ADD(-5.70498872745e-3f, square, 2.06390887954e-2f);
    p = MULTIPLY_ADD(p, square, -5.37397155531e-2f);
    p = MULTIPLY_ADD(p, square, 1.33314422036e-1f);
    p = MULTIPLY_ADD(p, square, -3.33332819422e-1f);
    p = MULTIPLY_ADD(p * square, x, x);
    return size < 0.625f ? p : copysignf(large, x);
}

static inline double tanh_double(double x)
{
    return tanh(x);
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
