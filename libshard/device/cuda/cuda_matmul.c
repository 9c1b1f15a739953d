/* The entries matmul and linear. */
#include "device/cuda/cuda_blas.h"

/* All sums are empty. */
static shard_status multiply_empty(shard_device *device, const shard_matmul_shape *s, void *c, shard_dtype dtype)
{
    size_t size = shard_dtype_size(s->wide_c ? SHARD_FLOAT32 : dtype);
    if (s->accumulate)
        return SHARD_OK;
    if (s->stride_c == s->m * s->n)
        return shard_cuda_zero(device, c, (size_t)(s->batch * s->m * s->n) * size);
    for (int64_t i = 0; i < s->batch; i++)
        SHARD_TRY(shard_cuda_zero(device, (char *)c + (size_t)(i * s->stride_c) * size, (size_t)(s->m * s->n) * size));
    return SHARD_OK;
}

shard_status shard_cuda_matmul(shard_device *device, const shard_matmul_shape *s, const void *a, const void *b, void *c,
                               shard_dtype dtype)
{
    if (s->batch == 0 || s->m == 0 || s->n == 0)
        return SHARD_OK;
    if (s->k == 0)
        return multiply_empty(device, s, c, dtype);
    shard_cuda_product p = {.batch = s->batch,
                            .m = s->m,
                            .n = s->n,
                            .k = s->k,
                            .transpose_a = s->transpose_a,
                            .transpose_b = s->transpose_b,
                            .accumulate = s->accumulate,
                            .wide_c = s->wide_c,
                            .ld_a = s->transpose_a ? s->m : s->k,
                            .ld_b = s->transpose_b ? s->k : s->n,
                            .ld_c = s->n,
                            .stride_a = s->stride_a,
                            .stride_b = s->stride_b,
                            .stride_c = s->stride_c,
                            .a = a,
                            .b = b,
                            .c = c};
    /* One b for all, and nothing between the rows of one a and the next: one product. */
    if (s->stride_b == 0 && !s->transpose_a && s->stride_a == s->m * s->k && s->stride_c == s->m * s->n) {
        p.m *= p.batch;
        p.batch = 1;
    }
    return shard_cuda_multiply(device, &p, dtype);
}

shard_status shard_cuda_linear(shard_device *device, int64_t rows, int64_t in, int64_t out, const void *x, const void *weight,
                               const void *bias, void *y, shard_dtype dtype)
{
    if (rows == 0 || out == 0)
        return SHARD_OK;
    bool there = false;
    if (bias && in > 0)
        SHARD_TRY(shard_cuda_multiply_biased(device, rows, in, out, x, weight, bias, y, dtype, &there));
    if (there)
        return SHARD_OK;
    if (bias)
        SHARD_TRY(shard_cuda_spread(device, rows, out, bias, y, dtype));
    shard_matmul_shape shape = {.batch = 1, .m = rows, .n = out, .k = in, .transpose_b = true, .accumulate = bias != NULL};
    return shard_cuda_matmul(device, &shape, x, weight, y, dtype);
}
