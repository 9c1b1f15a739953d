/* Arithmetic of sizes and counts. */
#ifndef SHARD_BASE_MATH_H
#define SHARD_BASE_MATH_H

#include <stdint.h>

static inline int64_t shard_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t shard_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* value / divisor, rounded up; value is not negative, divisor is positive. */
static inline int64_t shard_divide_up(int64_t value, int64_t divisor)
{
    return (value + divisor - 1) / divisor;
}

/* The least multiple that is not less than the value. */
static inline int64_t shard_round_up(int64_t value, int64_t multiple)
{
    return shard_divide_up(value, multiple) * multiple;
}

#endif
