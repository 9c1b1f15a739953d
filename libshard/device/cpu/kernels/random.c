/* A span's numbers are made from whole Philox blocks of four words, of which
 * the first and the last may be needed in part. */
#ifdef real

MAP_BODY(uniform)
{
    const drawing *d = context;
    real low = (real)d->a, range = (real)(d->b - d->a);
    uint32_t buffer[PHILOX_WORDS];
    const uint32_t *word = draw_words(d, s, buffer);
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = low + range * ((real)(int32_t)(word[i] >> 8) * (real)0x1p-24);
}

MAP_BODY(normal)
{
    const drawing *d = context;
    real mean = (real)d->a, deviation = (real)d->b;
    uint32_t buffer[PHILOX_WORDS];
    float values[PHILOX_WORDS];
    int64_t skip = draw_words(d, s, buffer) - buffer;
#pragma omp simd
    for (int64_t i = 0; i < (skip + s.count + 1) / 2; i++)
        shard_normal_pair(buffer[2 * i], buffer[2 * i + 1], values + 2 * i);
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = mean + deviation * (real)values[skip + i];
}

MAP_BODY(truncated_normal)
{
    const drawing *d = context;
    real mean = (real)d->truncated.mean, deviation = (real)d->truncated.std;
    real low = (real)d->truncated.low, high = (real)d->truncated.high;
    float edge = (float)d->a, range = (float)d->b;
    uint32_t buffer[PHILOX_WORDS];
    const uint32_t *word = draw_words(d, s, buffer);
    real *y = out[0];
    for (int64_t i = 0; i < s.count; i++) {
        real value = mean + deviation * (real)shard_truncated_normal_of(word[i], edge, range);
        y[i] = value < low ? low : value > high ? high : value;
    }
}

/* An element is kept where its 24 bits are at least a. */
MAP_BODY(dropout)
{
    const drawing *d = context;
    int32_t limit = (int32_t)d->a;
    real scale = (real)d->b;
    uint32_t buffer[PHILOX_WORDS];
    const uint32_t *word = draw_words(d, s, buffer);
    const real *x = in[0];
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = x[i] * scale;
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = (int32_t)(word[i] >> 8) >= limit ? y[i] : 0;
}

#else

#include "device/cpu/kernels/map.h"
#include "device/cpu/kernels/philox.h"

typedef struct drawing {
    shard_draw draw;
    uint64_t first;      /* the whole's index of element 0 */
    uint64_t whole_cols; /* from one period to the next */
    int64_t cols;        /* the period; 0: the elements are consecutive in the whole */
    double a, b;         /* parameters of the distribution */
    shard_truncated_normal truncated;
} drawing;

/* Fills the buffer and returns where in it the words of the span begin. */
static const uint32_t *draw_words(const drawing *d, span s, uint32_t *buffer)
{
    uint64_t index = d->first + (uint64_t)s.start;
    if (d->cols)
        index = d->first + (uint64_t)(s.start / d->cols) * d->whole_cols + (uint64_t)s.offset;
    int64_t skip = (int64_t)(index % 4);
    philox_blocks(d->draw, index / 4, (skip + s.count + 3) / 4, buffer);
    return buffer + skip;
}

#define SELF "random.c"
#include "device/cpu/kernels/real.h"

static drawing drawing_of(const shard_region *region, shard_draw draw, double a, double b)
{
    bool consecutive = region->rows <= 1 || region->cols == region->whole_cols;
    return (drawing){.draw = draw,
                     .first = (uint64_t)(region->row0 * region->whole_cols + region->col0),
                     .whole_cols = (uint64_t)region->whole_cols,
                     .cols = consecutive ? 0 : region->cols,
                     .a = a,
                     .b = b};
}

shard_status KERNEL(random_uniform)(shard_device *device, const shard_region *region, shard_draw draw, double low, double high,
                                    void *y, shard_dtype dtype)
{
    (void)device;
    drawing d = drawing_of(region, draw, low, high);
    map job = {.dtype = dtype, .n = region->rows * region->cols, .period = d.cols, .out = {y}, .context = &d};
    MAP(&job, uniform);
    return SHARD_OK;
}

shard_status KERNEL(random_normal)(shard_device *device, const shard_region *region, shard_draw draw, double mean,
                                   double deviation, void *y, shard_dtype dtype)
{
    (void)device;
    drawing d = drawing_of(region, draw, mean, deviation);
    map job = {.dtype = dtype, .n = region->rows * region->cols, .period = d.cols, .out = {y}, .context = &d};
    MAP(&job, normal);
    return SHARD_OK;
}

shard_status KERNEL(random_truncated_normal)(shard_device *device, const shard_region *region, shard_draw draw,
                                             const shard_truncated_normal *t, void *y, shard_dtype dtype)
{
    (void)device;
    double low = shard_truncated_normal_edge(t, t->low), high = shard_truncated_normal_edge(t, t->high);
    drawing d = drawing_of(region, draw, low, high - low);
    d.truncated = *t;
    map job = {.dtype = dtype, .n = region->rows * region->cols, .period = d.cols, .out = {y}, .context = &d};
    MAP(&job, truncated_normal);
    return SHARD_OK;
}

shard_status KERNEL(dropout)(shard_device *device, const shard_region *region, shard_draw draw, double p, const void *x, void *y,
                             shard_dtype dtype)
{
    (void)device;
    drawing d = drawing_of(region, draw, ceil(p * 0x1p24), 1 / (1 - p));
    map job = {.dtype = dtype, .n = region->rows * region->cols, .period = d.cols, .in = {x}, .out = {y}, .context = &d};
    MAP(&job, dropout);
    return SHARD_OK;
}

#endif
