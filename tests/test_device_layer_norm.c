/* Layer norm, forward and backward, against long double loops. */
#include "support/check.h"
#include "support/kernels.h"

#include <stdlib.h>

static const int64_t shapes[][2] = {{0, 5}, {5, 0}, {1, 1}, {3, 7}, {200, 64}, {65, 513}, {9, 5000}, {1, 2049}, {2, 20001}};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const double eps = 1e-5;

static shard_dtype parameter_dtype(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
}

static void row_statistics(const void *x, int64_t row, int64_t cols, shard_dtype dtype, long double *mean, long double *rstd)
{
    long double sum = 0, squares = 0;
    for (int64_t j = 0; j < cols; j++)
        sum += array_get(x, row * cols + j, dtype);
    for (int64_t j = 0; j < cols; j++) {
        long double d = array_get(x, row * cols + j, dtype) - sum / cols;
        squares += d * d;
    }
    *mean = sum / cols;
    *rstd = 1 / sqrtl(squares / cols + eps);
}

START_TEST(forward)
{
    shard_dtype dtype = float_dtypes[_i], parameters = parameter_dtype(dtype);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++)
            for (int affine = 0; affine < 2; affine++) {
                int64_t rows = shapes[s][0], cols = shapes[s][1], n = rows * cols;
                void *x = array_noise(n, dtype, 1, 9, 12), *y = array_new(n, dtype);
                void *gamma = array_noise(cols, parameters, 2, 0.5, 2), *beta = array_noise(cols, parameters, 3, -1, 1);
                double *mean = array_new(rows, SHARD_FLOAT64), *rstd = array_new(rows, SHARD_FLOAT64);
                RUN(device, layer_norm, rows, cols, x, affine ? gamma : NULL, affine ? beta : NULL, eps, y, mean, rstd, dtype);
                long double m = 0, r = 0;
                for (int64_t i = 0; i < n; i++) {
                    if (i % cols == 0)
                        row_statistics(x, i / cols, cols, dtype, &m, &r);
                    check_close(SHARD_FLOAT64, mean[i / cols], m, m * 1e-14L, "mean", i);
                    /* The variance's error grows with the mean's square over eps where all are equal. */
                    check_close(SHARD_FLOAT64, rstd[i / cols], r, r * (cols == 1 ? 1e-9L : 1e-13L), "rstd", i);
                    long double want = ((long double)array_get(x, i, dtype) - m) * r;
                    if (affine)
                        want = want * array_get(gamma, i % cols, parameters) + array_get(beta, i % cols, parameters);
                    /* Of the mean, about 10: its rounding in float, its sum's in double. */
                    long double units = 64 + (dtype == SHARD_FLOAT64 ? 16 * sqrtl(cols) : 0);
                    check_close(dtype, array_get(y, i, dtype), want, units * compute_unit(dtype), device->name, i);
                }
                array_free(x, n, dtype);
                array_free(y, n, dtype);
                array_free(gamma, cols, parameters);
                array_free(beta, cols, parameters);
                array_free(mean, rows, SHARD_FLOAT64);
                array_free(rstd, rows, SHARD_FLOAT64);
            }
}
END_TEST

typedef struct problem {
    shard_dtype dtype, parameters;
    int64_t rows, cols;
    void *x, *dy, *gamma;
    double *mean, *rstd;
} problem;

static long double normalized(const problem *p, int64_t i)
{
    int64_t row = i / p->cols;
    return ((long double)array_get(p->x, i, p->dtype) - p->mean[row]) * p->rstd[row];
}

static void check_dx(shard_device *device, const problem *p, bool affine, const void *dx)
{
    for (int64_t row = 0; row < p->rows; row++) {
        long double sum = 0, products = 0;
        for (int64_t j = 0, i = row * p->cols; j < p->cols; j++, i++) {
            long double g = array_get(p->dy, i, p->dtype) * (affine ? (long double)array_get(p->gamma, j, p->parameters) : 1);
            sum += g / p->cols;
            products += g * normalized(p, i) / p->cols;
        }
        for (int64_t j = 0, i = row * p->cols; j < p->cols; j++, i++) {
            long double g = array_get(p->dy, i, p->dtype) * (affine ? (long double)array_get(p->gamma, j, p->parameters) : 1);
            long double want = p->rstd[row] * (g - sum - normalized(p, i) * products);
            check_close(p->dtype, array_get(dx, i, p->dtype), want, 64 * compute_unit(p->dtype), device->name, i);
        }
    }
}

START_TEST(backward)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++)
            for (int affine = 0; affine < 2; affine++) {
                problem p = {.dtype = dtype, .parameters = parameter_dtype(dtype), .rows = shapes[s][0], .cols = shapes[s][1]};
                int64_t n = p.rows * p.cols;
                p.x = array_noise(n, dtype, 1, -1, 3);
                p.dy = array_noise(n, dtype, 2, -1, 1);
                p.gamma = array_noise(p.cols, p.parameters, 3, 0.5, 2);
                p.mean = array_noise(p.rows, SHARD_FLOAT64, 4, 0.8, 1.2);
                p.rstd = array_noise(p.rows, SHARD_FLOAT64, 5, 0.8, 1.2);
                void *dx = array_new(n, dtype), *dgamma = array_new(p.cols, p.parameters),
                     *dbeta = array_new(p.cols, p.parameters);
                void *gamma = affine ? p.gamma : NULL;
                RUN(device, layer_norm_backward, p.rows, p.cols, p.x, gamma, p.mean, p.rstd, p.dy, dx, affine ? dgamma : NULL,
                    affine ? dbeta : NULL, dtype);
                check_dx(device, &p, affine, dx);
                if (affine) { /* those alone are the same */
                    memset(dgamma, 0xff, (size_t)p.cols * shard_dtype_size(p.parameters));
                    memset(dbeta, 0xff, (size_t)p.cols * shard_dtype_size(p.parameters));
                    RUN(device, layer_norm_backward, p.rows, p.cols, p.x, gamma, p.mean, p.rstd, p.dy, NULL, dgamma, dbeta,
                        dtype);
                }
                for (int64_t j = 0; affine && j < p.cols; j++) {
                    long double sum = 0, products = 0;
                    for (int64_t i = j; i < n; i += p.cols) {
                        sum += array_get(p.dy, i, dtype);
                        products += array_get(p.dy, i, dtype) * normalized(&p, i);
                    }
                    check_close(p.parameters, array_get(dbeta, j, p.parameters), sum, p.rows * 1e-15L, device->name, j);
                    check_close(p.parameters, array_get(dgamma, j, p.parameters), products, p.rows * 4e-15L, device->name, j);
                }
                array_free(p.x, n, dtype);
                array_free(p.dy, n, dtype);
                array_free(dx, n, dtype);
                array_free(p.gamma, p.cols, p.parameters);
                array_free(dgamma, p.cols, p.parameters);
                array_free(dbeta, p.cols, p.parameters);
                array_free(p.mean, p.rows, SHARD_FLOAT64);
                array_free(p.rstd, p.rows, SHARD_FLOAT64);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_layer_norm");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, forward, 0, 4);
    tcase_add_loop_test(all, backward, 0, 4);
    return test_run(suite);
}
