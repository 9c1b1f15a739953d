/*
 * Pooling of images [n, h, w, c]. Both directions gather: the forward, for each
 * output, over the inputs of its window; the backward, for each input, over the
 * outputs whose windows it is in. So each element is written once.
 */
#ifdef real

static const real *R(load_source)(const pool *p, const spot *s, int64_t h, int64_t w, real *buffer)
{
    return R(load)(p->dtype, p->source, source_index(p, s, h, w), s->count, buffer);
}

static void R(take_larger)(int64_t n, const real *x, int32_t position, real *best, int32_t *arg)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        bool take = !(x[i] <= best[i]) & (best[i] == best[i]);
        best[i] = take ? x[i] : best[i];
        arg[i] = take ? position : arg[i];
    }
}

static void R(maximum)(const pool *p, const spot *s)
{
    real x_buffer[SPAN], buffer[SPAN], *best = R(place)(p->dtype, false, p->to, s->start, buffer);
    int32_t arg_buffer[SPAN], *arg = p->argmax ? p->argmax + s->start : arg_buffer;
    for (int64_t i = 0; i < s->count; i++) {
        best[i] = -INFINITY;
        arg[i] = (int32_t)(s->rows.first * p->w + s->cols.first);
    }
    for (int64_t h = s->rows.first; h < s->rows.end; h++)
        for (int64_t w = s->cols.first; w < s->cols.end; w++)
            R(take_larger)(s->count, R(load_source)(p, s, h, w, x_buffer), (int32_t)(h * p->w + w), best, arg);
    R(store)(p->dtype, false, p->to, s->start, s->count, best);
}

static void R(maximum_backward)(const pool *p, const spot *s)
{
    real dy_buffer[SPAN], buffer[SPAN], *sum = R(place)(p->dtype, false, p->to, s->start, buffer);
    int32_t position = (int32_t)(s->h * p->to_w + s->w);
    memset(sum, 0, (size_t)s->count * sizeof *sum);
    for (int64_t h = s->rows.first; h < s->rows.end; h++)
        for (int64_t w = s->cols.first; w < s->cols.end; w++) {
            const real *dy = R(load_source)(p, s, h, w, dy_buffer);
            const int32_t *arg = p->taken + source_index(p, s, h, w);
#pragma omp simd
            for (int64_t i = 0; i < s->count; i++) {
                real gradient = dy[i];
                sum[i] += arg[i] == position ? gradient : 0;
            }
        }
    R(store)(p->dtype, false, p->to, s->start, s->count, sum);
}

static void R(average)(const pool *p, const spot *s)
{
    real x_buffer[SPAN], buffer[SPAN], *mean = R(place)(p->dtype, false, p->to, s->start, buffer);
    double sum[SPAN], share = 1 / (double)divisor(p->shape, s->h, s->w);
    memset(sum, 0, (size_t)s->count * sizeof *sum);
    for (int64_t h = s->rows.first; h < s->rows.end; h++)
        for (int64_t w = s->cols.first; w < s->cols.end; w++) {
            const real *x = R(load_source)(p, s, h, w, x_buffer);
#pragma omp simd
            for (int64_t i = 0; i < s->count; i++)
                sum[i] += (double)x[i];
        }
    for (int64_t i = 0; i < s->count; i++)
        mean[i] = (real)(sum[i] * share);
    R(store)(p->dtype, false, p->to, s->start, s->count, mean);
}

static void R(average_backward)(const pool *p, const spot *s)
{
    const shard_pool_shape *shape = p->shape;
    real dy_buffer[SPAN], buffer[SPAN], *sum = R(place)(p->dtype, false, p->to, s->start, buffer);
    memset(sum, 0, (size_t)s->count * sizeof *sum);
    for (int64_t h = s->rows.first; h < s->rows.end; h++)
        for (int64_t w = s->cols.first; w < s->cols.end; w++) {
            const real *dy = R(load_source)(p, s, h, w, dy_buffer);
            real share = (real)1 / (real)divisor(shape, h, w);
#pragma omp simd
            for (int64_t i = 0; i < s->count; i++)
                sum[i] += dy[i] * share;
        }
    R(store)(p->dtype, false, p->to, s->start, s->count, sum);
}

#else

#include "device/cpu/kernels/span.h"

#include <math.h>
#include <string.h>

typedef struct range {
    int64_t first, end;
} range;

typedef struct pool {
    const shard_pool_shape *shape;
    shard_dtype dtype;
    const void *source; /* [n, h, w, c] */
    int64_t h, w;
    void *to; /* [n, to_h, to_w, c] */
    int64_t to_h, to_w;
    int32_t *argmax;      /* written by the forward */
    const int32_t *taken; /* the same, read by the backward */
    range (*reach)(int64_t position, int64_t stride, int64_t pad, int64_t kernel, int64_t size);
} pool;

/* Some channels of one pixel that is written, and the source's pixels that it depends on. */
typedef struct spot {
    int64_t n, h, w, c;
    int64_t start, count;
    range rows, cols;
} spot;

static int64_t source_index(const pool *p, const spot *s, int64_t h, int64_t w)
{
    return ((s->n * p->h + h) * p->w + w) * p->shape->c + s->c;
}

/* The inputs of an output's window, of `size`. */
static range window(int64_t output, int64_t stride, int64_t pad, int64_t kernel, int64_t size)
{
    int64_t first = output * stride - pad;
    return (range){shard_max(first, 0), shard_min(first + kernel, size)};
}

/* The outputs, of `size`, in whose windows an input is. */
static range covering(int64_t input, int64_t stride, int64_t pad, int64_t kernel, int64_t size)
{
    int64_t last = input + pad, before = last - kernel;
    return (range){before < 0 ? 0 : before / stride + 1, shard_min(last / stride + 1, size)};
}

/* How many elements an output's window has that count: only the last one can reach
 * past the padding. */
static int64_t extent(int64_t output, int64_t stride, int64_t pad, int64_t kernel, int64_t size, bool include_pad)
{
    range inside = window(output, stride, pad, kernel, size);
    int64_t first = output * stride;
    return include_pad ? shard_min(first + kernel, size + 2 * pad) - first : inside.end - inside.first;
}

static int64_t divisor(const shard_pool_shape *s, int64_t h, int64_t w)
{
    return extent(h, s->stride_h, s->pad_h, s->kh, s->h, s->count_include_pad) *
           extent(w, s->stride_w, s->pad_w, s->kw, s->w, s->count_include_pad);
}

static void for_spots(const pool *p, void (*body)(const pool *, const spot *))
{
    const shard_pool_shape *shape = p->shape;
#pragma omp parallel for schedule(static) if (shape->n * shape->h * shape->w * shape->c >= PARALLEL)
    for (int64_t row = 0; row < shape->n * p->to_h; row++) {
        spot s = {.n = row / p->to_h, .h = row % p->to_h};
        s.rows = p->reach(s.h, shape->stride_h, shape->pad_h, shape->kh, p->h);
        for (s.w = 0; s.w < p->to_w; s.w++) {
            s.cols = p->reach(s.w, shape->stride_w, shape->pad_w, shape->kw, p->w);
            for (s.c = 0; s.c < shape->c; s.c += SPAN) {
                s.start = (row * p->to_w + s.w) * shape->c + s.c;
                s.count = shard_min(SPAN, shape->c - s.c);
                body(p, &s);
            }
        }
    }
}

static pool forward(const shard_pool_shape *shape, const void *x, void *y, shard_dtype dtype)
{
    return (pool){.shape = shape,
                  .dtype = dtype,
                  .source = x,
                  .h = shape->h,
                  .w = shape->w,
                  .to = y,
                  .to_h = shape->oh,
                  .to_w = shape->ow,
                  .reach = window};
}

static pool backward(const shard_pool_shape *shape, const void *dy, void *dx, shard_dtype dtype)
{
    return (pool){.shape = shape,
                  .dtype = dtype,
                  .source = dy,
                  .h = shape->oh,
                  .w = shape->ow,
                  .to = dx,
                  .to_h = shape->h,
                  .to_w = shape->w,
                  .reach = covering};
}

#define SELF "pool.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(max_pool)(shard_device *device, const shard_pool_shape *shape, const void *x, void *y, int32_t *argmax,
                              shard_dtype dtype)
{
    (void)device;
    pool p = forward(shape, x, y, dtype);
    p.argmax = argmax;
    for_spots(&p, dtype == SHARD_FLOAT64 ? maximum_double : maximum_float);
    return SHARD_OK;
}

shard_status KERNEL(max_pool_backward)(shard_device *device, const shard_pool_shape *shape, const void *dy, const int32_t *argmax,
                                       void *dx, shard_dtype dtype)
{
    (void)device;
    pool p = backward(shape, dy, dx, dtype);
    p.taken = argmax;
    for_spots(&p, dtype == SHARD_FLOAT64 ? maximum_backward_double : maximum_backward_float);
    return SHARD_OK;
}

shard_status KERNEL(avg_pool)(shard_device *device, const shard_pool_shape *shape, const void *x, void *y, shard_dtype dtype)
{
    (void)device;
    pool p = forward(shape, x, y, dtype);
    for_spots(&p, dtype == SHARD_FLOAT64 ? average_double : average_float);
    return SHARD_OK;
}

shard_status KERNEL(avg_pool_backward)(shard_device *device, const shard_pool_shape *shape, const void *dy, void *dx,
                                       shard_dtype dtype)
{
    (void)device;
    pool p = backward(shape, dy, dx, dtype);
    for_spots(&p, dtype == SHARD_FLOAT64 ? average_backward_double : average_backward_float);
    return SHARD_OK;
}

#endif
