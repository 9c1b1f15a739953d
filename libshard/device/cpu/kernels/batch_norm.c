/*
 * Batch norm over [rows, channels]. Means and deviations are double. The mean is the sum of its float value, which
 * is subtracted first, and a rest, which goes into the constant term, so that float loses little of x - mean.
 */
#ifdef real

COLUMN_BODY(sum_squares)
{
    const double *shift = (const double *)context + s.offset;
    const real *x = in[0];
    double *sum = sums[0], *squares = sums[1];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++) {
        double d = (double)x[i] - shift[i];
        sum[i] += d;
        squares[i] += d * d;
    }
}

/* running = (1 - momentum) running + momentum now. */
static void R(follow)(double momentum, double now, real *running)
{
    *running = (real)((1 - momentum) * (double)*running + momentum * now);
}

static void R(statistics)(int64_t channels, double count, const double *shift, const double *sums, double eps, double momentum,
                          real *running_mean, real *running_var, double *mean, double *rstd)
{
    for (int64_t c = 0; c < channels; c++) {
        double off = count > 0 ? sums[c] / count : 0; /* of the mean from the shift */
        double squares = count > 0 ? sums[channels + c] - count * off * off : 0;
        squares = squares < 0 ? 0 : squares;
        mean[c] = (shift ? shift[c] : 0) + off;
        rstd[c] = 1 / sqrt((count > 0 ? squares / count : 0) + eps);
        if (running_mean && count > 0) {
            R(follow)(momentum, mean[c], &running_mean[c]);
            R(follow)(momentum, squares / (count - 1), &running_var[c]);
        }
    }
}

/* The parameters' gradients, those that are wanted. */
static void R(copy_sums)(int64_t channels, const double *sums, real *dgamma, real *dbeta)
{
    for (int64_t c = 0; c < channels; c++) {
        if (dbeta)
            dbeta[c] = (real)sums[c];
        if (dgamma)
            dgamma[c] = (real)sums[channels + c];
    }
}

static void R(recall)(int64_t channels, const real *running_mean, const real *running_var, double eps, double *mean, double *rstd)
{
    for (int64_t c = 0; c < channels; c++) {
        mean[c] = (double)running_mean[c];
        rstd[c] = 1 / sqrt((double)running_var[c] + eps);
    }
}

/* in: x, dy, y; dy counts unless y is 0 or less, so that a NaN is kept; everywhere without y. */
COLUMN_BODY(sum_gradients)
{
    const double *mean = (const double *)context + s.offset;
    const real *x = in[0], *dy = in[1], *y = in[2];
    double *sum = sums[0], *products = sums[1];
    if (y) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++) {
            real gradient = dy[i];
            double dz = (double)(y[i] <= 0 ? 0 : gradient);
            sum[i] += dz;
            products[i] += dz * ((double)x[i] - mean[i]);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++) {
            sum[i] += (double)dy[i];
            products[i] += (double)dy[i] * ((double)x[i] - mean[i]);
        }
    }
}

/* in: x, residual; y = scale * (x - center) + offset + residual. */
MAP_BODY(normalize)
{
    const terms *t = context;
    const real *center = (const real *)t->center + s.offset, *scale = (const real *)t->scale + s.offset;
    const real *offset = (const real *)t->offset + s.offset, *x = in[0], *residual = in[1];
    real *y = out[0], lowest = t->relu ? 0 : -INFINITY;
    if (residual) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++) {
            real value = scale[i] * (x[i] - center[i]) + offset[i] + residual[i];
            y[i] = lowest > value ? lowest : value;
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++) {
            real value = scale[i] * (x[i] - center[i]) + offset[i];
            y[i] = lowest > value ? lowest : value;
        }
    }
}

/* in: x, dy, y; out: dx, dresidual. dz is made in a buffer as dx may be dy. */
MAP_BODY(normalize_backward)
{
    const terms *t = context;
    const real *x = in[0], *dz = in[1], *y = in[2];
    real buffer[SPAN], *dx = out[0], *dresidual = out[1];
    if (y) {
        const real *dy = in[1];
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++) {
            real gradient = dy[i];
            buffer[i] = y[i] <= 0 ? 0 : gradient;
        }
        dz = buffer;
    }
    if (dresidual)
        memcpy(dresidual, dz, (size_t)s.count * sizeof *dz);
    if (dx) {
        const real *center = (const real *)t->center + s.offset, *scale = (const real *)t->scale + s.offset;
        const real *offset = (const real *)t->offset + s.offset, *slope = (const real *)t->slope + s.offset;
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            dx[i] = scale[i] * (dz[i] - offset[i] - (x[i] - center[i]) * slope[i]);
    }
}

/* The terms of the forward or, with sums, of the backward. */
static void R(fill_terms)(int64_t channels, int64_t period, const double *mean, const double *rstd, const real *gamma,
                          const real *beta, const double *sums, double count, const terms *t)
{
    real *center = t->center, *scale = t->scale, *offset = t->offset, *slope = t->slope;
    for (int64_t i = 0, c = 0; i < period; i++, c = c + 1 == channels ? 0 : c + 1) {
        double factor = (gamma ? (double)gamma[c] : 1) * rstd[c];
        center[i] = (real)mean[c];
        scale[i] = (real)factor;
        double rest = (double)center[i] - mean[c];
        if (sums) {
            double correlation = count > 0 ? rstd[c] * sums[channels + c] / count : 0;
            offset[i] = (real)((count > 0 ? sums[c] / count : 0) + rest * correlation);
            slope[i] = (real)correlation;
        } else {
            offset[i] = (real)((beta ? (double)beta[c] : 0) + rest * factor);
        }
    }
}

#else

#include "device/cpu/kernels/map.h"

#include <math.h>
#include <string.h>

/* Values of type `real` for each channel, repeated to one period. */
typedef struct terms {
    void *center, *scale, *offset, *slope;
    bool relu;
} terms;

#define SELF "batch_norm.c"
#include "device/cpu/kernels/real.h"

enum { TERMS = 4 };

static shard_status allocate_terms(shard_device *device, int64_t period, terms *t)
{
    size_t bytes = (size_t)period * sizeof(double);
    char *memory = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, TERMS * bytes);
    if (!memory)
        return shard_last_status();
    *t = (terms){.center = memory, .scale = memory + bytes, .offset = memory + 2 * bytes, .slope = memory + 3 * bytes};
    return SHARD_OK;
}

static void release_terms(shard_device *device, int64_t period, const terms *t)
{
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, t->center, TERMS * (size_t)period * sizeof(double));
}

/* values [channels] repeated to the period, or zeros if they are NULL. */
static double *repeat(shard_device *device, int64_t channels, int64_t period, const double *values)
{
    double *repeated = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, (size_t)period * sizeof(double));
    for (int64_t i = 0; repeated && i < period; i++)
        repeated[i] = i >= channels ? repeated[i - channels] : values ? values[i] : 0;
    return repeated;
}

shard_status KERNEL(batch_norm_sums)(shard_device *device, int64_t rows, int64_t channels, const void *x, const double *shift,
                                     double *sums, shard_dtype dtype)
{
    if (channels == 0)
        return SHARD_OK;
    int64_t period = wide_period(channels);
    double *repeated = repeat(device, channels, period, shift);
    if (!repeated)
        return shard_last_status();
    column_sums job = {
        .dtype = dtype, .n = rows * channels, .columns = channels, .period = period, .in = {x}, .context = repeated, .count = 2};
    shard_status status = SUM_COLUMNS(device, &job, sum_squares, sums);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, repeated, (size_t)period * sizeof(double));
    return status;
}

shard_status KERNEL(batch_norm_unshift)(shard_device *device, int64_t rows, int64_t channels, const double *shift, double *sums)
{
    (void)device;
    double n = (double)rows;
    for (int64_t c = 0; shift && rows && c < channels; c++) {
        double off = sums[c] / n, mean = shift[c] + off;
        sums[channels + c] = sums[channels + c] - n * off * off + n * mean * mean;
        sums[c] = n * mean;
    }
    return SHARD_OK;
}

shard_status KERNEL(batch_norm_statistics)(shard_device *device, int64_t channels, double count, const double *shift,
                                           const double *sums, double eps, double momentum, void *running_mean, void *running_var,
                                           double *mean, double *rstd, shard_dtype dtype)
{
    (void)device;
    BY_TYPE(dtype, statistics, channels, count, shift, sums, eps, momentum, running_mean, running_var, mean, rstd);
    return SHARD_OK;
}

shard_status KERNEL(batch_norm_measure)(shard_device *device, int64_t rows, int64_t channels, const void *x, double eps,
                                        double momentum, void *running_mean, void *running_var, double *mean, double *rstd,
                                        shard_dtype dtype)
{
    size_t bytes = 3 * (size_t)(channels ? channels : 1) * sizeof(double);
    double *sums = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    double *shift = rows && sums ? sums + 2 * channels : NULL;
    if (!sums)
        return shard_last_status();
    shard_status status = shift ? device->ops->cast(device, channels, x, dtype, shift, SHARD_FLOAT64) : SHARD_OK;
    if (status == SHARD_OK)
        status = KERNEL(batch_norm_sums)(device, rows, channels, x, shift, sums, dtype);
    if (status == SHARD_OK)
        status = KERNEL(batch_norm_statistics)(device, channels, (double)rows, shift, sums, eps, momentum, running_mean,
                                               running_var, mean, rstd, dtype);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, sums, bytes);
    return status;
}

shard_status KERNEL(batch_norm_recall)(shard_device *device, int64_t channels, const void *running_mean, const void *running_var,
                                       double eps, double *mean, double *rstd, shard_dtype dtype)
{
    (void)device;
    BY_TYPE(dtype, recall, channels, running_mean, running_var, eps, mean, rstd);
    return SHARD_OK;
}

shard_status KERNEL(batch_norm_backward_sums)(shard_device *device, int64_t rows, int64_t channels, const void *x, const void *y,
                                              const void *dy, const double *mean, const double *rstd, double *sums, void *dgamma,
                                              void *dbeta, shard_dtype dtype)
{
    if (channels == 0)
        return SHARD_OK;
    int64_t period = wide_period(channels);
    double *repeated = repeat(device, channels, period, mean);
    if (!repeated)
        return shard_last_status();
    column_sums job = {.dtype = dtype,
                       .n = rows * channels,
                       .columns = channels,
                       .period = period,
                       .in = {x, dy, y},
                       .context = repeated,
                       .count = 2};
    shard_status status = SUM_COLUMNS(device, &job, sum_gradients, sums);
    for (int64_t c = 0; status == SHARD_OK && c < channels; c++)
        sums[channels + c] *= rstd[c];
    if (status == SHARD_OK)
        BY_TYPE(dtype, copy_sums, channels, sums, dgamma, dbeta);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, repeated, (size_t)period * sizeof(double));
    return status;
}

shard_status KERNEL(batch_norm)(shard_device *device, int64_t rows, int64_t channels, const void *x, const double *mean,
                                const double *rstd, const void *gamma, const void *beta, const void *residual, bool relu, void *y,
                                shard_dtype dtype)
{
    map job = {.dtype = dtype, .n = rows * channels, .period = wide_period(channels), .in = {x, residual}, .out = {y}};
    if (job.n == 0)
        return SHARD_OK;
    terms t;
    if (allocate_terms(device, job.period, &t) != SHARD_OK)
        return shard_last_status();
    BY_TYPE(dtype, fill_terms, channels, job.period, mean, rstd, gamma, beta, NULL, 0, &t);
    t.relu = relu;
    job.context = &t;
    MAP(&job, normalize);
    release_terms(device, job.period, &t);
    return SHARD_OK;
}

shard_status KERNEL(batch_norm_backward)(shard_device *device, int64_t rows, int64_t channels, const void *x, const void *y,
                                         const void *dy, const double *mean, const double *rstd, const void *gamma,
                                         const double *sums, double count, void *dx, void *dresidual, shard_dtype dtype)
{
    map job = {.dtype = dtype, .n = rows * channels, .period = wide_period(channels), .in = {x, dy, y}, .out = {dx, dresidual}};
    if (job.n == 0)
        return SHARD_OK;
    terms t;
    if (allocate_terms(device, job.period, &t) != SHARD_OK)
        return shard_last_status();
    BY_TYPE(dtype, fill_terms, channels, job.period, mean, rstd, gamma, NULL, sums, count, &t);
    job.context = &t;
    MAP(&job, normalize_backward);
    release_terms(device, job.period, &t);
    return SHARD_OK;
}

#endif
