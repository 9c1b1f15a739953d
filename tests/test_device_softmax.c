/* Softmax and its logarithm, both ways, against long double; extreme rows. */
#include "support/check.h"
#include "support/kernels.h"

static const int64_t shapes[][2] = {{0, 5}, {5, 0}, {1, 1}, {300, 10}, {70, 1000}, {3, 1025}, {2, 6001}, {2, 40001}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The row's maximum and the sum of its exponentials relative to it. */
static void row_sums(const void *x, int64_t row, int64_t cols, shard_dtype dtype, long double *max, long double *sum)
{
    *max = -INFINITY;
    *sum = 0;
    for (int64_t j = 0; j < cols; j++)
        *max = fmaxl(*max, array_get(x, row * cols + j, dtype));
    for (int64_t j = 0; j < cols; j++)
        *sum += expl(array_get(x, row * cols + j, dtype) - *max);
}

/* Of a row's sum and what follows, relative: float's is taken in lanes and
 * spans, double's one after the other. */
static long double sum_error(shard_dtype dtype)
{
    return (dtype == SHARD_FLOAT64 ? 128 : 16) * compute_unit(dtype);
}

START_TEST(forward)
{
    shard_dtype dtype = float_dtypes[_i / 2];
    bool logarithm = _i % 2;
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++) {
            int64_t rows = shapes[s][0], cols = shapes[s][1], n = rows * cols;
            void *x = array_noise(n, dtype, 1, -20, 20), *y = array_new(n, dtype);
            RUN(device, softmax, logarithm, rows, cols, x, y, dtype);
            for (int64_t row = 0; row < rows; row++) {
                long double max, sum, u = compute_unit(dtype), error = sum_error(dtype);
                row_sums(x, row, cols, dtype, &max, &sum);
                for (int64_t i = row * cols; i < (row + 1) * cols; i++) {
                    /* The difference is rounded, which exp turns into as many units as it is large. */
                    long double d = array_get(x, i, dtype) - max, p = expl(d) / sum;
                    if (logarithm)
                        check_close(dtype, array_get(y, i, dtype), d - logl(sum), error + 2 * fabsl(d) * u, device->name, i);
                    else
                        check_close(dtype, array_get(y, i, dtype), p, p * (error + fabsl(d) * u), device->name, i);
                }
            }
            RUN(device, softmax, logarithm, rows, cols, x, x, dtype);
            check_same(dtype, n, x, y, "in place");
            array_free(x, n, dtype);
            array_free(y, n, dtype);
        }
}
END_TEST

START_TEST(backward)
{
    shard_dtype dtype = float_dtypes[_i / 2];
    bool logarithm = _i % 2;
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++) {
            int64_t rows = shapes[s][0], cols = shapes[s][1], n = rows * cols;
            void *y = logarithm ? array_noise(n, dtype, 1, -12, -2) : array_noise(n, dtype, 1, 0, 0.1);
            void *dy = array_noise(n, dtype, 2, -1, 1), *dx = array_new(n, dtype);
            RUN(device, softmax_backward, logarithm, rows, cols, y, dy, dx, dtype);
            for (int64_t row = 0; row < rows; row++) {
                long double sum = 0, size = 0;
                for (int64_t i = row * cols; i < (row + 1) * cols; i++) {
                    long double term = (logarithm ? 1 : (long double)array_get(y, i, dtype)) * array_get(dy, i, dtype);
                    sum += term;
                    size += fabsl(term);
                }
                for (int64_t i = row * cols; i < (row + 1) * cols; i++) {
                    long double out = array_get(y, i, dtype), gradient = array_get(dy, i, dtype);
                    long double factor = logarithm ? expl(out) : out;
                    long double want = logarithm ? gradient - factor * sum : factor * (gradient - sum);
                    long double error = (8 + factor * size * 16) * compute_unit(dtype);
                    check_close(dtype, array_get(dx, i, dtype), want, error, device->name, i);
                }
            }
            RUN(device, softmax_backward, logarithm, rows, cols, y, dy, dy, dtype);
            check_same(dtype, n, dx, dy, "in place");
            array_free(y, n, dtype);
            array_free(dy, n, dtype);
            array_free(dx, n, dtype);
        }
}
END_TEST

/* A maximum that grows from span to span; -inf alone, among others and at first; NaN. */
START_TEST(extreme_rows)
{
    enum { COLS = 5000 };
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        void *x = array_new(COLS, dtype), *y = array_new(COLS, dtype);
        for (int form = 0; form < 5; form++) {
            for (int64_t j = 0; j < COLS; j++)
                array_put(x, j, dtype,
                          form == 0   ? (double)(j / 1000) * 50 - 300
                          : form == 1 ? (j < 3000 ? -INFINITY : (double)(j % 7))
                          : form == 2 ? (j == 4000 ? 60000 : -60000)
                          : form == 3 ? -INFINITY
                          : j == 17   ? NAN
                                      : 1);
            RUN(device, softmax, false, 1, COLS, x, y, dtype);
            long double max, sum;
            row_sums(x, 0, COLS, dtype, &max, &sum);
            for (int64_t j = 0; j < COLS; j++) {
                long double want = form >= 3 ? NAN : expl(array_get(x, j, dtype) - max) / sum;
                check_close(dtype, array_get(y, j, dtype), want, want * sum_error(dtype) + 0x1p-124L, device->name, j);
            }
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_softmax");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, forward, 0, 8);
    tcase_add_loop_test(all, backward, 0, 8);
    tcase_add_loop_test(all, extreme_rows, 0, 4);
    return test_run(suite);
}
