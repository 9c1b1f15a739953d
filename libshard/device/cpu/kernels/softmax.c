#ifdef real

/* The row's maximum and the sum of its exponentials. */
static void R(sum_row)(const void *context, int64_t row)
{
    const rows *r = context;
    real buffer[SPAN];
    exp_sum e = EXP_SUM_NOTHING;
    for (int64_t start = 0; start < r->cols; start += SPAN) {
        int64_t count = shard_min(SPAN, r->cols - start);
        KERNEL(R(exp_sum_add))(&e, count, R(load)(r->dtype, r->x, row * r->cols + start, count, buffer));
    }
    exp_sum_refer(&e, e.max);
    r->stats[2 * row] = e.max;
    r->stats[2 * row + 1] = e.sum;
}

MAP_BODY(softmax)
{
    const rows *r = context;
    const double *stats = r->stats + s.start / r->cols * 2;
    real max = (real)stats[0], log_sum = (real)log(stats[1]), inverse = (real)(1 / stats[1]);
    const real *x = in[0];
    real *y = out[0];
    if (r->log) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            y[i] = x[i] - max - log_sum;
    } else {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            y[i] = R(exp)(x[i] - max) * inverse;
    }
}

/* The sum over the row of y dy, or of dy for the logarithm. */
static void R(sum_row_gradient)(const void *context, int64_t row)
{
    const rows *r = context;
    real y_buffer[SPAN], dy_buffer[SPAN];
    double total = 0;
    for (int64_t start = 0; start < r->cols; start += SPAN) {
        int64_t count = shard_min(SPAN, r->cols - start);
        const real *y = R(load)(r->dtype, r->x, row * r->cols + start, count, y_buffer);
        const real *dy = R(load)(r->dtype, r->dy, row * r->cols + start, count, dy_buffer);
        real sum = 0;
        if (r->log) {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < count; i++)
                sum += dy[i];
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < count; i++)
                sum += y[i] * dy[i];
        }
        total += (double)sum;
    }
    r->stats[row] = total;
}

MAP_BODY(softmax_backward)
{
    const rows *r = context;
    real sum = (real)r->stats[s.start / r->cols];
    const real *y = in[0], *dy = in[1];
    real *dx = out[0];
    if (r->log) {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            dx[i] = dy[i] - R(exp)(y[i]) * sum;
    } else {
#pragma omp simd
        for (int64_t i = 0; i < s.count; i++)
            dx[i] = y[i] * (dy[i] - sum);
    }
}

#else

#include "device/cpu/kernels/exp_sum.h"
#include "device/cpu/kernels/map.h"
#include "device/cpu/kernels/vector_math.h"

typedef struct rows {
    shard_dtype dtype;
    bool log;
    int64_t cols;
    const void *x, *dy; /* y and dy in the backward */
    double *stats;
} rows;

#define SELF "softmax.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(softmax)(shard_device *device, bool log, int64_t count, int64_t cols, const void *x, void *y,
                             shard_dtype dtype)
{
    rows r = {.dtype = dtype, .log = log, .cols = cols, .x = x};
    map job = {.dtype = dtype,
               .n = count * cols,
               .period = cols,
               .in = {x},
               .out = {y},
               .context = &r,
               .before = dtype == SHARD_FLOAT64 ? sum_row_double : sum_row_float};
    if (job.n == 0)
        return SHARD_OK;
    size_t bytes = 2 * (size_t)count * sizeof(double);
    r.stats = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!r.stats)
        return shard_last_status();
    MAP(&job, softmax);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, r.stats, bytes);
    return SHARD_OK;
}

shard_status KERNEL(softmax_backward)(shard_device *device, bool log, int64_t count, int64_t cols, const void *y, const void *dy,
                                      void *dx, shard_dtype dtype)
{
    rows r = {.dtype = dtype, .log = log, .cols = cols, .x = y, .dy = dy};
    map job = {.dtype = dtype,
               .n = count * cols,
               .period = cols,
               .in = {y, dy},
               .out = {dx},
               .context = &r,
               .before = dtype == SHARD_FLOAT64 ? sum_row_gradient_double : sum_row_gradient_float};
    if (job.n == 0)
        return SHARD_OK;
    size_t bytes = (size_t)count * sizeof(double);
    r.stats = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!r.stats)
        return shard_last_status();
    MAP(&job, softmax_backward);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, r.stats, bytes);
    return SHARD_OK;
}

#endif
