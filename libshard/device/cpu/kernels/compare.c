/* a op b as 1 or 0, of every dtype: 16-bit types are widened to float. */
#include "device/cpu/kernels/span.h"

#define COMPARE_BY(type, name, op)                                                                                               \
    static void name##_##type(int64_t n, const void *left, const void *right, uint8_t *y)                                        \
    {                                                                                                                            \
        const type *a = left, *b = right;                                                                                        \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = a[i] op b[i];                                                 \
    }
#define COMPARE(type)                                                                                                            \
    COMPARE_BY(type, eq, ==)                                                                                                     \
    COMPARE_BY(type, ne, !=)                                                                                                     \
    COMPARE_BY(type, lt, <)                                                                                                      \
    COMPARE_BY(type, le, <=)                                                                                                     \
    COMPARE_BY(type, gt, >)                                                                                                      \
    COMPARE_BY(type, ge, >=)
COMPARE(float)
COMPARE(double)
COMPARE(int64_t)
COMPARE(int32_t)
COMPARE(uint8_t)

typedef void comparer(int64_t n, const void *a, const void *b, uint8_t *y);

#define COMPARERS(type)                                                                                                          \
    {                                                                                                                            \
        [SHARD_EQ] = eq_##type, [SHARD_NE] = ne_##type, [SHARD_LT] = lt_##type, [SHARD_LE] = le_##type, [SHARD_GT] = gt_##type,  \
        [SHARD_GE] = ge_##type                                                                                                   \
    }
static comparer *const comparers[SHARD_DTYPES][SHARD_GE + 1] = {
    [SHARD_FLOAT32] = COMPARERS(float), [SHARD_FLOAT64] = COMPARERS(double), [SHARD_BFLOAT16] = COMPARERS(float),
    [SHARD_FLOAT16] = COMPARERS(float), [SHARD_INT64] = COMPARERS(int64_t),  [SHARD_INT32] = COMPARERS(int32_t),
    [SHARD_UINT8] = COMPARERS(uint8_t),
};

/* Room for SPAN elements of any type. */
typedef union buffer {
    uint64_t words[SPAN];
    float floats[SPAN];
} buffer;

static const void *load(const shard_expansion *over, int operand, shard_dtype dtype, const void *x, int64_t start, int64_t count,
                        buffer *raw, buffer *wide)
{
    size_t size = shard_dtype_size(dtype);
    const void *from = (const char *)x + (size_t)start * size;
    if (!shard_expansion_dense(over, operand)) {
        KERNEL(gather)(over, operand, size, x, start, count, raw);
        from = raw;
    }
    if (size != 2)
        return from;
    KERNEL(widen)(dtype, count, from, wide->floats);
    return wide;
}

shard_status KERNEL(compare)(shard_device *device, shard_comparison comparison, const shard_expansion *over, const void *a,
                             const void *b, uint8_t *y, shard_dtype dtype)
{
    (void)device;
    int64_t n = shard_expansion_count(over);
    comparer *compare = comparers[dtype][comparison];
#pragma omp parallel for schedule(static) if (n >= PARALLEL)
    for (int64_t start = 0; start < n; start += SPAN) {
        buffer raw[2], wide[2];
        int64_t count = shard_min(SPAN, n - start);
        const void *left = load(over, 0, dtype, a, start, count, &raw[0], &wide[0]);
        compare(count, left, load(over, 1, dtype, b, start, count, &raw[1], &wide[1]), y + start);
    }
    return SHARD_OK;
}
