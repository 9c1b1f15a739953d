/* Products of 16-bit types that the processor does not multiply: blocks of a and b
 * are widened, c is summed in float32 and rounded once. */
#include "device/cpu/cpu_matmul.h"

#include "base/error.h"
#include "base/math.h"
#include "device/cpu/cpu.h"
#include "device/cpu/dnnl.h"
#include "device/cpu/cpu_primitive.h"

#include <string.h>

int64_t shard_cpu_wide_elements = (int64_t)16 << 20;

typedef struct blocks {
    int64_t m, n, k;
    float *a, *b, *c;
} blocks;

/* A part of a 16-bit matrix whose rows are `pitch` elements apart, into a dense
 * float32 one; or back. */
static shard_status convert(shard_device *device, int64_t rows, int64_t cols, int64_t pitch, const void *matrix, float *wide,
                            bool back, shard_dtype dtype)
{
    if (cols == pitch) {
        cols *= rows;
        rows = 1;
    }
    for (int64_t i = 0; i < rows; i++) {
        void *row = (char *)matrix + (size_t)(i * pitch) * shard_dtype_size(dtype);
        if (back)
            SHARD_TRY(device->ops->cast(device, cols, wide + i * cols, SHARD_FLOAT32, row, dtype));
        else
            SHARD_TRY(device->ops->cast(device, cols, row, dtype, wide + i * cols, SHARD_FLOAT32));
    }
    return SHARD_OK;
}

static blocks choose_blocks(const shard_matmul_shape *s)
{
    blocks size = {.m = s->m, .n = s->n, .k = s->k};
    while (size.m * size.k + size.k * size.n + size.m * size.n > shard_cpu_wide_elements) {
        int64_t *largest = size.m > size.n ? &size.m : &size.n;
        if (size.k > *largest)
            largest = &size.k;
        *largest = (*largest + 1) / 2;
    }
    return size;
}

/* One block of one c, whose matrices are those of the product. */
static shard_status multiply_block(shard_device *device, const shard_cpu_product *p, const blocks *size, int64_t i0, int64_t j0,
                                   shard_dtype dtype)
{
    const shard_matmul_shape *s = &p->shape;
    shard_dtype c_dtype = shard_cpu_result_type(p, dtype);
    size_t bytes = shard_dtype_size(dtype);
    const char *a = p->a, *b = p->b;
    char *c = (char *)p->c + (size_t)(i0 * s->ld_c + j0) * shard_dtype_size(c_dtype);
    int64_t m = shard_min(s->m - i0, size->m), n = shard_min(s->n - j0, size->n);
    if (s->accumulate) {
        SHARD_TRY(convert(device, m, n, s->ld_c, c, size->c, false, c_dtype));
    } else if (p->bias) {
        SHARD_TRY(convert(device, 1, n, n, (const char *)p->bias + (size_t)j0 * bytes, size->c, false, dtype));
        for (int64_t i = 1; i < m; i++)
            memcpy(size->c + i * n, size->c, (size_t)n * sizeof(float));
    } else {
        memset(size->c, 0, (size_t)(m * n) * sizeof(float));
    }
    for (int64_t k0 = 0; k0 < s->k; k0 += size->k) {
        int64_t k = shard_min(s->k - k0, size->k);
        if (s->transpose_a)
            SHARD_TRY(convert(device, k, m, s->ld_a, a + (size_t)(k0 * s->ld_a + i0) * bytes, size->a, false, dtype));
        else
            SHARD_TRY(convert(device, m, k, s->ld_a, a + (size_t)(i0 * s->ld_a + k0) * bytes, size->a, false, dtype));
        if (s->transpose_b)
            SHARD_TRY(convert(device, n, k, s->ld_b, b + (size_t)(j0 * s->ld_b + k0) * bytes, size->b, false, dtype));
        else
            SHARD_TRY(convert(device, k, n, s->ld_b, b + (size_t)(k0 * s->ld_b + j0) * bytes, size->b, false, dtype));
        dnnl_status_t status = dnnl_sgemm(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', m, n, k, 1.0f, size->a,
                                          s->transpose_a ? m : k, size->b, s->transpose_b ? k : n, 1.0f, size->c, n);
        if (status != dnnl_success)
            return shard_cpu_dnnl_error("sgemm", status);
    }
    return convert(device, m, n, s->ld_c, c, size->c, true, c_dtype);
}

static shard_status multiply_all(shard_device *device, const shard_cpu_product *p, const blocks *size, shard_dtype dtype)
{
    const shard_matmul_shape *s = &p->shape;
    size_t bytes = shard_dtype_size(dtype);
    for (int64_t batch = 0; batch < s->batch; batch++) {
        shard_cpu_product one = *p;
        one.a = (const char *)p->a + (size_t)(batch * s->stride_a) * bytes;
        one.b = (const char *)p->b + (size_t)(batch * s->stride_b) * bytes;
        one.c = (char *)p->c + (size_t)(batch * s->stride_c) * shard_dtype_size(shard_cpu_result_type(p, dtype));
        for (int64_t i = 0; i < s->m; i += size->m) {
            for (int64_t j = 0; j < s->n; j += size->n)
                SHARD_TRY(multiply_block(device, &one, size, i, j, dtype));
        }
    }
    return SHARD_OK;
}

shard_status shard_cpu_matmul_wide(shard_device *device, const shard_cpu_product *p, shard_dtype dtype)
{
    blocks size = choose_blocks(&p->shape);
    size_t bytes = (size_t)(size.m * size.k + size.k * size.n + size.m * size.n) * sizeof(float);
    float *memory = shard_cpu_scratch(device, bytes);
    if (!memory)
        return SHARD_ERROR_MEMORY;
    size.a = memory;
    size.b = size.a + size.m * size.k;
    size.c = size.b + size.k * size.n;
    shard_status status = multiply_all(device, p, &size, dtype);
    shard_cpu_scratch_release(device, memory, bytes);
    return status;
}
