/*
 * The mathematics of the losses, which the kernels of every device compute with: numbers of a row in double, numbers
 * of an element in float or double. A function of elements has the name name_float or name_double in C, and is
 * overloaded in C++. Exponentials and logarithms of elements are arguments: each device has its own.
 */
#ifndef SHARD_DEVICE_LOSS_MATH_H
#define SHARD_DEVICE_LOSS_MATH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifndef SHARD_KERNEL
#define SHARD_KERNEL static inline
#endif

#ifdef __cplusplus
#define SHARD_LOSS_NAME(name, real) name
#else
#define SHARD_LOSS_NAME(name, real) name##_##real
#endif

/* ---- logits ---- */

/* Logits z as they are given become x = scale * z, and then soft_cap * tanh(x / soft_cap) unless soft_cap is 0. All 0:
 * they stay as they are. */
typedef struct shard_logit_map {
    int64_t maps; /* 0: scale and soft_cap are not read */
    double scale, soft_cap;
} shard_logit_map;

/* x = soft_cap * tanh(rate * z). */
SHARD_KERNEL double shard_logit_rate(const shard_logit_map *map)
{
    return map->soft_cap > 0 ? map->scale / map->soft_cap : map->scale;
}

/* ---- softmax cross-entropy, see shard_cross_entropy_shape ---- */

/* A row's loss without its weight: b * lse - a + z_loss * lse^2, where lse = max + log_sum. Not b * lse - a: for
 * logits of a large common size that would cancel. */
SHARD_KERNEL double shard_row_loss(double a, double b, double max, double log_sum, double z_loss)
{
    double loss = b * log_sum + (b * max - a), lse = max + log_sum;
    return z_loss != 0 ? loss + z_loss * lse * lse : loss;
}

/* max + log_sum - lse, where lse is their sum in double: nearly 0, but log_sum itself where max is beyond 1e17, as in a row
 * whose classes are all masked by -1e30. 0 where lse is infinite or NaN. */
SHARD_KERNEL double shard_row_lse_error(double max, double log_sum)
{
    double lse = max + log_sum, added = lse - max, error = (max - (lse - added)) + (log_sum - added);
    return error == error ? error : 0;
}

/* The factor of softmax in the gradient of that by x: the gradient is slope * exp(x - lse) - q. */
SHARD_KERNEL double shard_row_slope(double b, double lse, double z_loss)
{
    return z_loss != 0 ? b + 2 * z_loss * lse : b;
}

/* ---- margins ---- */

/* The rules for a margin's angle that is outside [0, pi]. */
enum { SHARD_ANGLE_LINEAR, SHARD_ANGLE_CLAMP, SHARD_ANGLE_EASY, SHARD_ANGLE_COSINE };

#define SHARD_ANGLE_PI 3.14159265358979323846
#define SHARD_ANGLE_EDGE 1e-3 /* distance of clamped angles from 0 and pi; and the least sine that a slope is divided by */

/* By how much LINEAR moves c down where the angle is above pi, or up where it is below 0: as ArcFace, and at least so far
 * that there is no jump back across -1, the cosine of pi, or across 1, that of 0. */
SHARD_KERNEL double shard_margin_shift(double m1, double m2, bool above)
{
    double arcface = m2 * sin(m2), least = above ? 1 + cos((SHARD_ANGLE_PI - m2) / m1) : 1 - cos(m2 / m1);
    return arcface > least ? arcface : least;
}

/* The target's cosine c becomes cos(m1 * acos(c) + m2) - m3; the derivative by c is in *slope. A c outside [-1, 1], by
 * rounding, has the angle of the nearer end. beyond: one of the rules above. */
SHARD_KERNEL double shard_margin_cosine(double c, double m1, double m2, double m3, int64_t beyond, double *slope)
{
    *slope = 1;
    if ((m1 == 1 && m2 == 0 && beyond != SHARD_ANGLE_CLAMP) || (beyond == SHARD_ANGLE_EASY && c <= 0))
        return c - m3;
    double cosine = c > 1 ? 1 : c < -1 ? -1 : c, sine = sqrt((1 - cosine) * (1 + cosine));
    double angle = m1 * acos(cosine) + m2, edge = beyond == SHARD_ANGLE_CLAMP ? SHARD_ANGLE_EDGE : 0;
    bool above = angle > SHARD_ANGLE_PI - edge, outside = above || angle < edge;
    if (outside && beyond == SHARD_ANGLE_CLAMP) {
        *slope = 0;
        return (above ? -cos(edge) : cos(edge)) - m3;
    }
    if (outside && beyond != SHARD_ANGLE_COSINE)
        return c + (above ? -1 : 1) * shard_margin_shift(m1, m2, above) - m3;
    *slope = m1 * sin(angle) / (sine < SHARD_ANGLE_EDGE ? SHARD_ANGLE_EDGE : sine);
    return cos(angle) - m3;
}

/* ---- elements ---- */

#define SHARD_LOSS_ELEMENTS(real)                                                                                                \
    /* The derivative of a mapped logit x by z; inverse_cap: 1 / soft_cap, or 0 without one. A masked x is -inf: times 0 that    \
     * would be NaN. */                                                                                                          \
    SHARD_KERNEL real SHARD_LOSS_NAME(shard_logit_slope, real)(real x, real scale, real inverse_cap)                             \
    {                                                                                                                            \
        real t = inverse_cap == 0 ? 0 : x * inverse_cap;                                                                         \
        return scale * (1 - t * t);                                                                                              \
    }                                                                                                                            \
    /* Binary cross-entropy of the logit x with the target y, whose positive part counts `positive` times:                       \
     * (1 - y) * log(1 + exp(x)) + positive * y * log(1 + exp(-x)), where log_rest = log(1 + exp(-|x|)). Both parts are 0        \
     * where their factor is, also for an infinite x. */                                                                         \
    SHARD_KERNEL real SHARD_LOSS_NAME(shard_binary_loss, real)(real x, real y, real positive, real log_rest)                     \
    {                                                                                                                            \
        real of_zero = (x > 0 ? x : 0) + log_rest, of_one = (x < 0 ? -x : 0) + log_rest;                                         \
        real zero = y != 1 ? (1 - y) * of_zero : 0, one = y != 0 ? positive * y * of_one : 0;                                    \
        return zero + one;                                                                                                       \
    }                                                                                                                            \
    /* Its derivative by x, where exponential = exp(-|x|). */                                                                    \
    SHARD_KERNEL real SHARD_LOSS_NAME(shard_binary_slope, real)(real x, real y, real positive, real exponential)                 \
    {                                                                                                                            \
        real larger = 1 / (1 + exponential), smaller = exponential * larger;                                                     \
        real sigmoid = x < 0 ? smaller : larger, rest = x < 0 ? larger : smaller;                                                \
        return (1 - y) * sigmoid - positive * y * rest;                                                                          \
    }
#ifdef __cplusplus
extern "C++" { /* also where the includer's declarations are C's */
#endif
SHARD_LOSS_ELEMENTS(float)
SHARD_LOSS_ELEMENTS(double)
#ifdef __cplusplus
}
#endif

#endif
