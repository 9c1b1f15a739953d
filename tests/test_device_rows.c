/*
 * Kernels that go along rows or columns, where rows are long, many, at addresses that no
 * vector load takes, or full of extreme values; against long double, or against the
 * same kernel on aligned arrays.
 */
#include "support/check.h"
#include "support/kernels.h"

#include <string.h>

enum { IGNORE = -100 };

/* ---- the loss's statistics ---- */

typedef struct logits {
    shard_dtype dtype;
    int64_t rows, cols;
    void *x;
    int64_t *target;
    double smoothing;
} logits;

static void run_stats(shard_device *device, const logits *l, double *stats)
{
    shard_cross_entropy_shape shape = {
        .rows = l->rows, .cols = l->cols, .classes = l->cols, .ignore_index = IGNORE, .smoothing = l->smoothing};
    RUN(device, cross_entropy_stats, &shape, l->x, l->target, NULL, NULL, stats, NULL, NULL, l->dtype);
}

/* NaNs are in the sum, not in the maximum. */
static void check_row(const logits *l, int64_t row, const double *got, const char *what)
{
    long double max = -INFINITY, sum = 0, total = 0, size = 0, spread = l->smoothing / (long double)l->cols;
    bool ignored = l->target[row] == IGNORE;
    for (int64_t i = row * l->cols; i < (row + 1) * l->cols; i++) {
        long double x = array_get(l->x, i, l->dtype);
        max = x > max ? x : max;
        total += x;
        size += fabsl(x);
    }
    for (int64_t i = row * l->cols; i < (row + 1) * l->cols && max != -INFINITY; i++)
        sum += expl(array_get(l->x, i, l->dtype) - max);
    check_close(SHARD_FLOAT64, got[SHARD_CE_MAX], max, 0, what, row);
    check_close(SHARD_FLOAT64, got[SHARD_CE_SUM], sum, sum * 24 * compute_unit(l->dtype), what, row);
    if (l->smoothing == 0)
        return;
    long double a = (1 - l->smoothing) * array_get(l->x, row * l->cols + (ignored ? 0 : l->target[row]), l->dtype);
    check_close(SHARD_FLOAT64, got[SHARD_CE_A], ignored ? 0 : a + spread * total, size * spread * 1e-13L + 1e-15L, what, row);
    check_close(SHARD_FLOAT64, got[SHARD_CE_B], ignored ? 0 : 1, 1e-13L, what, row);
}

static void check_stats(const logits *l)
{
    shard_device *device;
    double *stats = array_new(l->rows * SHARD_CE_STATS, SHARD_FLOAT64);
    for (int set = 0; (device = kernel_device(set)); set++) {
        run_stats(device, l, stats);
        for (int64_t row = 0; row < l->rows; row++)
            check_row(l, row, stats + row * SHARD_CE_STATS, device->name);
    }
    array_free(stats, l->rows * SHARD_CE_STATS, SHARD_FLOAT64);
}

static int64_t *some_targets(int64_t rows, int64_t cols)
{
    int64_t *target = array_new(rows, SHARD_INT64);
    for (int64_t i = 0; i < rows; i++)
        target[i] = i % 5 == 3 ? IGNORE : (int64_t)((noise(9, i) + 1) / 2 * (double)cols);
    return target;
}

START_TEST(a_million_columns)
{
    shard_dtype dtype = _i ? SHARD_BFLOAT16 : SHARD_FLOAT32;
    logits l = {.dtype = dtype, .rows = 1, .cols = 1000003, .smoothing = 0.1};
    l.x = array_noise(l.rows * l.cols, dtype, 1, -15, 15);
    l.target = array_of(1, SHARD_INT64, &(int64_t){1000002});
    check_stats(&l);
}
END_TEST

START_TEST(many_rows)
{
    logits l = {.dtype = SHARD_FLOAT32, .rows = 70000, .cols = 3, .smoothing = 0.1};
    l.x = array_noise(l.rows * l.cols, l.dtype, 1, -15, 15);
    l.target = some_targets(l.rows, l.cols);
    check_stats(&l);
}
END_TEST

/* -inf alone, -inf up to somewhere, a NaN, an infinity, steps up and down. */
static double extreme(int64_t row, int64_t column, int64_t cols)
{
    double x = noise(1, column) * 15;
    switch (row) {
    case 0:
        return -INFINITY;
    case 1:
        return column == cols - 1 ? 3 : -INFINITY;
    case 2:
        return column < cols / 2 ? -INFINITY : x;
    case 3:
        return column == cols / 2 + 1 ? NAN : x;
    case 4:
        return column == 5 ? INFINITY : x;
    case 5:
        return column < cols / 2 ? 60000 : x;
    case 6:
        return x / 15 + (double)(column * 40 / cols) * 3;
    default:
        return x / 15 - (double)(column * 40 / cols) * 3;
    }
}

START_TEST(extreme_logits)
{
    static const int64_t lengths[] = {100, 6001, 20001};
    shard_dtype dtype = float_dtypes[_i];
    for (int k = 0; k < 3; k++) {
        logits l = {.dtype = dtype, .rows = 8, .cols = lengths[k]};
        l.x = array_new(l.rows * l.cols, dtype);
        l.target = some_targets(l.rows, l.cols);
        for (int64_t i = 0; i < l.rows * l.cols; i++)
            array_put(l.x, i, dtype, extreme(i / l.cols, i % l.cols, l.cols));
        check_stats(&l);
        array_free(l.x, l.rows * l.cols, dtype);
        array_free(l.target, l.rows, SHARD_INT64);
    }
}
END_TEST

/* ---- any address ---- */

/* For rows that are a warp's, a block's, and cut. */
static const int64_t shapes[][2] = {{9, 101}, {2, 6001}, {2, 20001}};
enum { SHAPES = sizeof shapes / sizeof *shapes, MOST = 5 };

/* Arrays of n elements; one of them begins an element later than the others. */
typedef struct arrays {
    shard_dtype dtype;
    int64_t n;
    void *memory[MOST];
    void *array[MOST];
} arrays;

static arrays arrays_new(shard_dtype dtype, int64_t n, int late)
{
    arrays a = {.dtype = dtype, .n = n};
    for (int i = 0; i < MOST; i++) {
        size_t skip = i == late ? shard_dtype_size(dtype) : 0;
        void *values = array_noise(n, dtype, (uint64_t)i, 0.25, 4);
        a.memory[i] = array_new(n + 1, dtype);
        a.array[i] = (char *)a.memory[i] + skip;
        memcpy(a.array[i], values, (size_t)n * shard_dtype_size(dtype));
        array_free(values, n, dtype);
    }
    return a;
}

static void arrays_free(arrays *a)
{
    for (int i = 0; i < MOST; i++)
        array_free(a->memory[i], a->n + 1, a->dtype);
}

typedef struct form {
    const char *name;
    int arrays; /* of which the last is written */
    void (*run)(shard_device *, int64_t rows, int64_t cols, const arrays *);
} form;

static void softmax(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    RUN(device, softmax, false, rows, cols, a->array[0], a->array[1], a->dtype);
}

static void log_softmax(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    RUN(device, softmax, true, rows, cols, a->array[0], a->array[1], a->dtype);
}

static void softmax_backward(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    RUN(device, softmax_backward, true, rows, cols, a->array[0], a->array[1], a->array[2], a->dtype);
}

static shard_cross_entropy_shape loss_shape(int64_t rows, int64_t cols)
{
    return (shard_cross_entropy_shape){.rows = rows, .cols = cols, .classes = cols, .ignore_index = IGNORE, .smoothing = 0.1};
}

/* [rows] of the same number. */
static double *numbers(int64_t rows, double value)
{
    double *x = array_new(rows, SHARD_FLOAT64);
    for (int64_t i = 0; i < rows; i++)
        x[i] = value;
    return x;
}

static void loss_backward(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    shard_cross_entropy_shape shape = loss_shape(rows, cols);
    double *lse = numbers(rows, 4), *one = numbers(rows, 1);
    const shard_loss_rows of_rows = {.lse = lse, .slope = one, .scale = one};
    RUN(device, cross_entropy_backward, &shape, a->array[0], NULL, a->array[1], a->array[2], &of_rows, a->array[3], a->dtype);
    array_free(lse, rows, SHARD_FLOAT64);
    array_free(one, rows, SHARD_FLOAT64);
}

/* The statistics, which are doubles, as the first elements of the last array. */
static void loss_stats(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    shard_cross_entropy_shape shape = loss_shape(rows, cols);
    double *stats = array_new(rows * SHARD_CE_STATS, SHARD_FLOAT64);
    RUN(device, cross_entropy_stats, &shape, a->array[0], NULL, a->array[1], a->array[2], stats, NULL, NULL, a->dtype);
    for (int64_t i = 0; i < rows * SHARD_CE_STATS; i++)
        array_put(a->array[3], i, a->dtype, stats[i] / (double)cols);
    array_free(stats, rows * SHARD_CE_STATS, SHARD_FLOAT64);
}

static shard_dtype parameter_dtype(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
}

static void layer_norm(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    shard_dtype parameters = parameter_dtype(a->dtype);
    double *mean = numbers(rows, 0), *rstd = numbers(rows, 0);
    void *gamma = array_noise(cols, parameters, 7, 0.5, 1), *beta = array_noise(cols, parameters, 8, 0.5, 1);
    RUN(device, layer_norm, rows, cols, a->array[0], gamma, beta, 1e-5, a->array[1], mean, rstd, a->dtype);
    array_free(gamma, cols, parameters);
    array_free(beta, cols, parameters);
    array_free(mean, rows, SHARD_FLOAT64);
    array_free(rstd, rows, SHARD_FLOAT64);
}

/* dgamma and dbeta stand in for two of dx's rows. */
static void layer_norm_backward(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    shard_dtype parameters = parameter_dtype(a->dtype);
    double *mean = numbers(rows, 2), *rstd = numbers(rows, 0.8);
    void *gamma = array_noise(cols, parameters, 7, 0.5, 1);
    void *dgamma = array_new(cols, parameters), *dbeta = array_new(cols, parameters);
    RUN(device, layer_norm_backward, rows, cols, a->array[0], gamma, mean, rstd, a->array[1], a->array[2], dgamma, dbeta,
        a->dtype);
    for (int64_t j = 0; j < cols; j += 2) {
        array_put(a->array[2], j, a->dtype, array_get(dgamma, j, parameters));
        array_put(a->array[2], j + cols, a->dtype, array_get(dbeta, j, parameters));
    }
    array_free(gamma, cols, parameters);
    array_free(dgamma, cols, parameters);
    array_free(dbeta, cols, parameters);
    array_free(mean, rows, SHARD_FLOAT64);
    array_free(rstd, rows, SHARD_FLOAT64);
}

enum { CHANNELS = 16 };

static void batch_norm(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    double *mean = numbers(CHANNELS, 2), *rstd = numbers(CHANNELS, 0.8);
    RUN(device, batch_norm, rows * cols / CHANNELS, CHANNELS, a->array[0], mean, rstd, NULL, NULL, a->array[1], true, a->array[2],
        a->dtype);
    array_free(mean, CHANNELS, SHARD_FLOAT64);
    array_free(rstd, CHANNELS, SHARD_FLOAT64);
}

static void batch_norm_backward(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    double *mean = numbers(CHANNELS, 2), *rstd = numbers(CHANNELS, 0.8), *sums = numbers(2 * CHANNELS, 1);
    int64_t n = rows * cols / CHANNELS;
    RUN(device, batch_norm_backward_sums, n, CHANNELS, a->array[0], a->array[1], a->array[2], mean, rstd, sums, NULL, NULL,
        a->dtype);
    RUN(device, batch_norm_backward, n, CHANNELS, a->array[0], a->array[1], a->array[2], mean, rstd, NULL, sums, (double)n,
        a->array[3], a->array[4], a->dtype);
    RUN(device, axpby, n * CHANNELS, 1, a->array[3], 1, a->array[4], a->dtype);
    array_free(mean, CHANNELS, SHARD_FLOAT64);
    array_free(rstd, CHANNELS, SHARD_FLOAT64);
    array_free(sums, 2 * CHANNELS, SHARD_FLOAT64);
}

static void max_pool(shard_device *device, int64_t rows, int64_t cols, const arrays *a)
{
    shard_pool_shape shape = {
        .n = 1, .h = rows, .w = cols / 32, .c = 16, .kh = 1, .kw = 3, .oh = rows, .stride_h = 1, .stride_w = 1};
    shape.ow = shape.w - 2;
    int64_t outputs = shape.oh * shape.ow * shape.c;
    int32_t *argmax = array_new(outputs, SHARD_INT32);
    RUN(device, max_pool, &shape, a->array[0], a->array[1], argmax, a->dtype);
    RUN(device, max_pool_backward, &shape, a->array[1], argmax, a->array[2], a->dtype);
    array_free(argmax, outputs, SHARD_INT32);
}

static const form forms[] = {
    {"softmax", 2, softmax},
    {"log softmax", 2, log_softmax},
    {"softmax backward", 3, softmax_backward},
    {"loss statistics", 4, loss_stats},
    {"loss backward", 4, loss_backward},
    {"layer norm", 2, layer_norm},
    {"layer norm backward", 3, layer_norm_backward},
    {"batch norm", 3, batch_norm},
    {"batch norm backward", 5, batch_norm_backward},
    {"max pool", 3, max_pool},
};
enum { FORMS = sizeof forms / sizeof *forms };

/* Whichever array begins late, the results are those of aligned arrays but for the order of sums. */
START_TEST(any_address)
{
    const form *f = &forms[_i % FORMS];
    shard_dtype dtype = _i < FORMS ? SHARD_FLOAT32 : SHARD_BFLOAT16;
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++) {
            int64_t rows = shapes[s][0], cols = shapes[s][1], n = rows * cols;
            arrays aligned = arrays_new(dtype, n, -1);
            f->run(device, rows, cols, &aligned);
            for (int late = 0; late < f->arrays; late++) {
                arrays a = arrays_new(dtype, n, late);
                f->run(device, rows, cols, &a);
                for (int64_t i = 0; i < n; i++) {
                    double want = array_get(aligned.array[f->arrays - 1], i, dtype);
                    check_close(dtype, array_get(a.array[f->arrays - 1], i, dtype), want,
                                fabs(want) * unit(dtype) + (64 + 16 * fabs(want)) * compute_unit(dtype), f->name, i);
                }
                arrays_free(&a);
            }
            arrays_free(&aligned);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_rows");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, a_million_columns, 0, 2);
    tcase_add_test(all, many_rows);
    tcase_add_loop_test(all, extreme_logits, 0, 4);
    tcase_add_loop_test(all, any_address, 0, 2 * FORMS);
    return test_run(suite);
}
