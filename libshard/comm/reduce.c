/*
 * Reductions of several arrays. Works through blocks that stay in the first
 * cache: a block's accumulators are complete before its results are written,
 * so the output may be one of the inputs.
 */
#include "comm/reduce.h"

#include "base/dtype.h"

#define BLOCK 2048

#define SAME(value) (value)

/* One reduction over parts of type `element`, accumulated as `wide`. */
#define REDUCE(name, element, wide, widen, narrow, combine)                                             \
    static void name(void *out, const void *const *parts, int number, int64_t count)           \
    {                                                                                                   \
        wide sum[BLOCK];                                                                                \
        for (int64_t start = 0; start < count; start += BLOCK) {                                        \
            int64_t length = count - start < BLOCK ? count - start : BLOCK;                             \
            const element *first = (const element *)parts[0] + start;                                   \
            for (int64_t i = 0; i < length; i++)                                                        \
                sum[i] = widen(first[i]);                                                               \
            for (int part = 1; part < number; part++) {                                                 \
                const element *next = (const element *)parts[part] + start;                             \
                for (int64_t i = 0; i < length; i++) {                                                  \
                    wide value = widen(next[i]);                                                        \
                    sum[i] = combine(sum[i], value);                                                    \
                }                                                                                       \
            }                                                                                           \
            element *result = (element *)out + start;                                                   \
            for (int64_t i = 0; i < length; i++)                                                        \
                result[i] = (element)narrow(sum[i]);                                                    \
        }                                                                                               \
    }

#define ADD(a, b) ((a) + (b))
#define MAX(a, b) ((b) > (a) ? (b) : (a))
#define MIN(a, b) ((b) < (a) ? (b) : (a))

#define REDUCE_ALL(type, element, wide, widen, narrow)                \
    REDUCE(sum_##type, element, wide, widen, narrow, ADD)             \
    REDUCE(max_##type, element, wide, widen, narrow, MAX)             \
    REDUCE(min_##type, element, wide, widen, narrow, MIN)

REDUCE_ALL(float32, float, float, SAME, SAME)
REDUCE_ALL(float64, double, double, SAME, SAME)
REDUCE_ALL(bfloat16, uint16_t, float, shard_bfloat16_to_float, shard_float_to_bfloat16)
REDUCE_ALL(float16, uint16_t, float, shard_float16_to_float, shard_float_to_float16)
REDUCE(sum_int64, uint64_t, uint64_t, SAME, SAME, ADD)
REDUCE(max_int64, int64_t, int64_t, SAME, SAME, MAX)
REDUCE(min_int64, int64_t, int64_t, SAME, SAME, MIN)
REDUCE(sum_int32, uint32_t, uint32_t, SAME, SAME, ADD)
REDUCE(max_int32, int32_t, int32_t, SAME, SAME, MAX)
REDUCE(min_int32, int32_t, int32_t, SAME, SAME, MIN)
REDUCE_ALL(uint8, uint8_t, uint32_t, SAME, SAME)

#define ROW(type) {[SHARD_SUM] = sum_##type, [SHARD_MAX] = max_##type, [SHARD_MIN] = min_##type}

typedef void reduction(void *, const void *const *, int, int64_t);

static reduction *const reductions[SHARD_DTYPES][3] = {
    [SHARD_FLOAT32] = ROW(float32), [SHARD_FLOAT64] = ROW(float64), [SHARD_BFLOAT16] = ROW(bfloat16),
    [SHARD_FLOAT16] = ROW(float16), [SHARD_INT64] = ROW(int64),     [SHARD_INT32] = ROW(int32),
    [SHARD_UINT8] = ROW(uint8),
};

void shard_reduce_elements(void *out, const void *const *parts, int number, int64_t count, shard_dtype dtype, shard_reduce_op op)
{
    reductions[dtype][op](out, parts, number, count);
}
