/* The forms of gelu are x P(x), with P the normal distribution or, for
 * GELU_TANH, the logistic function of 2 u, u = sqrt(2 / pi) (x + 0.044715 x^3),
 * which is (1 + tanh u) / 2. */
#ifdef real

/* 1 / (1 + exp(-2 u)), and its factor in the derivative with respect to 2 u. */
static inline real R(logistic)(real u, real *rest)
{
    real e = R(exp)(u < 0 ? 2 * u : -2 * u), inverse = 1 / (1 + e);
    *rest = (u < 0 ? 1 : e) * inverse;
    return (u < 0 ? e : 1) * inverse;
}

MAP_BODY(relu_values)
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

MAP_BODY(leaky_relu_values)
{
    const real *x = in[0];
    real *y = out[0], slope = (real)((const double *)context)[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = x[i] > 0 ? x[i] : x[i] * slope;
}

MAP_BODY(leaky_relu_backward)
{
    const real *x = in[0], *dy = in[1];
    real *dx = out[0], slope = (real)((const double *)context)[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        dx[i] = dy[i] * (x[i] > 0 ? 1 : slope);
}

MAP_BODY(gelu_values)
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

MAP_BODY(gelu_tanh_values)
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

MAP_BODY(silu_values)
{
    const real *x = in[0];
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real rest;
        y[i] = x[i] * R(logistic)(x[i] / 2, &rest);
    }
}

MAP_BODY(silu_backward)
{
    const real *x = in[0], *dy = in[1];
    real *dx = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real rest, part = R(logistic)(x[i] / 2, &rest);
        dx[i] = dy[i] * (part + x[i] * (part * rest));
    }
}

/* With z = beta x: max(z, 0) + log(1 + exp(-|z|)), in which nothing overflows. */
MAP_BODY(softplus_values)
{
    const real *x = in[0];
    real *y = out[0], beta = (real)((const double *)context)[0], threshold = (real)((const double *)context)[1];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real z = beta * x[i], sum = (z > 0 ? z : 0) + R(log1p)(R(exp)(z < 0 ? z : -z));
        y[i] = z > threshold ? x[i] : sum / beta;
    }
}

MAP_BODY(softplus_backward)
{
    const real *x = in[0], *dy = in[1];
    real *dx = out[0], beta = (real)((const double *)context)[0], threshold = (real)((const double *)context)[1];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real rest, z = beta * x[i], part = R(logistic)(z / 2, &rest);
        dx[i] = dy[i] * (z > threshold ? 1 : part);
    }
}

/* name_values: y = value; name_backward: dx = gradient, of x (or y, as device.h says) and dy. */
#define UNARY(name, value, gradient)                                                                                             \
    MAP_BODY(name##_values)                                                                                                      \
    {                                                                                                                            \
        const real *from = in[0];                                                                                                \
        real *to = out[0];                                                                                                       \
        _Pragma("omp simd") for (int64_t i = 0; i < s.count; i++)                                                                \
        {                                                                                                                        \
            real x = from[i];                                                                                                    \
            to[i] = value;                                                                                                       \
        }                                                                                                                        \
    }                                                                                                                            \
    MAP_BODY(name##_backward)                                                                                                    \
    {                                                                                                                            \
        const real *from = in[0], *gradients = in[1];                                                                            \
        real *to = out[0];                                                                                                       \
        _Pragma("omp simd") for (int64_t i = 0; i < s.count; i++)                                                                \
        {                                                                                                                        \
            real x = from[i], dy = gradients[i];                                                                                 \
            (void)x;                                                                                                             \
            to[i] = gradient;                                                                                                    \
        }                                                                                                                        \
    }

UNARY(exp, R(exp_all)(x), dy *x)
UNARY(log, R(log)(x), dy / x)
UNARY(log1p, R(log1p)(x), dy / (1 + x))
UNARY(sqrt, R(root)(x), dy / (2 * x))
UNARY(rsqrt, 1 / R(root)(x), (real)-0.5 * dy * (x * x * x))
UNARY(abs, x<0 ? -x : x + 0, x> 0 ? dy : x < 0 ? -dy : x * 0)
UNARY(tanh, R(tanh)(x), dy *(1 - x * x))
#undef UNARY

MAP_BODY(sigmoid_values)
{
    const real *x = in[0];
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real rest;
        y[i] = R(logistic)(x[i] / 2, &rest);
    }
}

MAP_BODY(sigmoid_backward)
{
    const real *y = in[0], *dy = in[1];
    real *dx = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        dx[i] = dy[i] * ((1 - y[i]) * y[i]);
}

MAP_BODY(shift_values)
{
    const real *x = in[0];
    real *y = out[0], by = (real)((const double *)context)[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = x[i] + by;
}

MAP_BODY(shift_backward)
{
    if (out[0] != in[1])
        memmove(out[0], in[1], (size_t)s.count * sizeof(real));
}

MAP_BODY(clamp_values)
{
    const real *x = in[0];
    real *y = out[0], low = (real)((const double *)context)[0], high = (real)((const double *)context)[1];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real above = x[i] < low ? low : x[i];
        y[i] = above > high ? high : above;
    }
}

MAP_BODY(clamp_backward)
{
    const real *x = in[0], *dy = in[1];
    real *dx = out[0], low = (real)((const double *)context)[0], high = (real)((const double *)context)[1];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real gradient = dy[i];
        dx[i] = ((x[i] >= low) & (x[i] <= high)) ? gradient : 0;
    }
}

/* y = x^power, as torch.pow: some powers are products, quotients and roots. */
static void R(raise)(int64_t n, const real *x, real power, real *y)
{
#define RAISE(value)                                                                                                             \
    do {                                                                                                                         \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = value;                                                        \
        return;                                                                                                                  \
    } while (0)
    if (power == 0)
        RAISE(1);
    if (power == 1)
        RAISE(x[i]);
    if (power == 2)
        RAISE(x[i] * x[i]);
    if (power == 3)
        RAISE(x[i] * x[i] * x[i]);
    if (power == -1)
        RAISE(1 / x[i]);
    if (power == (real)0.5)
        RAISE(R(root)(x[i]));
    if (power == (real)-0.5)
        RAISE(1 / R(root)(x[i]));
    RAISE(R(power)(x[i], power));
#undef RAISE
}

MAP_BODY(power_values)
{
    R(raise)(s.count, in[0], (real)((const double *)context)[0], out[0]);
}

MAP_BODY(power_backward)
{
    const real *dy = in[1];
    real *dx = out[0], power = (real)((const double *)context)[0], raised[SPAN];
    R(raise)(s.count, in[0], power - 1, raised);
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        real gradient = dy[i] * (power * raised[i]);
        dx[i] = power == 0 ? 0 : gradient;
    }
}

#else

#include "device/cpu/kernels/map.h"
#include "device/cpu/kernels/vector_math.h"

#define ROOT 0.79788456080286535588 /* sqrt(2 / pi) */
#define CUBIC 0.044715

#define root_float sqrtf
#define root_double sqrt
#define power_float powf
#define power_double pow

#include <string.h>

#define SELF "unary.c"
#include "device/cpu/kernels/real.h"

#define UNARIES(X)                                                                                                               \
    X(RELU, relu)                                                                                                                \
    X(LEAKY_RELU, leaky_relu)                                                                                                    \
    X(GELU, gelu)                                                                                                                \
    X(GELU_TANH, gelu_tanh)                                                                                                      \
    X(SILU, silu)                                                                                                                \
    X(SOFTPLUS, softplus)                                                                                                        \
    X(EXP, exp)                                                                                                                  \
    X(LOG, log)                                                                                                                  \
    X(LOG1P, log1p)                                                                                                              \
    X(SQRT, sqrt)                                                                                                                \
    X(RSQRT, rsqrt)                                                                                                              \
    X(ABS, abs)                                                                                                                  \
    X(TANH, tanh)                                                                                                                \
    X(SIGMOID, sigmoid)                                                                                                          \
    X(SHIFT, shift)                                                                                                              \
    X(CLAMP, clamp)                                                                                                              \
    X(POWER, power)

shard_status KERNEL(unary)(shard_device *device, shard_unary unary, const double *scalars, int64_t n, const void *x, void *y,
                           shard_dtype dtype)
{
    (void)device;
    map job = {.dtype = dtype, .n = n, .in = {x}, .out = {y}, .context = scalars};
    switch (unary) {
#define RUN(kind, body)                                                                                                          \
    case SHARD_##kind:                                                                                                           \
        MAP(&job, body##_values);                                                                                                \
        break;
        UNARIES(RUN)
#undef RUN
    }
    return SHARD_OK;
}

shard_status KERNEL(unary_backward)(shard_device *device, shard_unary unary, const double *scalars, int64_t n, const void *x,
                                    const void *dy, void *dx, shard_dtype dtype)
{
    (void)device;
    map job = {.dtype = dtype, .n = n, .in = {x, dy}, .out = {dx}, .context = scalars};
    switch (unary) {
#define RUN(kind, body)                                                                                                          \
    case SHARD_##kind:                                                                                                           \
        MAP(&job, body##_backward);                                                                                              \
        break;
        UNARIES(RUN)
#undef RUN
    }
    return SHARD_OK;
}

#endif
