#ifdef real

static void R(sum_row)(const void *context, int64_t row)
{
    const dim_sums *s = context;
    real buffer[SPAN], result;
    double total = 0;
    for (int64_t start = 0; start < s->axis.size; start += SPAN) {
        int64_t count = shard_min(SPAN, s->axis.size - start);
        const real *x = R(load)(s->dtype, s->from, row * s->axis.size + start, count, buffer);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += (double)x[i];
        total += sum;
    }
    real *y = R(place)(s->dtype, false, s->to, row, &result);
    *y = (real)(s->factor * total);
    R(store)(s->dtype, false, s->to, row, 1, y);
}

COLUMN_BODY(add_up)
{
    const real *x = in[0];
    double *sum = sums[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        sum[i] += (double)x[i];
}

MAP_BODY(finish)
{
    const scaled_sums *scaled = context;
    real *y = out[0];
    for (int64_t i = 0; i < s.count; i++)
        y[i] = (real)(scaled->factor * scaled->sum[s.start + i]);
}

static void R(sum_tile)(const void *context, int64_t outer, int64_t first, int64_t count)
{
    const dim_sums *s = context;
    int64_t at = outer * s->axis.size * s->axis.inner + first, to = outer * s->axis.inner + first;
    real buffer[SPAN], result[SPAN];
    double sum[SPAN];
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int64_t k = 0; k < s->axis.size; k++, at += s->axis.inner) {
        const real *x = R(load)(s->dtype, s->from, at, count, buffer);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            sum[i] += (double)x[i];
    }
    real *y = R(place)(s->dtype, false, s->to, to, result);
    for (int64_t i = 0; i < count; i++)
        y[i] = (real)(s->factor * sum[i]);
    R(store)(s->dtype, false, s->to, to, count, y);
}

static void R(spread_row)(const void *context, int64_t row)
{
    const dim_sums *s = context;
    real one, buffer[SPAN], value = *R(load)(s->dtype, s->from, row, 1, &one) * (real)s->factor;
    for (int64_t start = 0; start < s->axis.size; start += SPAN) {
        int64_t count = shard_min(SPAN, s->axis.size - start), to = row * s->axis.size + start;
        real *x = R(place)(s->dtype, false, s->to, to, buffer);
        for (int64_t i = 0; i < count; i++)
            x[i] = value;
        R(store)(s->dtype, false, s->to, to, count, x);
    }
}

static void R(spread_tile)(const void *context, int64_t outer, int64_t first, int64_t count)
{
    const dim_sums *s = context;
    int64_t to = outer * s->axis.size * s->axis.inner + first;
    real y_buffer[SPAN], buffer[SPAN], factor = (real)s->factor;
    const real *y = R(load)(s->dtype, s->from, outer * s->axis.inner + first, count, y_buffer);
    for (int64_t k = 0; k < s->axis.size; k++, to += s->axis.inner) {
        real *x = R(place)(s->dtype, false, s->to, to, buffer);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            x[i] = y[i] * factor;
        R(store)(s->dtype, false, s->to, to, count, x);
    }
}

#else

#include "device/cpu/kernels/axis.h"
#include "device/cpu/kernels/map.h"

#include <string.h>

/* Items of each_along that keep the threads busy. */
enum { ENOUGH_ITEMS = 64 };

typedef struct dim_sums {
    shard_dtype dtype;
    shard_axis axis;
    double factor;
    const void *from;
    void *to;
} dim_sums;

typedef struct scaled_sums {
    double factor;
    const double *sum;
} scaled_sums;

#define SELF "sum_dim.c"
#include "device/cpu/kernels/real.h"

/* Few and long sums: one matrix [size, inner] after the other, cut up by rows. */
static shard_status sum_matrices(shard_device *device, const shard_axis *axis, double factor, const void *x, void *y,
                                 shard_dtype dtype)
{
    size_t size = shard_dtype_size(dtype), bytes = (size_t)axis->inner * sizeof(double);
    int64_t n = axis->size * axis->inner;
    double *sum = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    shard_status status = sum ? SHARD_OK : shard_last_status();
    for (int64_t i = 0; i < axis->outer && status == SHARD_OK; i++) {
        const void *from = (const char *)x + (size_t)(i * n) * size;
        void *to = (char *)y + (size_t)(i * axis->inner) * size;
        column_sums job = {
            .dtype = dtype, .n = n, .columns = axis->inner, .period = wide_period(axis->inner), .in = {from}, .count = 1};
        status = SUM_COLUMNS(device, &job, add_up, sum);
        scaled_sums scaled = {factor, sum};
        map out = {.dtype = dtype, .n = axis->inner, .out = {to}, .context = &scaled};
        if (status == SHARD_OK)
            MAP(&out, finish);
    }
    if (sum)
        shard_device_release(device, SHARD_MEMORY_WORKSPACE, sum, bytes);
    return status;
}

shard_status KERNEL(sum_dim)(shard_device *device, const shard_axis *axis, double factor, const void *x, void *y,
                             shard_dtype dtype)
{
    if (axis->outer * shard_divide_up(axis->inner, SPAN) < ENOUGH_ITEMS && axis->size * axis->inner >= PARALLEL)
        return sum_matrices(device, axis, factor, x, y, dtype);
    dim_sums s = {.dtype = dtype, .axis = *axis, .factor = factor, .from = x, .to = y};
    EACH_ALONG(dtype, axis, &s, sum_row, sum_tile);
    return SHARD_OK;
}

shard_status KERNEL(spread_dim)(shard_device *device, const shard_axis *axis, double factor, const void *y, void *x,
                                shard_dtype dtype)
{
    (void)device;
    dim_sums s = {.dtype = dtype, .axis = *axis, .factor = factor, .from = y, .to = x};
    EACH_ALONG(dtype, axis, &s, spread_row, spread_tile);
    return SHARD_OK;
}

#endif
