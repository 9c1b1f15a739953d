/* A span's numbers are made from whole Philox blocks of four words, of which
 * the first and the last may be needed in part. */
#ifdef real

MAP_BODY(uniform)
{
    const drawing *d = context;
    real low = (real)d->a, range = (real)(d->b - d->a);
    uint32_t buffer[WORDS];
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
    uint32_t buffer[WORDS];
    float values[WORDS];
    int64_t skip = draw_words(d, s, buffer) - buffer;
#pragma omp simd
    for (int64_t i = 0; i < (skip + s.count + 1) / 2; i++)
        shard_normal_pair(buffer[2 * i], buffer[2 * i + 1], values + 2 * i);
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = mean + deviation * (real)values[skip + i];
}

/* An element is kept where its 24 bits are at least a. */
MAP_BODY(dropout)
{
    const drawing *d = context;
    int32_t limit = (int32_t)d->a;
    real scale = (real)d->b;
    uint32_t buffer[WORDS];
    const uint32_t *word = draw_words(d, s, buffer);
    const real *x = in[0];
    real *y = out[0];
#pragma omp simd
    for (int64_t i = 0; i < s.count; i++)
        y[i] = (int32_t)(word[i] >> 8) >= limit ? x[i] * scale : 0;
}

#else

#include "device/cpu/kernels/map.h"

enum { WORDS = SPAN + 8 };

typedef struct drawing {
    shard_draw draw;
    uint64_t first;      /* the whole's index of element 0 */
    uint64_t whole_cols; /* from one period to the next */
    int64_t cols;        /* the period; 0: the elements are consecutive in the whole */
    double a, b;         /* what the distribution takes */
} drawing;

/* Fills the buffer and returns where in it the words of the span begin. */
static const uint32_t *draw_words(const drawing *d, span s, uint32_t *buffer)
{
    uint64_t index =
        d->first + (d->cols ? (uint64_t)(s.start / d->cols) * d->whole_cols + (uint64_t)s.offset : (uint64_t)s.start);
    uint64_t block = index / 4;
    int64_t skip = (int64_t)(index % 4), blocks = (skip + s.count + 3) / 4;
    shard_draw draw = d->draw;
#pragma omp simd
    for (int64_t i = 0; i < blocks; i++) {
        shard_philox words = shard_philox_block(draw, block + (uint64_t)i);
        buffer[4 * i] = words.word[0];
        buffer[4 * i + 1] = words.word[1];
        buffer[4 * i + 2] = words.word[2];
        buffer[4 * i + 3] = words.word[3];
    }
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
