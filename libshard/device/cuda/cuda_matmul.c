/* The entries matmul, linear and row_pitch. */
#include "device/cuda/cuda_blas.h"

/* All sums are empty. */
static shard_status multiply_empty(shard_device *device, const shard_cuda_product *p, shard_dtype dtype)
{
    int64_t size = (int64_t)shard_dtype_size(p->wide_c ? SHARD_FLOAT32 : dtype);
    int64_t runs = p->ld_c == p->n ? 1 : p->m, rows = p->m / runs; /* dense rows at once */
    if (p->accumulate)
        return SHARD_OK;
    if (runs == 1 && p->stride_c == p->m * p->n)
        return shard_cuda_zero(device, p->c, (size_t)(p->batch * p->m * p->n * size));
    for (int64_t i = 0; i < p->batch * runs; i++)
        SHARD_TRY(shard_cuda_zero(device, (char *)p->c + (i / runs * p->stride_c + i % runs * p->ld_c) * size,
                                  (size_t)(rows * p->n * size)));
    return SHARD_OK;
}

shard_status shard_cuda_matmul(shard_device *device, const shard_matmul_shape *s, const void *a, const void *b, void *c,
                               shard_dtype dtype)
{
    if (s->batch == 0 || s->m == 0 || s->n == 0)
        return SHARD_OK;
    shard_cuda_product p = {.batch = s->batch,
                            .m = s->m,
                            .n = s->n,
                            .k = s->k,
                            .transpose_a = s->transpose_a,
                            .transpose_b = s->transpose_b,
                            .accumulate = s->accumulate,
                            .wide_c = s->wide_c,
                            .ld_a = shard_pitch(s->ld_a, s->transpose_a ? s->m : s->k),
                            .ld_b = shard_pitch(s->ld_b, s->transpose_b ? s->k : s->n),
                            .ld_c = shard_pitch(s->ld_c, s->n),
                            .stride_a = s->stride_a,
                            .stride_b = s->stride_b,
                            .stride_c = s->stride_c,
                            .a = a,
                            .b = b,
                            .c = c};
    if (p.k == 0)
        return multiply_empty(device, &p, dtype);
    /* One b for all, and the rows of one a and the next as far apart as those of one: one product. */
    if (p.stride_b == 0 && !p.transpose_a && p.stride_a == p.m * p.ld_a && p.stride_c == p.m * p.ld_c) {
        p.m *= p.batch;
        p.batch = 1;
    }
    return shard_cuda_multiply_aligned(device, &p, dtype);
}

shard_status shard_cuda_linear(shard_device *device, const shard_linear_shape *s, const void *x, const void *weight,
                               const void *bias, void *y, shard_dtype dtype)
{
    shard_cuda_product p = {.batch = 1,
                            .m = s->rows,
                            .n = s->out,
                            .k = s->in,
                            .transpose_b = true,
                            .ld_a = shard_pitch(s->pitch_x, s->in),
                            .ld_b = s->in,
                            .ld_c = shard_pitch(s->pitch_y, s->out),
                            .a = x,
                            .b = weight,
                            .bias = bias,
                            .c = y};
    if (p.m == 0 || p.n == 0)
        return SHARD_OK;
    if (p.k == 0)
        return bias ? shard_cuda_spread(device, p.m, p.n, p.ld_c, bias, y, dtype) : multiply_empty(device, &p, dtype);
    return shard_cuda_multiply_aligned(device, &p, dtype);
}

/* The next multiple of `unit` bytes, or the given number if that makes a row longer by more than 1 / least of it. */
static int64_t padded(int64_t bytes, int64_t unit, int64_t least)
{
    int64_t more = (unit - bytes % unit) % unit;
    return more * least <= bytes ? bytes + more : bytes;
}

/* Kernels for tensor cores move 16 bytes at a time: those that take rows which begin elsewhere are several times slower.
 * Whole lines of 128 bytes are better where they cost little memory. */
int64_t shard_cuda_row_pitch(const shard_device *device, int64_t cols, shard_dtype dtype)
{
    int64_t size = (int64_t)shard_dtype_size(dtype), bytes = cols * size;
    bool tensor_cores = size == 2 || (dtype == SHARD_FLOAT32 && device->allow_tf32);
    if (!tensor_cores || bytes % 16 == 0)
        return cols;
    return padded(padded(bytes, 128, 16), 16, 4) / size;
}
