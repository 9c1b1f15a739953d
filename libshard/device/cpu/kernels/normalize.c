#ifdef real

/* ---- the sums: of x x, or x dy ---- */

static double R(row_product)(const job *n, const void *other, int64_t row)
{
    real x_buffer[SPAN], other_buffer[SPAN];
    double total = 0;
    for (int64_t start = 0; start < n->axis.size; start += SPAN) {
        int64_t count = shard_min(SPAN, n->axis.size - start), at = row * n->axis.size + start;
        const real *x = R(load)(n->dtype, n->x, at, count, x_buffer), *y = R(load)(n->dtype, other, at, count, other_buffer);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += (double)x[i] * (double)y[i];
        total += sum;
    }
    return total;
}

static void R(tile_product)(const job *n, const void *other, int64_t at, int64_t count, double *sum)
{
    real x_buffer[SPAN], other_buffer[SPAN];
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int64_t k = 0; k < n->axis.size; k++, at += n->axis.inner) {
        const real *x = R(load)(n->dtype, n->x, at, count, x_buffer), *y = R(load)(n->dtype, other, at, count, other_buffer);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            sum[i] += (double)x[i] * (double)y[i];
    }
}

/* ---- rows ---- */

static void R(row)(const void *context, int64_t row)
{
    const job *n = context;
    if (n->measure)
        n->square[row] = R(row_product)(n, n->x, row);
    if (!n->out)
        return;
    real buffer[SPAN], out_buffer[SPAN], inverse = (real)factors_of(n, row).inverse;
    for (int64_t start = 0; start < n->axis.size; start += SPAN) {
        int64_t count = shard_min(SPAN, n->axis.size - start), at = row * n->axis.size + start;
        const real *x = R(load)(n->dtype, n->x, at, count, buffer);
        real *y = R(place)(n->dtype, false, n->out, at, out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i] * inverse;
        R(store)(n->dtype, false, n->out, at, count, y);
    }
}

static void R(row_backward)(const void *context, int64_t row)
{
    const job *n = context;
    if (n->measure)
        n->dot[row] = R(row_product)(n, n->dy, row);
    if (!n->out)
        return;
    factors f = factors_of(n, row);
    real x_buffer[SPAN], dy_buffer[SPAN], out_buffer[SPAN], inverse = (real)f.inverse, slope = (real)f.slope;
    for (int64_t start = 0; start < n->axis.size; start += SPAN) {
        int64_t count = shard_min(SPAN, n->axis.size - start), at = row * n->axis.size + start;
        const real *x = R(load)(n->dtype, n->x, at, count, x_buffer), *dy = R(load)(n->dtype, n->dy, at, count, dy_buffer);
        real *dx = R(place)(n->dtype, false, n->out, at, out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = (dy[i] - x[i] * slope) * inverse;
        R(store)(n->dtype, false, n->out, at, count, dx);
    }
}

/* ---- tiles ---- */

static void R(tile)(const void *context, int64_t outer, int64_t first, int64_t count)
{
    const job *n = context;
    int64_t at = outer * n->axis.size * n->axis.inner + first, of = outer * n->axis.inner + first;
    if (n->measure)
        R(tile_product)(n, n->x, at, count, n->square + of);
    if (!n->out)
        return;
    real buffer[SPAN], out_buffer[SPAN], inverse[SPAN];
    for (int64_t i = 0; i < count; i++)
        inverse[i] = (real)factors_of(n, of + i).inverse;
    for (int64_t k = 0; k < n->axis.size; k++, at += n->axis.inner) {
        const real *x = R(load)(n->dtype, n->x, at, count, buffer);
        real *y = R(place)(n->dtype, false, n->out, at, out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i] * inverse[i];
        R(store)(n->dtype, false, n->out, at, count, y);
    }
}

static void R(tile_backward)(const void *context, int64_t outer, int64_t first, int64_t count)
{
    const job *n = context;
    int64_t at = outer * n->axis.size * n->axis.inner + first, of = outer * n->axis.inner + first;
    if (n->measure)
        R(tile_product)(n, n->dy, at, count, n->dot + of);
    if (!n->out)
        return;
    real x_buffer[SPAN], dy_buffer[SPAN], out_buffer[SPAN], inverse[SPAN], slope[SPAN];
    for (int64_t i = 0; i < count; i++) {
        factors f = factors_of(n, of + i);
        inverse[i] = (real)f.inverse;
        slope[i] = (real)f.slope;
    }
    for (int64_t k = 0; k < n->axis.size; k++, at += n->axis.inner) {
        const real *x = R(load)(n->dtype, n->x, at, count, x_buffer), *dy = R(load)(n->dtype, n->dy, at, count, dy_buffer);
        real *dx = R(place)(n->dtype, false, n->out, at, out_buffer);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = (dy[i] - x[i] * slope[i]) * inverse[i];
        R(store)(n->dtype, false, n->out, at, count, dx);
    }
}

#else

#include "device/cpu/kernels/axis.h"

#include <math.h>
#include <string.h>

typedef struct job {
    shard_dtype dtype;
    shard_axis axis;
    double eps;
    bool measure;
    const void *x, *dy;
    double *square, *dot; /* dot NULL in the forward */
    void *out;
} job;

/* Applies one norm to its elements: x inverse, and (dy - x slope) inverse. */
typedef struct factors {
    double inverse, slope;
} factors;

static factors factors_of(const job *n, int64_t i)
{
    double norm = sqrt(n->square[i]);
    if (norm < n->eps)
        return (factors){.inverse = 1 / n->eps, .slope = 0};
    return (factors){.inverse = 1 / norm, .slope = n->dot ? n->dot[i] / n->square[i] : 0};
}

#define SELF "normalize.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(normalize)(shard_device *device, const shard_axis *axis, double eps, bool measure, const void *x,
                               double *square, void *y, shard_dtype dtype)
{
    (void)device;
    job n = {.dtype = dtype, .axis = *axis, .eps = eps, .measure = measure, .x = x, .square = square, .out = y};
    EACH_ALONG(dtype, axis, &n, row, tile);
    return SHARD_OK;
}

shard_status KERNEL(normalize_backward)(shard_device *device, const shard_axis *axis, double eps, bool measure, const void *x,
                                        const double *square, const void *dy, double *dot, void *dx, shard_dtype dtype)
{
    (void)device;
    job n = {.dtype = dtype,
             .axis = *axis,
             .eps = eps,
             .measure = measure,
             .x = x,
             .dy = dy,
             .square = (double *)square,
             .dot = dot,
             .out = dx};
    EACH_ALONG(dtype, axis, &n, row_backward, tile_backward);
    return SHARD_OK;
}

#endif
