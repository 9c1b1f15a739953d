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

MAP_BODY(truncated_normal)
{
    const drawing *d = context;
    real mean = (real)d->truncated.mean, deviation = (real)d->truncated.std;
    real low = (real)d->truncated.low, high = (real)d->truncated.high;
    float edge = (float)d->a, range = (float)d->b;
    uint32_t buffer[WORDS];
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
    uint32_t buffer[WORDS];
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

#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Philox is multiplications of 32-bit words to 64 bits, for which the compiler
 * finds no good vector code: words are kept in lanes of 64 bits, whose upper
 * halves do not count. */
#if defined(__AVX512F__)
#define LANES 8
#define MULTIPLY(a, b) ((lanes)_mm512_mul_epu32((__m512i)(a), _mm512_set1_epi64(b)))
#elif defined(__AVX2__)
#define LANES 4
#define MULTIPLY(a, b) ((lanes)_mm256_mul_epu32((__m256i)(a), _mm256_set1_epi64x(b)))
#elif defined(__SSE2__)
#define LANES 2
#define MULTIPLY(a, b) ((lanes)_mm_mul_epu32((__m128i)(a), _mm_set1_epi64x(b)))
#else
#define LANES 2
#define MULTIPLY(a, b) (((a) & (lanes){UINT32_MAX, UINT32_MAX}) * (uint64_t)(b))
#endif
typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

enum { BLOCKS = SPAN / 4 + LANES, WORDS = 4 * BLOCKS };

typedef struct drawing {
    shard_draw draw;
    uint64_t first;      /* the whole's index of element 0 */
    uint64_t whole_cols; /* from one period to the next */
    int64_t cols;        /* the period; 0: the elements are consecutive in the whole */
    double a, b;         /* parameters of the distribution */
    shard_truncated_normal truncated;
} drawing;

/* shard_philox_block of `count` blocks from the first on, and of some more to a multiple of LANES. */
static void philox_blocks(shard_draw draw, uint64_t first, int64_t count, uint32_t *words)
{
    uint64_t halves[2][BLOCKS];
    lanes index;
    for (int lane = 0; lane < LANES; lane++)
        index[lane] = first + (uint64_t)lane;
    for (int64_t i = 0; i < count; i += LANES, index += LANES) {
        lanes c0 = index, c1 = index >> 32, c2 = index - index + (uint32_t)draw.number, c3 = index - index + (draw.number >> 32);
        uint32_t k0 = (uint32_t)draw.seed, k1 = (uint32_t)(draw.seed >> 32);
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            lanes p0 = MULTIPLY(c0, 0xD2511F53u), p1 = MULTIPLY(c2, 0xCD9E8D57u);
            c0 = (p1 >> 32) ^ c1 ^ k0;
            c1 = p1;
            c2 = (p0 >> 32) ^ c3 ^ k1;
            c3 = p0;
        }
        lanes low = (c0 & UINT32_MAX) | c1 << 32, high = (c2 & UINT32_MAX) | c3 << 32;
        memcpy(halves[0] + i, &low, sizeof low);
        memcpy(halves[1] + i, &high, sizeof high);
    }
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        words[4 * i] = (uint32_t)halves[0][i];
        words[4 * i + 1] = (uint32_t)(halves[0][i] >> 32);
        words[4 * i + 2] = (uint32_t)halves[1][i];
        words[4 * i + 3] = (uint32_t)(halves[1][i] >> 32);
    }
}

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
