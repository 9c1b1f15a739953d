/* The head's rows: the merge of a tile's statistics, and the gradient of the features. */
#ifdef real

static void R(merge)(int64_t rows, int64_t in, const double *tile_stats, double *stats, double *center, void *sum)
{
#pragma omp parallel for schedule(static) if (rows * in >= PARALLEL)
    for (int64_t i = 0; i < rows; i++) {
        real factor = (real)merge_row(tile_stats + i * SHARD_CE_STATS, stats + i * SHARD_CE_STATS, center + i);
        if (!sum || factor == 1)
            continue;
        real *row = (real *)sum + i * in;
#pragma omp simd
        for (int64_t k = 0; k < in; k++)
            row[k] *= factor;
    }
}

static void R(input_gradient)(const features *f, int64_t row)
{
    const shard_cross_entropy_shape *shape = f->shape;
    double scale = f->rows->scale[row], spread = shape->classes ? shape->smoothing / (double)shape->classes : 0;
    int64_t column = shard_label_column(shape, f->target[row]);
    bool has_target = column >= 0, has_classes = shape->cols > 0;
    double of_map = shape->map.maps ? shard_label_slope(shape, f->stats + row * SHARD_CE_STATS) : 1;
    double max = f->stats[row * SHARD_CE_STATS + SHARD_CE_MAX];
    double exponential = has_classes ? shard_row_exponential(f->rows, row, max) : 0;
    real of_sum = (real)(scale * f->rows->slope[row] * exponential), of_spread = (real)(scale * spread * of_map), buffer[SPAN];
    real of_target = has_target ? (real)(scale * (1 - shape->smoothing) * of_map) : 0;
    if (has_target && f->class_weight)
        of_target *= ((const real *)f->class_weight)[column];
    const real *sum = (const real *)f->sum + row * f->in, *all = f->spread;
    real *dx = (real *)f->dx + row * f->in;
    if (scale == 0) {
        memset(dx, 0, (size_t)f->in * sizeof *dx);
        return;
    }
    for (int64_t start = 0, count; start < f->in; start += count) {
        count = shard_min(SPAN, f->in - start);
#pragma omp simd
        for (int64_t k = start; k < start + count; k++)
            dx[k] = of_sum * sum[k];
        if (has_target) {
            const real *weight = R(load)(f->weight_dtype, f->weight, column * f->in + start, count, buffer);
#pragma omp simd
            for (int64_t k = 0; k < count; k++)
                dx[start + k] -= of_target * weight[k];
        }
        if (all) {
#pragma omp simd
            for (int64_t k = start; k < start + count; k++)
                dx[k] -= of_spread * all[k];
        }
    }
}

static void R(input_gradients)(const features *f)
{
#pragma omp parallel for schedule(static) if (f->shape->rows * f->in >= PARALLEL)
    for (int64_t row = 0; row < f->shape->rows; row++)
        R(input_gradient)(f, row);
}

#else

#include "device/cpu/cpu_head.h"
#include "device/cpu/kernels/span.h"
#include "device/cpu/kernels/vector_math.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct features {
    const shard_cross_entropy_shape *shape;
    int64_t in;
    const int64_t *target;
    const void *class_weight, *weight;
    shard_dtype weight_dtype;
    const double *stats;
    const shard_loss_rows *rows;
    const void *sum, *spread;
    void *dx;
} features;

/* Adds a tile's statistics of a row; returns the factor from the old maximum to the new one. The exponentials are relative to the
 * maximum, *center, or to 0 while all logits are -inf. */
static double merge_row(const double *tile, double *stats, double *center)
{
    double old = stats[SHARD_CE_MAX], more = tile[SHARD_CE_MAX], max = more > old ? more : old;
    double factor = max > old ? exp(old - max) : 1, of_tile = max > more ? exp(more - max) : 1;
    stats[SHARD_CE_MAX] = max;
    stats[SHARD_CE_SUM] = stats[SHARD_CE_SUM] * factor + tile[SHARD_CE_SUM] * of_tile;
    for (int k = SHARD_CE_A; k < SHARD_CE_STATS; k++)
        stats[k] += tile[k];
    *center = max == -INFINITY ? 0 : max;
    return factor;
}

#define SELF "head.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(head_merge)(shard_device *device, int64_t rows, int64_t in, const double *tile_stats, double *stats,
                                double *center, void *sum, shard_dtype dtype)
{
    (void)device;
    BY_TYPE(dtype, merge, rows, in, tile_stats, stats, center, sum);
    return SHARD_OK;
}

shard_status KERNEL(head_input_gradient)(shard_device *device, const shard_cross_entropy_shape *shape, int64_t in,
                                         const int64_t *target, const void *class_weight, const void *weight,
                                         shard_dtype weight_dtype, const double *stats, const shard_loss_rows *rows,
                                         const void *sum, const void *spread, void *dx, shard_dtype dtype)
{
    (void)device;
    const features f = {shape, in, target, class_weight, weight, weight_dtype, stats, rows, sum, spread, dx};
    BY_TYPE(dtype, input_gradients, &f);
    return SHARD_OK;
}

/* ---- loops of the fused sweeps ---- */

enum {
    COLUMNS = 64,    /* done at a time: some vectors of each array */
    SUM_CLASSES = 32 /* of which exponentials are added up in float */
};
#define LAG 40 /* exp(40) times any number of classes is far from float's end */

/* Moves the centers that the maxima of the tile have left far behind. */
static bool move_centers(int64_t columns, const float *max, float *highest, float *center, float *factor, double *sum)
{
    bool moved = false;
    for (int64_t j = 0; j < columns; j++) {
        highest[j] = max[j] > highest[j] ? max[j] : highest[j];
        factor[j] = 1;
        if (max[j] > center[j] + LAG || (center[j] == -INFINITY && max[j] > center[j])) {
            factor[j] = expf(center[j] - max[j]);
            center[j] = max[j];
            sum[j] *= (double)factor[j];
            moved = true;
        }
    }
    return moved;
}

/* Adds exp(z - center) of the logits z [count, columns] to the columns' sums and replaces the logits by it; if `capped`, by it
 * times the logits' derivatives. Returns whether a center has moved. */
static inline __attribute__((always_inline)) bool exponentials_of(int64_t count, int64_t pitch, int64_t columns, float *z,
                                                                  float *highest, float *center, float *factor, double *sum,
                                                                  bool capped, float scale, float inverse_cap)
{
    float max[COLUMNS], from[COLUMNS], part[COLUMNS];
    for (int64_t j = 0; j < columns; j++)
        max[j] = -INFINITY;
    for (int64_t i = 0; i < count; i++)
#pragma omp simd
        for (int64_t j = 0; j < columns; j++)
            max[j] = z[i * pitch + j] > max[j] ? z[i * pitch + j] : max[j];
    bool moved = move_centers(columns, max, highest, center, factor, sum);
    for (int64_t j = 0; j < columns; j++)
        from[j] = center[j] == -INFINITY ? 0 : center[j];
    for (int64_t first = 0; first < count; first += SUM_CLASSES) {
        for (int64_t j = 0; j < columns; j++)
            part[j] = 0;
        for (int64_t i = first; i < shard_min(first + SUM_CLASSES, count); i++)
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) {
                float x = z[i * pitch + j], value = exp_float(x - from[j]);
                z[i * pitch + j] = capped ? value * shard_logit_slope_float(x, scale, inverse_cap) : value;
                part[j] += value;
            }
        for (int64_t j = 0; j < columns; j++)
            sum[j] += (double)part[j];
    }
    return moved;
}

static bool exponentials(int64_t count, int64_t pitch, float *z, const shard_cpu_head_columns *c)
{
    bool moved = false;
    for (int64_t j = 0; j < pitch; j += COLUMNS)
        moved |= exponentials_of(count, pitch, shard_min(COLUMNS, pitch - j), z + j, c->max + j, c->center + j, c->factor + j,
                                 c->sum + j, false, 1, 0);
    return moved;
}

static bool capped_exponentials(int64_t count, int64_t pitch, float *z, const shard_cpu_head_columns *c,
                                const shard_logit_map *map)
{
    float scale = (float)map->scale, inverse_cap = (float)(1 / map->soft_cap);
    bool moved = false;
    for (int64_t j = 0; j < pitch; j += COLUMNS)
        moved |= exponentials_of(count, pitch, shard_min(COLUMNS, pitch - j), z + j, c->max + j, c->center + j, c->factor + j,
                                 c->sum + j, true, scale, inverse_cap);
    return moved;
}

/* The logits as the map says. */
static void map_logits(int64_t count, int64_t pitch, float *z, const shard_logit_map *map)
{
    float rate = (float)shard_logit_rate(map), cap = (float)map->soft_cap;
    if (cap > 0) {
#pragma omp simd
        for (int64_t i = 0; i < count * pitch; i++)
            z[i] = cap * tanh_float(rate * z[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count * pitch; i++)
            z[i] *= rate;
    }
}

static void gradients(int64_t count, int64_t pitch, float *z, const float *class_weight, const shard_cpu_head_gradient *g)
{
    const float *factor = g->factor, *center = g->center, *spread = g->spread;
    for (int64_t i = 0; i < count; i++) {
        float weight = class_weight ? class_weight[i] : 1, *row = z + i * pitch;
#pragma omp simd
        for (int64_t j = 0; j < pitch; j++) {
            float value = factor[j] * exp_float(row[j] - center[j]) - spread[j] * weight;
            row[j] = factor[j] == 0 ? 0 : value;
        }
    }
}

static void capped_gradients(int64_t count, int64_t pitch, float *z, const float *class_weight, const shard_cpu_head_gradient *g,
                             const shard_logit_map *map)
{
    const float *factor = g->factor, *center = g->center, *spread = g->spread;
    float scale = (float)map->scale, inverse_cap = (float)(1 / map->soft_cap);
    for (int64_t i = 0; i < count; i++) {
        float weight = class_weight ? class_weight[i] : 1, *row = z + i * pitch;
#pragma omp simd
        for (int64_t j = 0; j < pitch; j++) {
            float value = factor[j] * exp_float(row[j] - center[j]) - spread[j] * weight;
            row[j] = factor[j] == 0 ? 0 : value * shard_logit_slope_float(row[j], scale, inverse_cap);
        }
    }
}

enum { STEPS = 65533, HIGHEST_CODE = 65534, NAN_CODE = 65535 };

static void encode_columns(int64_t count, int64_t pitch, int64_t columns, const float *z, uint16_t *code, float *highest,
                           float *step, float most, float span)
{
    float high[COLUMNS], low[COLUMNS], rate[COLUMNS];
    for (int64_t j = 0; j < columns; j++) {
        high[j] = -INFINITY;
        low[j] = INFINITY;
    }
    for (int64_t i = 0; i < count; i++)
#pragma omp simd
        for (int64_t j = 0; j < columns; j++) {
            float x = z[i * pitch + j];
            x = x > most ? most : x;
            high[j] = x > high[j] ? x : high[j];
            bool lower = (x < low[j]) & (x >= -FLT_MAX);
            low[j] = lower ? x : low[j];
        }
    for (int64_t j = 0; j < columns; j++) {
        bool counts = low[j] <= high[j]; /* else all are -infinity or NaN */
        highest[j] = high[j] = counts ? high[j] : 0;
        low[j] = counts && low[j] > high[j] - span ? low[j] : high[j] - span;
        bool differs = high[j] - low[j] > 0x1p-100F; /* the rate is finite */
        step[j] = differs ? (high[j] - low[j]) / STEPS : 0;
        rate[j] = differs ? STEPS / (high[j] - low[j]) : 0;
    }
    for (int64_t i = 0; i < count; i++)
#pragma omp simd
        for (int64_t j = 0; j < columns; j++) {
            float x = z[i * pitch + j];
            x = x > most ? most : x;
            float steps = (high[j] - x) * rate[j] + 0.5F;
            steps = steps < STEPS ? steps : STEPS; /* and of NaN */
            int32_t of = HIGHEST_CODE - (int32_t)steps;
            of = x >= low[j] ? of : 0;
            code[i * pitch + j] = (uint16_t)(x != x ? NAN_CODE : of);
        }
}

static void encode(int64_t count, int64_t pitch, const float *z, const shard_cpu_head_codes *c, float most, float span)
{
    for (int64_t j = 0; j < pitch; j += COLUMNS)
        encode_columns(count, pitch, shard_min(COLUMNS, pitch - j), z + j, c->code + j, c->highest + j, c->step + j, most, span);
}

static void decode(int64_t count, int64_t pitch, const shard_cpu_head_codes *c, float *z)
{
    const float *highest = c->highest, *step = c->step;
    for (int64_t i = 0; i < count; i++) {
        const uint16_t *code = c->code + i * pitch;
        float *row = z + i * pitch;
#pragma omp simd
        for (int64_t j = 0; j < pitch; j++) {
            int32_t of = code[j];
            float x = highest[j] - (float)(HIGHEST_CODE - of) * step[j];
            x = of == 0 ? -INFINITY : x;
            row[j] = of == NAN_CODE ? NAN : x;
        }
    }
}

/* The bits of x rounded by shard_float_to_bfloat16, in the high half of the word. */
static inline uint32_t round_bits(float x)
{
    uint32_t bits = shard_float_bits(x), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return ((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) & 0xffff0000u;
}

static void pack(int64_t count, int64_t pitch, const float *z, uint32_t *pairs)
{
    for (int64_t i = 0; i + 1 < count; i += 2) {
        const float *low = z + i * pitch, *high = low + pitch;
        uint32_t *to = pairs + i / 2 * pitch;
#pragma omp simd
        for (int64_t j = 0; j < pitch; j++)
            to[j] = round_bits(high[j]) | round_bits(low[j]) >> 16;
    }
    for (int64_t j = 0; j < pitch && count % 2; j++)
        pairs[count / 2 * pitch + j] = round_bits(z[(count - 1) * pitch + j]) >> 16;
}

static void interleave(int64_t n, const uint16_t *low, const uint16_t *high, uint32_t *pairs)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        pairs[j] = low[j];
    if (!high)
        return;
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        pairs[j] |= (uint32_t)high[j] << 16;
}

static inline float of_bfloat16(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Adds the products of the rows [count, in] and one row of features x. A tile of products would compute more columns than this
 * one; here the time is that of reading the rows from memory. */
static void add_products(shard_dtype dtype, int64_t count, int64_t in, const void *rows, int64_t pitch, const void *x, float *z,
                         int64_t z_pitch)
{
    for (int64_t i = 0; i < count; i++) {
        float sum = 0;
        if (dtype == SHARD_BFLOAT16) {
            const uint16_t *a = (const uint16_t *)rows + i * pitch, *b = x;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = 0; k < in; k++)
                sum += of_bfloat16(a[k]) * of_bfloat16(b[k]);
        } else {
            const float *a = (const float *)rows + i * pitch, *b = x;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = 0; k < in; k++)
                sum += a[k] * b[k];
        }
        z[i * z_pitch] += sum;
    }
}

static void fill_bias(int64_t count, int64_t pitch, const float *bias, float *z)
{
    for (int64_t i = 0; i < count; i++) {
        float value = bias ? bias[i] : 0;
#pragma omp simd
        for (int64_t j = 0; j < pitch; j++)
            z[i * pitch + j] = value;
    }
}

static void sum_columns(int64_t count, int64_t pitch, int64_t rows, const float *z, float *sum)
{
    for (int64_t i = 0; i < count; i++) {
        double total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t j = 0; j < rows; j++)
            total += (double)z[i * pitch + j];
        sum[i] = (float)total;
    }
}

static void add_logits(int64_t count, int64_t pitch, const float *z, const float *class_weight, double *sum)
{
    for (int64_t i = 0; i < count; i++) {
        double weight = class_weight ? (double)class_weight[i] : 1;
#pragma omp simd
        for (int64_t j = 0; j < pitch; j++)
            sum[j] += weight * (double)z[i * pitch + j];
    }
}

static void sum_rows(shard_dtype dtype, int64_t count, int64_t in, const void *rows, const float *class_weight, double *sum)
{
    for (int64_t start = 0, width; start < in; start += width) {
        float part[SPAN] = {0}, buffer[SPAN];
        width = shard_min(SPAN, in - start);
        for (int64_t i = 0; i < count; i++) {
            const float *row = load_float(dtype, rows, i * in + start, width, buffer);
            float weight = class_weight ? class_weight[i] : 1;
#pragma omp simd
            for (int64_t k = 0; k < width; k++)
                part[k] += weight * row[k];
        }
        for (int64_t k = 0; k < width; k++)
            sum[start + k] += (double)part[k];
    }
}

/* Adds the losses of one class to the columns' sums (NULL: not wanted) and replaces its logits z by the derivatives. gcc 12
 * vectorizes these loops, and not one loop of them all. */
static inline void binary_row(int64_t columns, float *z, float weight, const float *scale, float *sum)
{
    float exponential[COLUMNS];
#pragma omp simd
    for (int64_t j = 0; j < columns; j++)
        exponential[j] = exp_float(z[j] < 0 ? z[j] : -z[j]);
    if (sum) {
#pragma omp simd
        for (int64_t j = 0; j < columns; j++)
            sum[j] += weight * ((z[j] > 0 ? z[j] : 0) + log1p_float(exponential[j]));
    }
#pragma omp simd
    for (int64_t j = 0; j < columns; j++)
        z[j] = weight * shard_binary_slope_float(z[j], 0, 1, exponential[j]);
    if (scale) {
#pragma omp simd
        for (int64_t j = 0; j < columns; j++)
            z[j] *= scale[j];
    }
}

static void binary_of(int64_t count, int64_t pitch, int64_t columns, float *z, const float *class_weight, const float *scale,
                      double *sum)
{
    float part[COLUMNS];
    for (int64_t first = 0; first < count; first += SUM_CLASSES) {
        for (int64_t j = 0; j < columns; j++)
            part[j] = 0;
        for (int64_t i = first; i < shard_min(first + SUM_CLASSES, count); i++)
            binary_row(columns, z + i * pitch, class_weight ? class_weight[i] : 1, scale, sum ? part : NULL);
        for (int64_t j = 0; sum && j < columns; j++)
            sum[j] += (double)part[j];
    }
}

static void binary(int64_t count, int64_t pitch, float *z, const float *class_weight, const float *scale, double *sum)
{
    for (int64_t j = 0; j < pitch; j += COLUMNS)
        binary_of(count, pitch, shard_min(COLUMNS, pitch - j), z + j, class_weight, scale ? scale + j : NULL,
                  sum ? sum + j : NULL);
}

/* Adds to `ahead` the logits that come before the labels'. A NaN counts as the largest, as in count_before of cross_entropy.c. */
static void count_ahead_of(int64_t count, int64_t pitch, int64_t columns, const float *z, const float *logit,
                           const int32_t *place, int64_t *ahead)
{
    int32_t part[COLUMNS] = {0};
    for (int32_t i = 0; i < (int32_t)count; i++)
#pragma omp simd
        for (int64_t j = 0; j < columns; j++) {
            float x = z[i * pitch + j], of_label = logit[j];
            bool first = i < place[j], ties = (x == of_label) & first, is_nan = (x != x) & ((of_label == of_label) | first);
            part[j] += (i != place[j]) & ((x > of_label) | ties | is_nan);
        }
    for (int64_t j = 0; j < columns; j++)
        ahead[j] += part[j];
}

static void count_ahead(int64_t count, int64_t pitch, const float *z, const shard_cpu_head_count *c)
{
    for (int64_t j = 0; j < pitch; j += COLUMNS)
        count_ahead_of(count, pitch, shard_min(COLUMNS, pitch - j), z + j, c->logit + j, c->place + j, c->ahead + j);
}

static void widen_all(shard_dtype dtype, int64_t n, const void *from, float *to)
{
    if (dtype == SHARD_FLOAT32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        KERNEL(widen)(dtype, n, from, to);
}

static void narrow_all(shard_dtype dtype, int64_t n, const float *from, void *to)
{
    if (dtype == SHARD_FLOAT32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else
        KERNEL(narrow)(dtype, false, n, from, to);
}

extern const shard_cpu_head_kernels KERNEL(head_kernels);
const shard_cpu_head_kernels KERNEL(head_kernels) = {.exponentials = exponentials,
                                                     .capped_exponentials = capped_exponentials,
                                                     .map_logits = map_logits,
                                                     .gradients = gradients,
                                                     .capped_gradients = capped_gradients,
                                                     .encode = encode,
                                                     .decode = decode,
                                                     .fill_bias = fill_bias,
                                                     .sum_columns = sum_columns,
                                                     .add_logits = add_logits,
                                                     .binary = binary,
                                                     .sum_rows = sum_rows,
                                                     .count_ahead = count_ahead,
                                                     .widen = widen_all,
                                                     .narrow = narrow_all,
                                                     .pack = pack,
                                                     .add_products = add_products,
                                                     .interleave = interleave};

#endif
