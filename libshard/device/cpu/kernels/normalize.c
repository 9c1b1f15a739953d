#ifdef real

/* ---- the sums: of x x, or x dy ---- */

/* Of `size` elements, from a_at and b_at on. */
static double R(product)(int64_t size, shard_dtype a_dtype, const void *a, int64_t a_at, shard_dtype b_dtype, const void *b,
                         int64_t b_at)
{
    real a_buffer[SPAN], b_buffer[SPAN];
    double total = 0;
    for (int64_t start = 0; start < size; start += SPAN) {
        int64_t count = shard_min(SPAN, size - start);
        const real *x = R(load)(a_dtype, a, a_at + start, count, a_buffer),
                   *y = R(load)(b_dtype, b, b_at + start, count, b_buffer);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += (double)x[i] * (double)y[i];
        total += sum;
    }
    return total;
}

static double R(row_product)(const job *n, const void *other, int64_t row)
{
    int64_t at = row * n->axis.size;
    return R(product)(n->axis.size, n->dtype, n->x, at, n->dtype, other, at);
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
    real buffer[SPAN], out_buffer[SPAN], inverse = (real)factors_at(n, row).inverse;
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
    factors f = factors_at(n, row);
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

/* ---- rows of a matrix, from one type to another ---- */

static void R(unit_row)(const unit_job *u, int64_t i)
{
    int64_t from = (u->list ? u->list[i] : i) * u->in, to = i * u->in;
    real buffer[SPAN], out_buffer[SPAN];
    u->square[i] = R(product)(u->in, u->from, u->rows, from, u->from, u->rows, from);
    real inverse = (real)factors_of(u->square[i], 0, u->eps).inverse;
    for (int64_t start = 0; start < u->in; start += SPAN) {
        int64_t count = shard_min(SPAN, u->in - start);
        const real *x = R(load)(u->from, u->rows, from + start, count, buffer);
        real *y = R(place)(u->to, false, u->out, to + start, out_buffer);
#pragma omp simd
        for (int64_t k = 0; k < count; k++)
            y[k] = x[k] * inverse;
        R(store)(u->to, false, u->out, to + start, count, y);
    }
}

static void R(unit_row_backward)(const unit_job *u, int64_t i)
{
    int64_t from = (u->list ? u->list[i] : i) * u->in, at = i * u->in;
    real buffer[SPAN];
    factors f = factors_of(u->square[i], R(product)(u->in, u->from, u->rows, from, u->to, u->out, at), u->eps);
    real inverse = (real)f.inverse, slope = (real)f.slope;
    for (int64_t start = 0; start < u->in; start += SPAN) {
        int64_t count = shard_min(SPAN, u->in - start);
        const real *x = R(load)(u->from, u->rows, from + start, count, buffer);
        real *gradient = (real *)u->out + at + start;
#pragma omp simd
        for (int64_t k = 0; k < count; k++)
            gradient[k] = (gradient[k] - x[k] * slope) * inverse;
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
        inverse[i] = (real)factors_at(n, of + i).inverse;
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
        factors f = factors_at(n, of + i);
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

static factors factors_of(double square, double dot, double eps)
{
    double norm = sqrt(square);
    return norm < eps ? (factors){.inverse = 1 / eps, .slope = 0} : (factors){.inverse = 1 / norm, .slope = dot / square};
}

static factors factors_at(const job *n, int64_t i)
{
    return factors_of(n->square[i], n->dot ? n->dot[i] : 0, n->eps);
}

typedef struct unit_job {
    int64_t in;
    const int64_t *list; /* NULL: the rows are one after the other */
    const void *rows;
    shard_dtype from, to;
    double eps, *square;
    void *out; /* [n, in] of dtype `to` */
} unit_job;

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

shard_status KERNEL(unit_rows)(shard_device *device, int64_t n, int64_t in, const int64_t *list, const void *rows,
                               shard_dtype from, double eps, double *square, void *unit, shard_dtype to)
{
    (void)device;
    const unit_job u = {.in = in, .list = list, .rows = rows, .from = from, .to = to, .eps = eps, .square = square, .out = unit};
#pragma omp parallel for schedule(static) if (n * in >= PARALLEL)
    for (int64_t i = 0; i < n; i++)
        BY_TYPE(from, unit_row, &u, i);
    return SHARD_OK;
}

shard_status KERNEL(unit_rows_backward)(shard_device *device, int64_t n, int64_t in, const int64_t *list, const void *rows,
                                        shard_dtype from, double eps, const double *square, void *gradient)
{
    (void)device;
    const unit_job u = {.in = in,
                        .list = list,
                        .rows = rows,
                        .from = from,
                        .to = from == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32,
                        .eps = eps,
                        .square = (double *)square,
                        .out = gradient};
#pragma omp parallel for schedule(static) if (n * in >= PARALLEL)
    for (int64_t i = 0; i < n; i++)
        BY_TYPE(from, unit_row_backward, &u, i);
    return SHARD_OK;
}

#endif
