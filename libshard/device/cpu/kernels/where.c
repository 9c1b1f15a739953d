/* a where the condition is not 0, else b: elements as words of their size. */
#include "device/cpu/kernels/kernels.h"

#define WHERE(type)                                                                                                              \
    static void choose_##type(int64_t n, const uint8_t *condition, const void *left, const void *right, void *to)                \
    {                                                                                                                            \
        const type *a = left, *b = right;                                                                                        \
        type *y = to;                                                                                                            \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                                      \
        {                                                                                                                        \
            type if_true = a[i], if_false = b[i];                                                                                \
            y[i] = condition[i] ? if_true : if_false;                                                                            \
        }                                                                                                                        \
    }
WHERE(uint8_t)
WHERE(uint16_t)
WHERE(uint32_t)
WHERE(uint64_t)

static const void *load(const shard_expansion *over, int operand, size_t size, const void *x, int64_t start, int64_t count,
                        void *buffer)
{
    if (shard_expansion_dense(over, operand))
        return (const char *)x + (size_t)start * size;
    KERNEL(gather)(over, operand, size, x, start, count, buffer);
    return buffer;
}

shard_status KERNEL(where)(shard_device *device, const shard_expansion *over, const uint8_t *condition, const void *a,
                           const void *b, void *y, shard_dtype dtype)
{
    (void)device;
    int64_t n = shard_expansion_count(over);
    size_t size = shard_dtype_size(dtype);
    void (*choose)(int64_t, const uint8_t *, const void *, const void *, void *) = size == 1   ? choose_uint8_t
                                                                                   : size == 2 ? choose_uint16_t
                                                                                   : size == 4 ? choose_uint32_t
                                                                                               : choose_uint64_t;
#pragma omp parallel for schedule(static) if (n >= PARALLEL)
    for (int64_t start = 0; start < n; start += SPAN) {
        uint8_t conditions[SPAN];
        uint64_t if_true[SPAN], if_false[SPAN];
        int64_t count = shard_min(SPAN, n - start);
        choose(count, load(over, 0, 1, condition, start, count, conditions), load(over, 1, size, a, start, count, if_true),
               load(over, 2, size, b, start, count, if_false), (char *)y + (size_t)start * size);
    }
    return SHARD_OK;
}
