/* Products by oneDNN: single ones by its sgemm, batches and those with a bias
 * by its matmul. */
#include "device/cpu/cpu_matmul_long.h"

#include "base/error.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_primitive.h"

enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, ACCUMULATE = 4, BIAS = 8, WIDE_C = 16 };
enum {
    WORD_DTYPE = 1,
    WORD_FLAGS,
    WORD_BATCH,
    WORD_M,
    WORD_N,
    WORD_K,
    WORD_STRIDE_A,
    WORD_STRIDE_B,
    WORD_STRIDE_C,
    WORD_LD_A,
    WORD_LD_B,
    WORD_LD_C
};

static shard_cpu_key key_of(const shard_cpu_product *p, shard_dtype dtype)
{
    const shard_matmul_shape *s = &p->shape;
    int64_t flags = (s->transpose_a ? TRANSPOSE_A : 0) | (s->transpose_b ? TRANSPOSE_B : 0) | (s->accumulate ? ACCUMULATE : 0) |
                    (p->bias ? BIAS : 0) | (s->wide_c ? WIDE_C : 0);
    return (shard_cpu_key){.word = {SHARD_CPU_MATMUL, (int64_t)dtype, flags, s->batch, s->m, s->n, s->k, s->stride_a, s->stride_b,
                                    s->stride_c, s->ld_a, s->ld_b, s->ld_c}};
}

/* A batch of rows x cols matrices; stride 0 repeats one. */
static dnnl_status_t plan_matrices(shard_cpu_plan *plan, int argument, int64_t batch, int64_t rows, int64_t cols, bool transposed,
                                   int64_t stride, int64_t ld, dnnl_data_type_t type)
{
    dnnl_dims_t dims = {stride == 0 ? 1 : batch, rows, cols};
    dnnl_dims_t strides = {stride == 0 ? (transposed ? cols : rows) * ld : stride, transposed ? 1 : ld, transposed ? ld : 1};
    int skip = batch == 1;
    return shard_cpu_plan_array(plan, argument, 3 - skip, dims + skip, strides + skip, type, false);
}

static dnnl_status_t plan_arrays(const int64_t *word, shard_cpu_plan *plan)
{
    dnnl_data_type_t type = shard_cpu_dnnl_type((shard_dtype)word[WORD_DTYPE]);
    int64_t batch = word[WORD_BATCH], m = word[WORD_M], n = word[WORD_N], k = word[WORD_K];
    dnnl_status_t status = plan_matrices(plan, DNNL_ARG_SRC, batch, m, k, word[WORD_FLAGS] & TRANSPOSE_A, word[WORD_STRIDE_A],
                                         word[WORD_LD_A], type);
    if (status == dnnl_success)
        status = plan_matrices(plan, DNNL_ARG_WEIGHTS, batch, k, n, word[WORD_FLAGS] & TRANSPOSE_B, word[WORD_STRIDE_B],
                               word[WORD_LD_B], type);
    if (status == dnnl_success)
        status = plan_matrices(plan, DNNL_ARG_DST, batch, m, n, false, word[WORD_STRIDE_C], word[WORD_LD_C],
                               word[WORD_FLAGS] & WIDE_C ? dnnl_f32 : type);
    if (status == dnnl_success && word[WORD_FLAGS] & BIAS)
        status = shard_cpu_plan_array(plan, DNNL_ARG_BIAS, 2, (dnnl_dims_t){1, n}, (dnnl_dims_t){n, 1}, type, false);
    return status;
}

static dnnl_status_t plan_matmul(const shard_cpu_key *key, shard_cpu_plan *plan, dnnl_engine_t engine,
                                 dnnl_primitive_attr_t attributes)
{
    dnnl_status_t status = plan_arrays(key->word, plan);
    if (status != dnnl_success)
        return status;
    dnnl_primitive_attr_t own = NULL;
    dnnl_post_ops_t after = NULL;
    status = dnnl_primitive_attr_clone(&own, attributes);
    if (status == dnnl_success && key->word[WORD_FLAGS] & ACCUMULATE) {
        status = dnnl_post_ops_create(&after);
        if (status == dnnl_success)
            status = shard_dnnl_append_sum(after);
        if (status == dnnl_success)
            status = dnnl_primitive_attr_set_post_ops(own, after);
    }
    if (status == dnnl_success)
        status = shard_dnnl_matmul(
            &plan->descriptor, engine, SHARD_DNNL_BORROW(&plan->asked[0]), SHARD_DNNL_BORROW(&plan->asked[1]),
            key->word[WORD_FLAGS] & BIAS ? SHARD_DNNL_BORROW(&plan->asked[3]) : NULL, SHARD_DNNL_BORROW(&plan->asked[2]), own);
    dnnl_post_ops_destroy(after);
    dnnl_primitive_attr_destroy(own);
    return status;
}

static shard_status run(shard_device *device, const shard_cpu_product *p, shard_dtype dtype, bool *there)
{
    shard_cpu_key key = key_of(p, dtype);
    return shard_cpu_run(device, &key, plan_matmul, (const void *[]){p->a, p->b, p->c, p->bias}, there);
}

static shard_status multiply_float(shard_device *device, const shard_cpu_product *p)
{
    const shard_matmul_shape *s = &p->shape;
    if (shard_cpu_matmul_is_long(s))
        return shard_cpu_matmul_long(device, p);
    if (s->batch > 1 || p->bias)
        return run(device, p, SHARD_FLOAT32, NULL);
    const float *a = p->a, *b = p->b;
    dnnl_status_t status = dnnl_success;
    for (int64_t first = 0, k; first < s->k && status == dnnl_success; first += k) {
        k = shard_rows_in_block(SHARD_ROW_BLOCK, first, s->k);
        status = dnnl_sgemm(s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', s->m, s->n, k, 1.0f,
                            a + first * (s->transpose_a ? s->ld_a : 1), s->ld_a, b + first * (s->transpose_b ? 1 : s->ld_b),
                            s->ld_b, s->accumulate || first > 0 ? 1.0f : 0.0f, p->c, s->ld_c);
    }
    return status == dnnl_success ? SHARD_OK : shard_cpu_dnnl_error("sgemm", status);
}

/* All sums are empty. */
static shard_status multiply_empty(shard_device *device, const shard_cpu_product *p, shard_dtype dtype)
{
    const shard_matmul_shape *s = &p->shape;
    if (s->accumulate)
        return SHARD_OK;
    size_t size = shard_dtype_size(shard_cpu_result_type(p, dtype));
    int64_t runs = s->ld_c == s->n ? 1 : s->m, rows = s->m / runs; /* dense rows at once */
    const shard_expansion over = shard_expansion_rows(rows, s->n);
    for (int64_t i = 0; i < s->batch * runs; i++) {
        char *c = (char *)p->c + (size_t)(i / runs * s->stride_c + i % runs * s->ld_c) * size;
        SHARD_TRY(shard_cpu_zero(device, c, (size_t)(rows * s->n) * size));
        if (p->bias)
            SHARD_TRY(device->ops->binary(device, SHARD_ADD, &over, c, p->bias, c, dtype));
    }
    return SHARD_OK;
}

static shard_status multiply(shard_device *device, const shard_cpu_product *p, shard_dtype dtype);

/* One product again and again: oneDNN takes no batch whose operands are both repeated. */
static shard_status multiply_repeated(shard_device *device, const shard_cpu_product *p, shard_dtype dtype)
{
    shard_cpu_product one = *p;
    one.shape.batch = 1;
    for (int64_t i = 0; i < p->shape.batch; i++) {
        one.c = (char *)p->c + (size_t)(i * p->shape.stride_c) * shard_dtype_size(shard_cpu_result_type(p, dtype));
        SHARD_TRY(multiply(device, &one, dtype));
    }
    return SHARD_OK;
}

static shard_status multiply(shard_device *device, const shard_cpu_product *p, shard_dtype dtype)
{
    const shard_matmul_shape *s = &p->shape;
    if (s->batch == 0 || s->m == 0 || s->n == 0)
        return SHARD_OK;
    if (s->k == 0)
        return multiply_empty(device, p, dtype);
    if (s->batch > 1 && s->stride_a == 0 && s->stride_b == 0)
        return multiply_repeated(device, p, dtype);
    if (dtype == SHARD_FLOAT64)
        return shard_cpu_matmul_double(p);
    if (dtype == SHARD_FLOAT32)
        return multiply_float(device, p);
    bool there = false;
    if (shard_cpu_multiplies(dtype))
        SHARD_TRY(run(device, p, dtype, &there));
    return there ? SHARD_OK : shard_cpu_matmul_wide(device, p, dtype);
}

shard_status shard_cpu_matmul(shard_device *device, const shard_matmul_shape *shape, const void *a, const void *b, void *c,
                              shard_dtype dtype)
{
    shard_cpu_product product = {.shape = *shape, .a = a, .b = b, .c = c};
    shard_matmul_shape *s = &product.shape;
    s->ld_a = shard_pitch(s->ld_a, s->transpose_a ? s->m : s->k);
    s->ld_b = shard_pitch(s->ld_b, s->transpose_b ? s->k : s->n);
    s->ld_c = shard_pitch(s->ld_c, s->n);
    return multiply(device, &product, dtype);
}

shard_status shard_cpu_linear(shard_device *device, const shard_linear_shape *s, const void *x, const void *weight,
                              const void *bias, void *y, shard_dtype dtype)
{
    shard_cpu_product product = {.shape = {.batch = 1,
                                           .m = s->rows,
                                           .n = s->out,
                                           .k = s->in,
                                           .transpose_b = true,
                                           .ld_a = shard_pitch(s->pitch_x, s->in),
                                           .ld_b = s->in,
                                           .ld_c = shard_pitch(s->pitch_y, s->out)},
                                 .a = x,
                                 .b = weight,
                                 .bias = bias,
                                 .c = y};
    return multiply(device, &product, dtype);
}

int64_t shard_cpu_row_pitch(const shard_device *device, int64_t cols, shard_dtype dtype)
{
    (void)device, (void)dtype;
    return cols;
}
