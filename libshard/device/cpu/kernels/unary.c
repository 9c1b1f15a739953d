/* The forms of gelu are x P(x), with P the normal distribution or, for
 * GELU_TANH, the logistic function of 2 u, u = sqrt(2 / pi) (x + 0.044715 x^3),
 * which is (1 + tanh u) / 2. */
#ifdef real

/* 1 / (1 + exp(-2 u)), and what it is multiplied by for the derivative by 2 u. */
static inline real R(logistic)(real u, real *rest)
{
    real e = R(exp)(u < 0 ? 2 * u : -2 * u), inverse = 1 / (1 + e);
    *rest = (u < 0 ? 1 : e) * inverse;
    return (u < 0 ? e : 1) * inverse;
}

MAP_BODY(relu)
{
    const real *x = in[0];
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = 0 > x[i] ? 0 : x[i];
}

MAP_BODY(relu_backward)
{
    const real *x = in[0], *dy = in[1];
    real *dx = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        dx[i] = dy[i];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        dx[i] = x[i] <= 0 ? 0 : dx[i];
}

MAP_BODY(gelu)
{
    const real *x = in[0];
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real density;
        y[i] = x[i] * R(normal)(x[i], &density);
    }
}

MAP_BODY(gelu_backward)
{
    const real *x = in[0], *dy = in[1];
    real *dx = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real density, below = R(normal)(x[i], &density);
        dx[i] = dy[i] * (below + x[i] * density);
    }
}

MAP_BODY(gelu_tanh)
{
    const real *x = in[0];
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real rest, u = (real)ROOT * x[i] * (1 + (real)CUBIC * x[i] * x[i]);
        y[i] = x[i] * R(logistic)(u, &rest);
    }
}

MAP_BODY(gelu_tanh_backward)
{
    const real *x = in[0], *dy = in[1];
    real *dx = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        /* Beyond 30 the second term is 0, which its factors' overflow must not hide. */
        real v = x[i] > 30 ? 30 : x[i] < -30 ? -30 : x[i];
        real rest, square = (real)CUBIC * v * v, part = R(logistic)((real)ROOT * v * (1 + square), &rest);
        dx[i] = dy[i] * (part + 2 * (real)ROOT * v * (1 + 3 * square) * (part * rest));
    }
}

#else

#include "device/cpu/kernels/map.h"
#include "device/cpu/kernels/vector_math.h"

#define ROOT 0.79788456080286535588 /* sqrt(2 / pi) */
#define CUBIC 0.044715

#define SELF "unary.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(unary)(shard_device *device, shard_unary unary, int64_t n, const void *x, void *y, shard_dtype dtype)
{
    (void)device;
    map job = {.dtype = dtype, .n = n, .in = {x}, .out = {y}};
    switch (unary) {
    case SHARD_RELU:
        MAP(&job, relu);
        break;
    case SHARD_GELU:
        MAP(&job, gelu);
        break;
    case SHARD_GELU_TANH:
        MAP(&job, gelu_tanh);
        break;
    }
    return SHARD_OK;
}

shard_status KERNEL(unary_backward)(shard_device *device, shard_unary unary, int64_t n, const void *x, const void *dy, void *dx,
                                    shard_dtype dtype)
{
    (void)device;
    map job = {.dtype = dtype, .n = n, .in = {x, dy}, .out = {dx}};
    switch (unary) {
    case SHARD_RELU:
        MAP(&job, relu_backward);
        break;
    case SHARD_GELU:
        MAP(&job, gelu_backward);
        break;
    case SHARD_GELU_TANH:
        MAP(&job, gelu_tanh_backward);
        break;
    }
    return SHARD_OK;
}

#endif
