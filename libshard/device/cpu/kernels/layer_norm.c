#ifdef real

/* The row's mean and 1 / sqrt(variance + eps), in two passes. */
static void R(measure)(const void *context, int64_t row)
{
    const norm *l = context;
    real buffer[SPAN];
    double sum = 0, squares = 0;
    for (int64_t start = 0; start < l->cols; start += SPAN) {
        int64_t count = shard_min(SPAN, l->cols - start);
        const real *x = R(load)(l->dtype, l->x, row * l->cols + start, count, buffer);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += (double)x[i];
    }
    double mean = sum / (double)l->cols;
    for (int64_t start = 0; start < l->cols; start += SPAN) {
        int64_t count = shard_min(SPAN, l->cols - start);
        const real *x = R(load)(l->dtype, l->x, row * l->cols + start, count, buffer);
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < count; i++) {
            double d = (double)x[i] - mean;
            squares += d * d;
        }
    }
    l->mean[row] = mean;
    l->rstd[row] = 1 / sqrt(squares / (double)l->cols + l->eps);
}

/* The constant has the digits of the mean that float loses. */
MAP_BODY(normalize)
{
    const norm *l = context;
    int64_t row = s.start / l->cols;
    real center = (real)l->mean[row], rstd = (real)l->rstd[row];
    real rest = (real)(((double)center - l->mean[row]) * l->rstd[row]);
    const real *x = in[0];
    real *y = out[0];
    if (l->gamma) {
        const real *gamma = (const real *)l->gamma + s.offset, *beta = (const real *)l->beta + s.offset;
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            y[i] = ((x[i] - center) * rstd + rest) * gamma[i] + beta[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            y[i] = (x[i] - center) * rstd + rest;
    }
}

/* The row's means of g and g * xhat, with g = gamma * dy. */
static void R(measure_gradient)(const void *context, int64_t row)
{
    const norm *l = context;
    real x_buffer[SPAN], dy_buffer[SPAN];
    double mean = l->mean[row], sum = 0, products = 0;
    for (int64_t start = 0; start < l->cols; start += SPAN) {
        int64_t count = shard_min(SPAN, l->cols - start), from = row * l->cols + start;
        const real *x = R(load)(l->dtype, l->x, from, count, x_buffer), *dy = R(load)(l->dtype, l->dy, from, count, dy_buffer);
        const real *gamma = l->gamma ? (const real *)l->gamma + start : NULL;
#pragma omp simd reduction(+ : sum, products)
        for (int64_t i = 0; i < count; i++) {
            double g = (double)dy[i] * (gamma ? (double)gamma[i] : 1);
            sum += g;
            products += g * ((double)x[i] - mean);
        }
    }
    l->sums[2 * row] = sum / (double)l->cols;
    l->sums[2 * row + 1] = products * l->rstd[row] / (double)l->cols;
}

/* dx = rstd (g - mean g - xhat mean (g xhat)); in: x, dy. */
MAP_BODY(normalize_backward)
{
    const norm *l = context;
    int64_t row = s.start / l->cols;
    real center = (real)l->mean[row], rstd = (real)l->rstd[row];
    double correlation = l->sums[2 * row + 1] * l->rstd[row];
    real slope = (real)correlation;
    real constant = (real)(l->sums[2 * row] + ((double)center - l->mean[row]) * correlation);
    const real *x = in[0], *dy = in[1], *gamma = l->gamma ? (const real *)l->gamma + s.offset : NULL;
    real *dx = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        dx[i] = rstd * (dy[i] * (gamma ? gamma[i] : 1) - constant - (x[i] - center) * slope);
}

/* Of dy and dy * xhat; in: x, dy. A span is within one row. */
COLUMN_BODY(sum_parameters)
{
    const norm *l = context;
    int64_t row = s.start / l->cols;
    double mean = l->mean[row], rstd = l->rstd[row], *sum = sums[0], *products = sums[1];
    const real *x = in[0], *dy = in[1];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        sum[i] += (double)dy[i];
        products[i] += (double)dy[i] * (((double)x[i] - mean) * rstd);
    }
}

static void R(store_parameters)(int64_t cols, const double *sums, real *dgamma, real *dbeta)
{
    for (int64_t c = 0; c < cols; c++) {
        dbeta[c] = (real)sums[c];
        dgamma[c] = (real)sums[cols + c];
    }
}

#else

/* Layer norm over the rows of [rows, cols]. */
#include "device/cpu/kernels/map.h"

#include <math.h>

typedef struct norm {
    shard_dtype dtype;
    int64_t cols;
    double eps;
    const void *x, *dy, *gamma, *beta; /* gamma and beta of type `real` */
    double *mean, *rstd;
    double *sums; /* two a row */
} norm;

#define SELF "layer_norm.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(layer_norm)(shard_device *device, int64_t rows, int64_t cols, const void *x, const void *gamma,
                                const void *beta, double eps, void *y, double *mean, double *rstd, shard_dtype dtype)
{
    (void)device;
    norm l = {.dtype = dtype, .cols = cols, .eps = eps, .x = x, .gamma = gamma, .beta = beta, .mean = mean, .rstd = rstd};
    map job = {.dtype = dtype,
               .n = rows * cols,
               .period = cols,
               .in = {x},
               .out = {y},
               .context = &l,
               .before = dtype == SHARD_FLOAT64 ? measure_double : measure_float};
    MAP(&job, normalize);
    return SHARD_OK;
}

static shard_status backward_data(shard_device *device, int64_t rows, norm *l, void *dx)
{
    map job = {.dtype = l->dtype,
               .n = rows * l->cols,
               .period = l->cols,
               .in = {l->x, l->dy},
               .out = {dx},
               .context = l,
               .before = l->dtype == SHARD_FLOAT64 ? measure_gradient_double : measure_gradient_float};
    if (job.n == 0)
        return SHARD_OK;
    size_t bytes = 2 * (size_t)rows * sizeof(double);
    l->sums = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!l->sums)
        return shard_last_status();
    MAP(&job, normalize_backward);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, l->sums, bytes);
    return SHARD_OK;
}

static shard_status backward_parameters(shard_device *device, int64_t rows, const norm *l, void *dgamma, void *dbeta)
{
    if (l->cols == 0)
        return SHARD_OK;
    size_t bytes = 2 * (size_t)l->cols * sizeof(double);
    double *sums = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!sums)
        return shard_last_status();
    column_sums job = {.dtype = l->dtype,
                       .n = rows * l->cols,
                       .columns = l->cols,
                       .period = l->cols,
                       .in = {l->x, l->dy},
                       .context = l,
                       .count = 2};
    shard_status status = SUM_COLUMNS(device, &job, sum_parameters, sums);
    if (status == SHARD_OK)
        BY_TYPE(l->dtype, store_parameters, l->cols, sums, dgamma, dbeta);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, sums, bytes);
    return status;
}

/* The parameters' gradients first: dx may be dy. */
shard_status KERNEL(layer_norm_backward)(shard_device *device, int64_t rows, int64_t cols, const void *x, const void *gamma,
                                         const double *mean, const double *rstd, const void *dy, void *dx, void *dgamma,
                                         void *dbeta, shard_dtype dtype)
{
    norm l = {.dtype = dtype, .cols = cols, .x = x, .dy = dy, .gamma = gamma, .mean = (double *)mean, .rstd = (double *)rstd};
    shard_status status = gamma ? backward_parameters(device, rows, &l, dgamma, dbeta) : SHARD_OK;
    if (status == SHARD_OK && dx)
        status = backward_data(device, rows, &l, dx);
    return status;
}

#endif
