/* Batch norm's kernels against long double loops, and the accuracy of the statistics
 * that ranks add up. */
#include "support/check.h"
#include "support/kernels.h"
#include "support/threads.h"

#include <stdlib.h>

static const int64_t shapes[][2] = {{0, 3},    {4, 0},     {1, 1},     {50, 1},   {31, 3},  {2000, 64},
                                    {700, 65}, {129, 512}, {40, 1030}, {5, 4096}, {9001, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static shard_dtype parameter_dtype(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
}

/* One case: inputs, and per channel a mean and a deviation that fit them. */
typedef struct problem {
    shard_dtype dtype, parameters;
    int64_t rows, channels, n;
    void *x, *y, *dy, *residual, *gamma, *beta;
    double *mean, *rstd;
} problem;

static problem problem_new(shard_dtype dtype, const int64_t *shape)
{
    problem p = {.dtype = dtype, .parameters = parameter_dtype(dtype), .rows = shape[0], .channels = shape[1]};
    p.n = p.rows * p.channels;
    p.x = array_noise(p.n, dtype, 1, -1, 3);
    p.y = array_noise(p.n, dtype, 2, -1, 1);
    p.dy = array_noise(p.n, dtype, 3, -1, 1);
    p.residual = array_noise(p.n, dtype, 4, -1, 1);
    p.gamma = array_noise(p.channels, p.parameters, 5, 0.5, 2);
    p.beta = array_noise(p.channels, p.parameters, 6, -1, 1);
    p.mean = array_noise(p.channels, SHARD_FLOAT64, 7, 0.7, 1.2);
    p.rstd = array_noise(p.channels, SHARD_FLOAT64, 8, 0.7, 1.2);
    for (int64_t i = 0; i < p.n; i += 7)
        array_put(p.y, i, dtype, i % 3 ? 0 : NAN);
    return p;
}

static void problem_free(problem *p)
{
    array_free(p->x, p->n, p->dtype);
    array_free(p->y, p->n, p->dtype);
    array_free(p->dy, p->n, p->dtype);
    array_free(p->residual, p->n, p->dtype);
    array_free(p->gamma, p->channels, p->parameters);
    array_free(p->beta, p->channels, p->parameters);
    array_free(p->mean, p->channels, SHARD_FLOAT64);
    array_free(p->rstd, p->channels, SHARD_FLOAT64);
}

START_TEST(forward_sums)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++)
            for (int shifted = 0; shifted < 2; shifted++) {
                problem p = problem_new(dtype, shapes[s]);
                double *sums = array_new(2 * p.channels, SHARD_FLOAT64);
                const double *shift = shifted ? p.mean : NULL;
                RUN(device, batch_norm_sums, p.rows, p.channels, p.x, shift, sums, dtype);
                for (int64_t c = 0; c < p.channels; c++) {
                    long double sum = 0, squares = 0, size = 0;
                    for (int64_t i = c; i < p.n; i += p.channels) {
                        long double d = (long double)array_get(p.x, i, dtype) - (shift ? shift[c] : 0);
                        sum += d;
                        squares += d * d;
                        size += fabsl(d);
                    }
                    check_close(SHARD_FLOAT64, sums[c], sum, size * 1e-14L, device->name, c);
                    check_close(SHARD_FLOAT64, sums[p.channels + c], squares, squares * 1e-14L, device->name, c);
                }
                array_free(sums, 2 * p.channels, SHARD_FLOAT64);
                problem_free(&p);
            }
}
END_TEST

/* Four ranks' sums give the mean and the variance that one rank's give, and
 * both are right, to 1e-12 for float32. */
START_TEST(split_statistics)
{
    enum { ROWS = 20000, CHANNELS = 64 };
    shard_device *device;
    float *x = array_noise(ROWS * CHANNELS, SHARD_FLOAT32, 1, 2, 4);
    double *shift = array_new(CHANNELS, SHARD_FLOAT64);
    double *whole = array_new(2 * CHANNELS, SHARD_FLOAT64), *part = array_new(2 * CHANNELS, SHARD_FLOAT64);
    for (int c = 0; c < CHANNELS; c++)
        shift[c] = 3.01;
    for (int set = 0; (device = kernel_device(set)); set++) {
        double added[2 * CHANNELS] = {0};
        RUN(device, batch_norm_sums, ROWS, CHANNELS, x, shift, whole, SHARD_FLOAT32);
        for (int rank = 0; rank < 4; rank++) {
            RUN(device, batch_norm_sums, ROWS / 4, CHANNELS, x + rank * (ROWS / 4 * CHANNELS), shift, part, SHARD_FLOAT32);
            for (int c = 0; c < 2 * CHANNELS; c++)
                added[c] += part[c];
        }
        for (int c = 0; c < CHANNELS; c++) {
            long double mean = 0, variance = 0;
            for (int64_t i = c; i < ROWS * CHANNELS; i += CHANNELS)
                mean += (long double)x[i] / ROWS;
            for (int64_t i = c; i < ROWS * CHANNELS; i += CHANNELS)
                variance += (x[i] - mean) * (x[i] - mean) / ROWS;
            const double *both[] = {whole, added};
            for (int k = 0; k < 2; k++) {
                double d = both[k][c] / ROWS, v = both[k][CHANNELS + c] / ROWS - d * d;
                ck_assert_msg(fabsl(shift[c] + d - mean) <= 1e-12L * mean, "%s: mean", device->name);
                ck_assert_msg(fabsl(v - variance) <= 1e-12L * variance, "%s: variance", device->name);
            }
        }
    }
}
END_TEST

/* Running statistics from `count` rows with these moments. */
static void check_running(shard_dtype parameters, const void *before, const void *now, int64_t c, long double momentum,
                          long double value)
{
    long double want = (1 - momentum) * array_get(before, c, parameters) + momentum * value;
    check_close(parameters, array_get(now, c, parameters), want, fabsl(want) * 1e-12L, "running", c);
}

/* Bits of form: a shift, running statistics, a group's sums (about 0). */
static void check_statistics(shard_device *device, shard_dtype dtype, int form)
{
    enum { ROWS = 301, CHANNELS = 300 };
    bool shifted = form & 1, runs = form & 2, group = form & 4;
    shard_dtype parameters = parameter_dtype(dtype);
    void *x = array_noise(ROWS * CHANNELS, dtype, 1, 1, 3);
    double *shift = shifted ? array_noise(CHANNELS, SHARD_FLOAT64, 2, 1.9, 2.1) : NULL;
    double *sums = array_new(2 * CHANNELS, SHARD_FLOAT64), *mean = array_new(CHANNELS, SHARD_FLOAT64);
    double *rstd = array_new(CHANNELS, SHARD_FLOAT64);
    void *before[] = {array_noise(CHANNELS, parameters, 3, -1, 1), array_noise(CHANNELS, parameters, 4, 1, 2)};
    void *running[] = {array_noise(CHANNELS, parameters, 3, -1, 1), array_noise(CHANNELS, parameters, 4, 1, 2)};
    RUN(device, batch_norm_sums, ROWS, CHANNELS, x, shift, sums, dtype);
    if (group)
        RUN(device, batch_norm_unshift, ROWS, CHANNELS, shift, sums);
    RUN(device, batch_norm_statistics, CHANNELS, ROWS, group ? NULL : shift, sums, 1e-3, 0.3, runs ? running[0] : NULL,
        runs ? running[1] : NULL, mean, rstd, dtype);
    for (int64_t c = 0; c < CHANNELS; c++) {
        long double m = 0, squares = 0;
        for (int64_t i = c; i < ROWS * CHANNELS; i += CHANNELS)
            m += (long double)array_get(x, i, dtype) / ROWS;
        for (int64_t i = c; i < ROWS * CHANNELS; i += CHANNELS)
            squares += (array_get(x, i, dtype) - m) * (array_get(x, i, dtype) - m);
        check_close(SHARD_FLOAT64, mean[c], m, 1e-13L, "mean", c);
        check_close(SHARD_FLOAT64, rstd[c], 1 / sqrtl(squares / ROWS + 1e-3L), 1e-12L, "rstd", c);
        check_running(parameters, before[0], running[0], c, runs ? 0.3L : 0, m);
        check_running(parameters, before[1], running[1], c, runs ? 0.3L : 0, squares / (ROWS - 1));
    }
    RUN(device, batch_norm_recall, CHANNELS, running[0], running[1], 1e-3, mean, rstd, dtype);
    for (int64_t c = 0; c < CHANNELS; c++) {
        check_close(SHARD_FLOAT64, mean[c], array_get(running[0], c, parameters), 0, "mean", c);
        check_close(SHARD_FLOAT64, rstd[c], 1 / sqrtl(array_get(running[1], c, parameters) + 1e-3L), 1e-15L, "rstd", c);
    }
}

START_TEST(statistics)
{
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int form = 0; form < 8; form++)
            check_statistics(device, float_dtypes[_i], form);
}
END_TEST

/* No rows: nothing to follow, and a variance of 0. A constant whose sums' rounding makes
 * the variance negative: 0 too. */
START_TEST(statistics_without_variance)
{
    shard_device *device;
    double *sums = array_of(2, SHARD_FLOAT64, (double[]){0, 0}), *shift = array_of(1, SHARD_FLOAT64, &(double){0.5});
    double *mean = array_new(1, SHARD_FLOAT64), *rstd = array_new(1, SHARD_FLOAT64);
    float *running = array_of(2, SHARD_FLOAT32, (float[]){3, 4});
    for (int set = 0; (device = kernel_device(set)); set++) {
        RUN(device, batch_norm_statistics, 1, 0, shift, sums, 0.25, 0.1, running, running + 1, mean, rstd, SHARD_FLOAT32);
        ck_assert(mean[0] == 0.5 && rstd[0] == 2 && running[0] == 3 && running[1] == 4);
        double *constant = array_of(2, SHARD_FLOAT64, (double[]){30, 299.99});
        RUN(device, batch_norm_statistics, 1, 3, NULL, constant, 0.25, 0.1, NULL, NULL, mean, rstd, SHARD_FLOAT32);
        ck_assert(mean[0] == 10 && rstd[0] == 2);
    }
}
END_TEST

/* One entry is the same bits as its parts: the running mean as shift, sums, statistics. */
START_TEST(measures_at_once)
{
    static const int64_t sizes[][2] = {{0, 3}, {1, 5}, {2000, 64}, {31, 3}, {40, 1030}, {3, 0}};
    shard_dtype dtype = float_dtypes[_i], parameters = parameter_dtype(dtype);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int form = 0; form < 12; form++) {
            int64_t rows = sizes[form / 2][0], channels = sizes[form / 2][1];
            bool runs = form & 1;
            void *x = array_noise(rows * channels, dtype, 1, 1, 3), *running[2][2];
            double *both[2][2], *shift = array_new(channels, SHARD_FLOAT64), *sums = array_new(2 * channels, SHARD_FLOAT64);
            for (int way = 0; way < 2; way++) {
                running[way][0] = array_noise(channels, parameters, 3, 1.9, 2.1);
                running[way][1] = array_noise(channels, parameters, 4, 1, 2);
                both[way][0] = array_new(channels, SHARD_FLOAT64);
                both[way][1] = array_new(channels, SHARD_FLOAT64);
            }
            if (rows) /* else there is no first row */
                RUN(device, cast, channels, x, dtype, shift, SHARD_FLOAT64);
            RUN(device, batch_norm_sums, rows, channels, x, rows ? shift : NULL, sums, dtype);
            RUN(device, batch_norm_statistics, channels, (double)rows, rows ? shift : NULL, sums, 1e-3, 0.3,
                runs ? running[0][0] : NULL, runs ? running[0][1] : NULL, both[0][0], both[0][1], dtype);
            RUN(device, batch_norm_measure, rows, channels, x, 1e-3, 0.3, runs ? running[1][0] : NULL,
                runs ? running[1][1] : NULL, both[1][0], both[1][1], dtype);
            for (int k = 0; k < 2; k++) {
                check_same(SHARD_FLOAT64, channels, both[0][k], both[1][k], k ? "rstd" : "mean");
                check_same(parameters, channels, running[0][k], running[1][k], k ? "running variance" : "running mean");
            }
        }
}
END_TEST

START_TEST(forward)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++)
            for (int form = 0; form < 8; form++) {
                problem p = problem_new(dtype, shapes[s]);
                bool affine = form & 1, residual = form & 2, relu = form & 4;
                void *out = array_new(p.n, dtype);
                RUN(device, batch_norm, p.rows, p.channels, p.x, p.mean, p.rstd, affine ? p.gamma : NULL, affine ? p.beta : NULL,
                    residual ? p.residual : NULL, relu, out, dtype);
                for (int64_t i = 0; i < p.n; i++) {
                    int64_t c = i % p.channels;
                    long double want = ((long double)array_get(p.x, i, dtype) - p.mean[c]) * p.rstd[c];
                    if (affine)
                        want = want * array_get(p.gamma, c, p.parameters) + array_get(p.beta, c, p.parameters);
                    if (residual)
                        want += array_get(p.residual, i, dtype);
                    if (relu && want < 0)
                        want = 0;
                    check_close(dtype, array_get(out, i, dtype), want, 24 * compute_unit(dtype), device->name, i);
                }
                array_free(out, p.n, dtype);
                problem_free(&p);
            }
}
END_TEST

/* dz as the kernels take it, and shard_relu: of a y that is NaN too. */
static long double gradient(const problem *p, int64_t i, bool relu)
{
    return relu && array_get(p->y, i, p->dtype) <= 0 ? 0 : array_get(p->dy, i, p->dtype);
}

static long double normalized(const problem *p, int64_t i)
{
    int64_t c = i % p->channels;
    return ((long double)array_get(p->x, i, p->dtype) - p->mean[c]) * p->rstd[c];
}

START_TEST(backward_sums)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++)
            for (int relu = 0; relu < 2; relu++) {
                problem p = problem_new(dtype, shapes[s]);
                double *sums = array_new(2 * p.channels, SHARD_FLOAT64);
                void *dgamma = array_new(p.channels, p.parameters), *dbeta = array_new(p.channels, p.parameters);
                RUN(device, batch_norm_backward_sums, p.rows, p.channels, p.x, relu ? p.y : NULL, p.dy, p.mean, p.rstd, sums,
                    relu ? NULL : dgamma, dbeta, dtype);
                for (int64_t c = 0; c < p.channels; c++) {
                    long double sum = 0, products = 0;
                    for (int64_t i = c; i < p.n; i += p.channels) {
                        sum += gradient(&p, i, relu);
                        products += gradient(&p, i, relu) * normalized(&p, i);
                    }
                    check_close(SHARD_FLOAT64, sums[c], sum, p.rows * 1e-15L, device->name, c);
                    check_close(SHARD_FLOAT64, sums[p.channels + c], products, p.rows * 4e-15L, device->name, c);
                    check_close(p.parameters, array_get(dbeta, c, p.parameters), sums[c], 0, "dbeta", c);
                    if (!relu)
                        check_close(p.parameters, array_get(dgamma, c, p.parameters), sums[p.channels + c], 0, "dgamma", c);
                }
                array_free(dgamma, p.channels, p.parameters);
                array_free(dbeta, p.channels, p.parameters);
                array_free(sums, 2 * p.channels, SHARD_FLOAT64);
                problem_free(&p);
            }
}
END_TEST

/* Bits of form: gamma, relu, dresidual, dx is dy, constant statistics, no dx. */
static void check_backward(shard_device *device, shard_dtype dtype, const int64_t *shape, int form)
{
    problem p = problem_new(dtype, shape);
    bool affine = form & 1, relu = form & 2, residual = form & 4, in_place = form & 8, no_dx = form & 32;
    double count = form & 16 ? 0 : 3 * (double)p.rows, *sums = array_noise(2 * p.channels, SHARD_FLOAT64, 9, -5, 5);
    void *dx = array_new(p.n, dtype), *dresidual = array_new(p.n, dtype), *out = no_dx ? NULL : dx;
    if (in_place && out) {
        RUN(device, cast, p.n, p.dy, dtype, dx, dtype);
    }
    RUN(device, batch_norm_backward, p.rows, p.channels, p.x, relu ? p.y : NULL, in_place && out ? dx : p.dy, p.mean, p.rstd,
        affine ? p.gamma : NULL, sums, count, out, residual ? dresidual : NULL, dtype);
    for (int64_t i = 0; i < p.n; i++) {
        int64_t c = i % p.channels;
        long double dz = gradient(&p, i, relu), want = dz;
        if (count > 0)
            want -= sums[c] / (long double)count + normalized(&p, i) * sums[p.channels + c] / (long double)count;
        want *= p.rstd[c] * (affine ? (long double)array_get(p.gamma, c, p.parameters) : 1);
        if (out)
            check_close(dtype, array_get(dx, i, dtype), want, 40 * compute_unit(dtype), device->name, i);
        if (residual)
            check_close(dtype, array_get(dresidual, i, dtype), dz, 0, device->name, i);
    }
    array_free(sums, 2 * p.channels, SHARD_FLOAT64);
    array_free(dx, p.n, dtype);
    array_free(dresidual, p.n, dtype);
    problem_free(&p);
}

START_TEST(backward)
{
    static const int forms[] = {0, 1, 2, 3, 4 | 3, 8 | 3, 8 | 4 | 3, 8 | 4, 16 | 3, 32 | 4 | 2};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++)
            for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
                check_backward(device, float_dtypes[_i], shapes[s], forms[f]);
}
END_TEST

/* A mean that is a thousand deviations away costs float nothing but the rounding of x itself. */
START_TEST(keeps_a_far_mean)
{
    enum { N = 1000 };
    double *mean = array_of(1, SHARD_FLOAT64, &(double){1000.123456789}), *rstd = array_of(1, SHARD_FLOAT64, &(double){1});
    shard_device *device;
    float *x = array_new(N, SHARD_FLOAT32), *y = array_new(N, SHARD_FLOAT32);
    for (int i = 0; i < N; i++)
        x[i] = (float)(*mean + noise(1, i));
    for (int set = 0; (device = kernel_device(set)); set++) {
        RUN(device, batch_norm, N, 1, x, mean, rstd, NULL, NULL, NULL, false, y, SHARD_FLOAT32);
        for (int i = 0; i < N; i++)
            check_close(SHARD_FLOAT32, (double)y[i], (long double)x[i] - *mean, 0x1p-24L, device->name, i);
    }
}
END_TEST

START_TEST(repeats_to_the_bit)
{
    enum { ROWS = 6007, CHANNELS = 48 };
    float *x = array_noise(ROWS * CHANNELS, SHARD_FLOAT32, 1, -1, 1);
    double *first = array_new(2 * CHANNELS, SHARD_FLOAT64), *again = array_new(2 * CHANNELS, SHARD_FLOAT64);
    shard_device *device = kernel_device(0);
    RUN(device, batch_norm_sums, ROWS, CHANNELS, x, NULL, first, SHARD_FLOAT32);
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int threads = 1; threads <= 5; threads++) {
            set_threads(threads);
            RUN(device, batch_norm_sums, ROWS, CHANNELS, x, NULL, again, SHARD_FLOAT32);
            check_same(SHARD_FLOAT64, 2 * CHANNELS, first, again, device->name);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_batch_norm");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, forward_sums, 0, 4);
    tcase_add_test(all, split_statistics);
    tcase_add_loop_test(all, statistics, 0, 4);
    tcase_add_test(all, statistics_without_variance);
    tcase_add_loop_test(all, measures_at_once, 0, 4);
    tcase_add_loop_test(all, forward, 0, 4);
    tcase_add_loop_test(all, backward_sums, 0, 4);
    tcase_add_loop_test(all, backward, 0, 4);
    tcase_add_test(all, keeps_a_far_mean);
    tcase_add_test(all, repeats_to_the_bit);
    return test_run(suite);
}
