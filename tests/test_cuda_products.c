/* How products reach cuBLAS and cuBLASLt, as the emulation sees it: what cuBLASLt refuses and where memory is. */
#include "support/check.h"
#include "support/sample.h"

#include <seen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- with a bias ---- */

enum { ROWS = 33, IN = 304, OUT = 40 };
static const shard_linear_shape shape = {.rows = ROWS, .in = IN, .out = OUT};

/* y = x weight^T + bias, their memory `offset` bytes behind a multiple of 256, the bias `bias_offset` bytes. */
static sample multiply(shard_dtype dtype, int64_t offset, int64_t bias_offset)
{
    int64_t size = (int64_t)shard_dtype_size(dtype);
    sample_offset = offset / size;
    sample x = sample_random(ROWS * IN, dtype, 1), weight = sample_random(OUT * IN, dtype, 2),
           y = sample_unset(ROWS * OUT, dtype);
    sample_offset = bias_offset / size;
    sample bias = sample_random(OUT, dtype, 3);
    sample_offset = 0;
    RUN(tested_device(), linear, &shape, x.data, weight.data, bias.data, y.data, dtype);
    double *expected = calloc(ROWS * OUT, sizeof *expected), *magnitude = calloc(ROWS * OUT, sizeof *magnitude);
    for (int64_t i = 0; i < ROWS * OUT; i++) {
        expected[i] = bias.value[i % OUT];
        magnitude[i] = fabs(expected[i]);
        for (int64_t k = 0; k < IN; k++) {
            double product = x.value[i / OUT * IN + k] * weight.value[i % OUT * IN + k];
            expected[i] += product;
            magnitude[i] += fabs(product);
        }
    }
    sample_check(&y, expected, magnitude, IN, "linear");
    free(expected);
    free(magnitude);
    sample_free(&x);
    sample_free(&weight);
    sample_free(&bias);
    return y;
}

static bool is_fused(shard_dtype dtype, int64_t bias_offset)
{
    int64_t before = emulation_has_seen.biased;
    sample y = multiply(dtype, 0, bias_offset);
    sample_free(&y);
    return emulation_has_seen.biased > before;
}

/* Kernels take a bias for aligned to 16 bytes. */
START_TEST(adds_a_misaligned_bias)
{
    bool fuses = float_dtypes[_i] != SHARD_FLOAT64; /* which the emulation does not have */
    for (int64_t offset = 0; offset <= 32; offset += 8)
        ck_assert_int_eq(is_fused(float_dtypes[_i], offset), fuses && offset % 16 == 0);
}
END_TEST

/* As long as it is aligned to 16 bytes, where memory is does not change a bit of a result. */
START_TEST(same_wherever_memory_is)
{
    static const int64_t offsets[] = {0, 16, 64, 128};
    sample first = multiply(float_dtypes[_i], 0, 0);
    for (int i = 1; i < 4; i++) {
        sample y = multiply(float_dtypes[_i], offsets[i], offsets[i]);
        check_same(float_dtypes[_i], ROWS * OUT, first.data, y.data, "linear");
        sample_free(&y);
    }
    sample_free(&first);
}
END_TEST

/* ---- refusals ---- */

static int count_lines(FILE *file, const char *with)
{
    char line[400];
    int count = 0;
    rewind(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, with) != NULL;
    return count;
}

/* Of the choice of an algorithm any failure, of the product what says that the algorithm is none for it: the bias is
 * added in another way, and that is logged once a shape. */
START_TEST(takes_refusals)
{
    static const char *const refusals[][2] = {{"HEURISTIC", "7"}, {"HEURISTIC", "14"}, {"HEURISTIC", "15"},
                                              {"MATMUL", "7"},    {"MATMUL", "8"},     {"MATMUL", "15"}};
    char variable[60];
    FILE *log = tmpfile();
    int before = dup(STDERR_FILENO);
    snprintf(variable, sizeof variable, "SHARD_CUDA_EMULATION_LT_%s", refusals[_i][0]);
    setenv(variable, refusals[_i][1], 1);
    setenv("SHARD_LOG", "info", 1);
    dup2(fileno(log), STDERR_FILENO);
    for (int turn = 0; turn < 2; turn++) {
        ck_assert(!is_fused(SHARD_FLOAT32, 0));
        ck_assert(!is_fused(SHARD_BFLOAT16, 0));
    }
    dup2(before, STDERR_FILENO);
    ck_assert_int_eq(count_lines(log, "refuses a product with a bias of 33 rows, 304 -> 40"), 2);
    fclose(log);
}
END_TEST

/* What says that something broke is an error. */
START_TEST(takes_no_other_failure)
{
    setenv("SHARD_CUDA_EMULATION_LT_MATMUL", "13", 1);
    sample x = sample_random(IN, SHARD_FLOAT32, 1), y = sample_unset(IN, SHARD_FLOAT32);
    shard_device *device = tested_device();
    const shard_linear_shape small = {.rows = 1, .in = 16, .out = 16};
    ck_assert_int_eq(device->ops->linear(device, &small, x.data, x.data, x.data, y.data, SHARD_FLOAT32), SHARD_ERROR_DEVICE);
    ck_assert_ptr_nonnull(strstr(shard_last_error(), "cublasLtMatmul"));
    sample_free(&x);
    sample_free(&y);
}
END_TEST

/* ---- rows at no multiple of 16 bytes ---- */

/* A product that is large for its matrices, whose rows are `more` elements apart. */
typedef struct large {
    int64_t m, n, k, more;
    bool transpose_a, transpose_b, accumulate, wide_c, bias;
    shard_dtype dtype;
    int products;   /* that it is divided into */
    bool no_copies; /* all rows begin at multiples of 16 bytes */
} large;

static int64_t extent(int64_t rows, int64_t cols, int64_t more)
{
    return (rows - 1) * (cols + more) + cols;
}

/* Some elements of c are computed again; all that is between its rows is as it was. */
static void check_some(const large *l, const sample *a, const sample *b, const sample *bias, sample *c, const double *before)
{
    int64_t ld_a = (l->transpose_a ? l->m : l->k) + l->more, ld_b = (l->transpose_b ? l->k : l->n) + l->more,
            ld_c = l->n + l->more;
    sample_read(c);
    for (int64_t i = l->n; i < c->count; i += ld_c)
        for (int64_t j = i; j < i + l->more && j < c->count; j++)
            ck_assert(c->value[j] == before[j]);
    enum { ANYWHERE = 500, LAST = 300 }; /* of these a third each in the last rows, in the last columns, in both */
    for (int64_t i = 0; i < ANYWHERE + LAST; i++) {
        int64_t row = i * 7919 % l->m, col = i * 104729 % l->n;
        if (i >= ANYWHERE && i % 3 != 1)
            row = l->m - 1 - i % 8;
        if (i >= ANYWHERE && i % 3 != 0)
            col = l->n - 1 - i / 8 % 8;
        int64_t at = row * ld_c + col;
        double sum = (l->bias ? bias->value[col] : 0) + (l->accumulate ? before[at] : 0), size = fabs(sum);
        for (int64_t k = 0; k < l->k; k++) {
            double product = a->value[l->transpose_a ? k * ld_a + row : row * ld_a + k] *
                             b->value[l->transpose_b ? col * ld_b + k : k * ld_b + col];
            sum += product;
            size += fabs(product);
        }
        double unit_of_products = l->dtype == SHARD_FLOAT32 ? 0x1p-10 /* TF32 */ : 0x1p-24 * (4 + sqrt((double)l->k));
        check_close(c->dtype, c->value[at], sum, size * unit_of_products, "product", at);
    }
}

static void multiply_large(const large *l)
{
    shard_dtype to = l->wide_c ? SHARD_FLOAT32 : l->dtype;
    sample a = sample_random(l->transpose_a ? extent(l->k, l->m, l->more) : extent(l->m, l->k, l->more), l->dtype, 1);
    sample b = sample_random(l->transpose_b ? extent(l->n, l->k, l->more) : extent(l->k, l->n, l->more), l->dtype, 2);
    sample bias = sample_random(l->n, l->dtype, 3), c = sample_random(extent(l->m, l->n, l->more), to, 4);
    double *before = calloc((size_t)c.count, sizeof *before);
    memcpy(before, c.value, (size_t)c.count * sizeof *before);
    if (l->bias) {
        const shard_linear_shape s = {
            .rows = l->m, .in = l->k, .out = l->n, .pitch_x = l->k + l->more, .pitch_y = l->n + l->more};
        RUN(tested_device(), linear, &s, a.data, b.data, bias.data, c.data, l->dtype);
    } else {
        const shard_matmul_shape s = {.batch = 1,
                                      .m = l->m,
                                      .n = l->n,
                                      .k = l->k,
                                      .transpose_a = l->transpose_a,
                                      .transpose_b = l->transpose_b,
                                      .accumulate = l->accumulate,
                                      .wide_c = l->wide_c,
                                      .ld_a = (l->transpose_a ? l->m : l->k) + l->more,
                                      .ld_b = (l->transpose_b ? l->k : l->n) + l->more,
                                      .ld_c = l->n + l->more};
        RUN(tested_device(), matmul, &s, a.data, b.data, c.data, l->dtype);
    }
    check_some(l, &a, &b, &bias, &c, before);
    free(before);
    sample_free(&a);
    sample_free(&b);
    sample_free(&bias);
    sample_free(&c);
}

/* Rows that end at no multiple of 16 bytes add a product each: of n, of m if a is transposed, of k without a bias. Not where c of
 * 16 bits would be rounded twice. */
static const large products[] = {
    {1501, 1501, 4001, 0, .transpose_b = true, .wide_c = true, .dtype = SHARD_BFLOAT16, .products = 3},
    {1501, 1501, 4001, 2, .transpose_a = true, .accumulate = true, .dtype = SHARD_FLOAT16, .products = 3},
    {2004, 2001, 3000, 0, .dtype = SHARD_FLOAT32, .products = 2},
    {1501, 1504, 1001, 0, .bias = true, .transpose_b = true, .dtype = SHARD_BFLOAT16, .products = 1},
    {1504, 1501, 1008, 0, .bias = true, .transpose_b = true, .dtype = SHARD_FLOAT16, .products = 2},
    {1504, 1504, 6001, 0, .dtype = SHARD_BFLOAT16, .products = 2},
    {1504, 1504, 4001, 0, .transpose_a = true, .transpose_b = true, .dtype = SHARD_FLOAT32, .products = 2},
    {1504, 1504, 4001, 0, .accumulate = true, .dtype = SHARD_BFLOAT16, .products = 1},
    {1504, 1505, 3001, 7, .transpose_b = true, .dtype = SHARD_BFLOAT16, .products = 2, .no_copies = true},
    {1505, 1505, 3001, 7, .accumulate = true, .wide_c = true, .dtype = SHARD_FLOAT16, .products = 3, .no_copies = true},
    {1505, 1505, 3001, 7, .transpose_a = true, .accumulate = true, .wide_c = true, .dtype = SHARD_BFLOAT16, .products = 3,
     .no_copies = true},
};

START_TEST(aligns_large_products)
{
    emulation_seen before = emulation_has_seen;
    shard_memory_kind kind = SHARD_MEMORY_WORKSPACE;
    shard_set_allow_tf32(tested_device(), true);
    multiply_large(&products[_i]);
    ck_assert_int_eq(emulation_has_seen.products, before.products + products[_i].products);
    ck_assert_int_eq(emulation_has_seen.unaligned, before.unaligned);
    ck_assert_int_eq(emulation_has_seen.biased - before.biased, products[_i].bias ? products[_i].products : 0);
    ck_assert_int_eq(shard_get_memory_by_kind(tested_device(), kind).current, 0);
    ck_assert_int_eq(shard_get_memory_by_kind(tested_device(), kind).peak > 0, !products[_i].no_copies);
}
END_TEST

/* Small ones, those that are large in their matrices alone, and those that no tensor cores compute, are left as they are. The
 * last one is of aligned rows, of which it has few. */
enum { LEFT = 5 };
START_TEST(leaves_small_products)
{
    static const large left[LEFT] = {{101, 101, 101, 0, .dtype = SHARD_BFLOAT16},
                                     {4001, 4001, 101, 0, .transpose_b = true, .dtype = SHARD_BFLOAT16},
                                     {1501, 1501, 1001, 0, .transpose_b = true, .dtype = SHARD_FLOAT32},
                                     {7001, 7001, 101, 0, .transpose_b = true, .dtype = SHARD_BFLOAT16},
                                     {4104, 250, 2106, 6, .transpose_b = true, .dtype = SHARD_BFLOAT16, .no_copies = true}};
    emulation_seen before = emulation_has_seen;
    multiply_large(&left[_i]);
    ck_assert_int_eq(emulation_has_seen.products, before.products + 1);
    ck_assert_int_eq(emulation_has_seen.unaligned, before.unaligned + !left[_i].no_copies);
    ck_assert_int_eq(shard_get_memory_by_kind(tested_device(), SHARD_MEMORY_WORKSPACE).peak, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_products");
    TCase *tcase = test_case(suite, "products");
    int count = (int)(sizeof float_dtypes / sizeof *float_dtypes);
    tcase_add_loop_test(tcase, adds_a_misaligned_bias, 0, count);
    tcase_add_loop_test(tcase, same_wherever_memory_is, 0, count);
    tcase_add_loop_test(tcase, takes_refusals, 0, 6);
    tcase_add_test(tcase, takes_no_other_failure);
    tcase_add_loop_test(tcase, aligns_large_products, 0, sizeof products / sizeof *products);
    tcase_add_loop_test(tcase, leaves_small_products, 0, LEFT);
    return test_run(suite);
}
