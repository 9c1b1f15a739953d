#include "device/cpu/cpu_head.h"

#include "base/error.h"
#include "base/math.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_tile.h"
#include "device/cpu/kernels/pick.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    TILE_BYTES = 384 << 10, /* of a tile's weight: half of a second-level cache with what belongs to it */
    LEAST_TILE = 48,
    MOST_TILE = 768,
    BLOCK = 4 * SHARD_CPU_TILE_ROWS, /* rows of the weight whose gradients are made at a time */
    DEPTH = 128,                     /* of a block of a product: its panel stays in the first-level cache */
    MOST_ROWS = 1024,                /* of x: with more, oneDNN's products are as good */
    LINE = 16,                       /* floats of a cache line */
    UNIT = 64,                       /* alignment */
};

/* One call: the operands as the products need them. */
typedef struct sweep {
    const shard_head *h;
    const shard_cpu_tiler *tiler;
    const shard_cpu_head_kernels *kernels;
    int64_t pitch;     /* rows of x, rounded up to vectors: the length of a row of class-major logits */
    int64_t in_pitch;  /* features, rounded up to vectors */
    int64_t tile;      /* classes */
    int64_t stashed;   /* tiles that have a place in the stash: the first ones */
    bool in_place;     /* the weight's rows are used where they are */
    const float *x;    /* [rows, in] */
    float *by_row;     /* panels of x's rows, along features */
    float *by_feature; /* panels of x's features, along rows */
    char *memory;
    size_t bytes;
} sweep;

/* One thread's arrays. */
typedef struct lane {
    const sweep *s;
    float *z;        /* [tile, pitch]: of the lane, or the tile's place in the stash */
    float *own;      /* the lane's */
    float *scale;    /* [pitch] */
    float *weight;   /* [tile, in_pitch], unless in place */
    float *bias;     /* [tile] */
    float *buffer;   /* [tile] or [in_pitch]: numbers that are added to */
    float *gradient; /* [BLOCK, in_pitch] */
    float *panel;    /* [tile, TILE_MOST_COLS] of the tile's weight */
    float *sum;      /* [rows, in_pitch] */
    double *stats;   /* [rows, SHARD_CE_STATS]: without maxima and exponentials */
    double *logits;  /* [pitch], sums of all logits */
    shard_cpu_head_columns columns;
    char *memory;
    size_t bytes;
} lane;

static int threads_of_sweep(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

static bool fits(const shard_head *h)
{
    return h->dtype != SHARD_FLOAT64 && h->loss.rows > 0 && h->loss.rows <= MOST_ROWS && h->loss.cols > 0 && h->in > 0 &&
           shard_cpu_tiler_at(0) != NULL && shard_cpu_head_kernels_picked() != NULL;
}

/* Lays `count` elements out behind *offset; NULL while `memory` is, to count bytes. */
static void *lay(char *memory, size_t *offset, int64_t count, size_t size)
{
    void *at = memory ? memory + *offset : NULL;
    *offset += ((size_t)count * size + UNIT - 1) / UNIT * UNIT;
    return at;
}

/* ---- a sweep's operands ---- */

static size_t lay_out_sweep(sweep *s)
{
    const shard_head *h = s->h;
    size_t offset = 0;
    s->by_row = lay(s->memory, &offset, shard_cpu_panels_size(s->tiler, h->in, h->loss.rows), sizeof(float));
    s->by_feature = lay(s->memory, &offset, shard_cpu_panels_size(s->tiler, h->loss.rows, h->in), sizeof(float));
    s->x = h->dtype == SHARD_FLOAT32 ? h->x : lay(s->memory, &offset, h->loss.rows * h->in, sizeof(float));
    return offset;
}

/* Sets the sizes of the sweep's tiles. */
static void choose_sizes(sweep *s, const shard_head *h)
{
    *s = (sweep){.h = h, .tiler = shard_cpu_tiler_at(0), .kernels = shard_cpu_head_kernels_picked()};
    s->pitch = shard_round_up(h->loss.rows, s->tiler->width);
    s->in_pitch = shard_round_up(h->in, s->tiler->width);
    s->in_place = h->weight_dtype == SHARD_FLOAT32 && s->in_pitch == h->in;
    int64_t wanted = TILE_BYTES / (s->in_pitch * (int64_t)sizeof(float)) / BLOCK * BLOCK;
    s->tile = shard_head_tile ? shard_head_tile : wanted < LEAST_TILE ? LEAST_TILE : shard_min(wanted, MOST_TILE);
}

/* A tile's place in the stash has its exponentials [tile, pitch], then the centers that they are relative to [pitch]. */
static size_t place_bytes(const sweep *s)
{
    return (size_t)((s->tile + 1) * s->pitch) * sizeof(float);
}

static size_t stash_bytes(const shard_head *h, size_t most)
{
    sweep s;
    choose_sizes(&s, h);
    size_t tiles = (size_t)shard_divide_up(h->loss.cols, s.tile), places = most / place_bytes(&s);
    return (places < tiles ? places : tiles) * place_bytes(&s);
}

static shard_status sweep_begin(sweep *s, shard_device *device, const shard_head *h, bool gradient)
{
    choose_sizes(s, h);
    s->stashed = h->stash ? (int64_t)(h->stash_bytes / place_bytes(s)) : 0;
    s->bytes = lay_out_sweep(s);
    s->memory = shard_cpu_scratch(device, s->bytes);
    if (!s->memory)
        return SHARD_ERROR_MEMORY;
    lay_out_sweep(s);
    if (h->dtype != SHARD_FLOAT32)
        s->kernels->widen(h->dtype, h->loss.rows * h->in, h->x, (float *)s->x);
    shard_cpu_pack_panels(s->tiler, h->in, h->loss.rows, s->x, 1, h->in, s->by_row);
    if (gradient)
        shard_cpu_pack_panels(s->tiler, h->loss.rows, h->in, s->x, h->in, 1, s->by_feature);
    return SHARD_OK;
}

static void sweep_end(sweep *s, shard_device *device)
{
    if (s->memory)
        shard_cpu_scratch_release(device, s->memory, s->bytes);
}

static size_t lay_out_lane(lane *l, bool gradient, bool sum)
{
    const sweep *s = l->s;
    int64_t rows = s->h->loss.rows;
    size_t offset = 0;
    l->own = lay(l->memory, &offset, s->tile * s->pitch, sizeof(float));
    l->scale = gradient ? lay(l->memory, &offset, s->pitch, sizeof(float)) : NULL;
    l->weight = s->in_place ? NULL : lay(l->memory, &offset, s->tile * s->in_pitch, sizeof(float));
    l->bias = lay(l->memory, &offset, s->tile, sizeof(float));
    l->buffer = lay(l->memory, &offset, s->tile > s->in_pitch ? s->tile : s->in_pitch, sizeof(float));
    l->gradient = gradient ? lay(l->memory, &offset, BLOCK * s->in_pitch, sizeof(float)) : NULL;
    l->panel = sum ? lay(l->memory, &offset, s->tile * SHARD_CPU_TILE_MOST_COLS, sizeof(float)) : NULL;
    l->sum = sum ? lay(l->memory, &offset, rows * s->in_pitch, sizeof(float)) : NULL;
    l->stats = lay(l->memory, &offset, rows * SHARD_CE_STATS, sizeof(double));
    l->logits = lay(l->memory, &offset, s->pitch, sizeof(double));
    l->columns.max = lay(l->memory, &offset, s->pitch, sizeof(float));
    l->columns.center = lay(l->memory, &offset, s->pitch, sizeof(float));
    l->columns.factor = lay(l->memory, &offset, s->pitch, sizeof(float));
    l->columns.sum = lay(l->memory, &offset, s->pitch, sizeof(double));
    return offset;
}

/* Lanes for the threads of the sweep, in one block of scratch memory. */
static shard_status lanes_begin(shard_device *device, const sweep *s, int count, lane *lanes, bool gradient, bool sum)
{
    lanes[0] = (lane){.s = s};
    lanes[0].bytes = lay_out_lane(&lanes[0], gradient, sum);
    char *memory = shard_cpu_scratch(device, lanes[0].bytes * (size_t)count);
    if (!memory)
        return SHARD_ERROR_MEMORY;
    for (int i = 0; i < count; i++) {
        lanes[i] = (lane){.s = s, .bytes = lanes[0].bytes, .memory = memory + (size_t)i * lanes[0].bytes};
        lay_out_lane(&lanes[i], gradient, sum);
        memset(lanes[i].memory, 0, lanes[i].bytes);
        for (int64_t j = 0; j < s->pitch; j++)
            lanes[i].columns.max[j] = lanes[i].columns.center[j] = -INFINITY;
    }
    return SHARD_OK;
}

static void lanes_end(shard_device *device, int count, lane *lanes)
{
    if (lanes[0].memory)
        shard_cpu_scratch_release(device, lanes[0].memory, lanes[0].bytes * (size_t)count);
}

/* ---- products ---- */

/* A tile: its first class, how many, and its rows of float32, `pitch` apart. */
typedef struct tile {
    int64_t first, count, pitch;
    const float *weight;
    float *stash; /* the tile's place; NULL: it has none */
} tile;

/* The tile's place in the stash. */
static float *place_at(const sweep *s, int64_t first)
{
    int64_t index = first / s->tile;
    return index < s->stashed ? (float *)((char *)s->h->stash + (size_t)index * place_bytes(s)) : NULL;
}

/* multiplies: the tile's rows are needed. */
static tile tile_at(lane *l, int64_t first, bool multiplies)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    tile t = {
        .first = first, .count = shard_min(s->tile, h->loss.cols - first), .pitch = s->in_pitch, .stash = place_at(s, first)};
    l->z = l->own;
    const char *rows = (const char *)h->weight + (size_t)(first * h->in) * shard_dtype_size(h->weight_dtype);
    t.weight = s->in_place ? (const float *)rows : l->weight;
    for (int64_t i = 0; i < t.count && multiplies && !s->in_place; i++)
        s->kernels->widen(h->weight_dtype, h->in, rows + (size_t)(i * h->in) * shard_dtype_size(h->weight_dtype),
                          l->weight + i * s->in_pitch);
    return t;
}

/* Fetches what the tile after this one has at the place of one block of a product. */
static void prefetch_block(const sweep *s, const tile *t, int64_t row, int64_t first, int64_t depth)
{
    int64_t next = t->first + s->tile + row;
    for (int64_t i = next; i < shard_min(next + SHARD_CPU_TILE_ROWS, s->h->loss.cols) && s->in_place; i++)
        for (int64_t k = first; k < first + depth; k += LINE)
            __builtin_prefetch((const float *)s->h->weight + i * s->h->in + k, 0, 2);
}

/* z [count, pitch]: the logits of the tile, classes by rows of x. */
static void multiply_logits(lane *l, const tile *t)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    size_t size = shard_dtype_size(h->weight_dtype);
    if (h->bias)
        s->kernels->widen(h->weight_dtype, t->count, (const char *)h->bias + (size_t)t->first * size, l->bias);
    for (int64_t i = 0; i < t->count; i++)
        for (int64_t j = 0; j < s->pitch; j++)
            l->z[i * s->pitch + j] = h->bias ? l->bias[i] : 0;
    for (int64_t row = 0, cols; row < s->pitch; row += cols) {
        cols = shard_cpu_panel_cols(s->tiler, h->loss.rows, row);
        for (int64_t k = 0; k < h->in; k += DEPTH) {
            for (int64_t i = 0; i < t->count; i += SHARD_CPU_TILE_ROWS) {
                if (row == 0)
                    prefetch_block(s, t, i, k, shard_min(DEPTH, h->in - k));
                shard_cpu_tile product = {.images = 1,
                                          .lines = 1,
                                          .depth = shard_min(DEPTH, h->in - k),
                                          .a = t->weight + i * t->pitch + k,
                                          .a_row = t->pitch,
                                          .a_step = 1,
                                          .b = s->by_row + row * h->in + k * cols,
                                          .b_step = cols,
                                          .c = l->z + i * s->pitch + row,
                                          .c_row = s->pitch,
                                          .accumulate = true};
                s->tiler->multiply(&product, shard_min(t->count - i, SHARD_CPU_TILE_ROWS), (int)(cols / s->tiler->width));
            }
        }
    }
}

/* sum [rows, in_pitch] += the exponentials, transposed, times the tile's weight. */
static void add_weighted(lane *l, const tile *t)
{
    const sweep *s = l->s;
    int64_t rows = s->h->loss.rows;
    for (int64_t k = 0, cols; k < s->in_pitch; k += cols) {
        cols = shard_cpu_panel_cols(s->tiler, s->h->in, k);
        for (int64_t i = 0; i < t->count; i++) /* the tile's rows are apart by what may be a power of two: few sets of a cache */
            memcpy(l->panel + i * cols, t->weight + i * t->pitch + k, (size_t)cols * sizeof(float));
        for (int64_t row = 0; row < rows; row += SHARD_CPU_TILE_ROWS) {
            shard_cpu_tile product = {.images = 1,
                                      .lines = 1,
                                      .depth = t->count,
                                      .a = l->z + row,
                                      .a_row = 1,
                                      .a_step = s->pitch,
                                      .b = l->panel,
                                      .b_step = cols,
                                      .c = l->sum + row * s->in_pitch + k,
                                      .c_row = s->in_pitch,
                                      .accumulate = true};
            s->tiler->multiply(&product, shard_min(rows - row, SHARD_CPU_TILE_ROWS), (int)(cols / s->tiler->width));
        }
    }
}

/* gradient [count, in_pitch] = rows [first, first + count) of dz, times x. */
static void multiply_gradient(lane *l, int64_t first, int64_t count)
{
    const sweep *s = l->s;
    int64_t rows = s->h->loss.rows;
    for (int64_t k = 0, cols; k < s->in_pitch; k += cols) {
        cols = shard_cpu_panel_cols(s->tiler, s->h->in, k);
        for (int64_t i = 0; i < count; i += SHARD_CPU_TILE_ROWS) {
            shard_cpu_tile product = {.images = 1,
                                      .lines = 1,
                                      .depth = rows,
                                      .a = l->z + (first + i) * s->pitch,
                                      .a_row = s->pitch,
                                      .a_step = 1,
                                      .b = s->by_feature + k * rows,
                                      .b_step = cols,
                                      .c = l->gradient + i * s->in_pitch + k,
                                      .c_row = s->in_pitch};
            s->tiler->multiply(&product, shard_min(count - i, SHARD_CPU_TILE_ROWS), (int)(cols / s->tiler->width));
        }
    }
}

/* ---- forward ---- */

static float class_weight(const shard_head *h, int64_t class)
{
    return h->class_weight ? ((const float *)h->class_weight)[class] : 1;
}

/* The labels' part of the statistics. */
static void add_targets(lane *l, const tile *t)
{
    const sweep *s = l->s;
    const shard_cross_entropy_shape *shape = &s->h->loss;
    for (int64_t row = 0; row < shape->rows; row++) {
        int64_t label = s->h->target[row], class = label - shape->col0 - t->first;
        double *stats = l->stats + row * SHARD_CE_STATS;
        if (shard_label_ignored(shape, label) || class < 0 || class >= t->count)
            continue;
        double weight = (double)class_weight(s->h, t->first + class), q = (1 - shape->smoothing) * weight;
        stats[SHARD_CE_A] += q * (double)l->z[class * s->pitch + row];
        stats[SHARD_CE_B] += q;
        stats[SHARD_CE_WEIGHT] += weight;
    }
}

static void forward_tile(lane *l, int64_t first)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    const float *weights = h->class_weight ? (const float *)h->class_weight + first : NULL;
    tile t = tile_at(l, first, true);
    l->z = t.stash ? t.stash : l->own;
    multiply_logits(l, &t);
    add_targets(l, &t);
    if (h->loss.smoothing != 0)
        s->kernels->add_logits(t.count, s->pitch, l->z, weights, l->logits);
    bool moved = s->kernels->exponentials(t.count, s->pitch, l->z, &l->columns);
    if (t.stash)
        memcpy(t.stash + s->tile * s->pitch, l->columns.center, (size_t)s->pitch * sizeof(float));
    if (!l->sum)
        return;
    for (int64_t row = 0; row < h->loss.rows && moved; row++)
        for (int64_t k = 0; k < s->in_pitch && l->columns.factor[row] != 1; k++)
            l->sum[row * s->in_pitch + k] *= l->columns.factor[row];
    add_weighted(l, &t);
}

/* Joins what the lanes have of a row, in their order; all of it relative to the largest logit. */
static void join_row(const sweep *s, int lanes, const lane *l, double weights, int64_t row, double *stats, float *sum)
{
    const shard_cross_entropy_shape *shape = &s->h->loss;
    double max = -INFINITY, spread = shape->classes ? shape->smoothing / (double)shape->classes : 0;
    for (int i = 0; i < lanes; i++)
        max = (double)l[i].columns.max[row] > max ? (double)l[i].columns.max[row] : max;
    memset(stats, 0, SHARD_CE_STATS * sizeof *stats);
    for (int64_t k = 0; k < s->h->in && sum; k++)
        sum[k] = 0;
    for (int i = 0; i < lanes; i++) {
        double center = (double)l[i].columns.center[row], factor = center == -INFINITY ? 1 : exp(center - max);
        stats[SHARD_CE_SUM] += l[i].columns.sum[row] * factor;
        for (int k = SHARD_CE_A; k < SHARD_CE_STATS; k++)
            stats[k] += l[i].stats[row * SHARD_CE_STATS + k];
        if (!shard_label_ignored(shape, s->h->target[row]))
            stats[SHARD_CE_A] += spread * l[i].logits[row];
        for (int64_t k = 0; k < s->h->in && sum; k++)
            sum[k] += (float)factor * l[i].sum[row * s->in_pitch + k];
    }
    stats[SHARD_CE_MAX] = max;
    if (!shard_label_ignored(shape, s->h->target[row]))
        stats[SHARD_CE_B] += spread * weights;
}

static shard_status forward(shard_device *device, const shard_head *h, double *stats, void *sum)
{
    sweep s;
    int threads = threads_of_sweep();
    lane lanes[threads];
    lanes[0].memory = NULL;
    shard_status status = sweep_begin(&s, device, h, false);
    if (status == SHARD_OK)
        status = lanes_begin(device, &s, threads, lanes, false, sum != NULL);
    if (status == SHARD_OK) {
        double weights = 0; /* of the local classes */
        int64_t tiles = (h->loss.cols + s.tile - 1) / s.tile;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < tiles; i++)
#ifdef _OPENMP
            forward_tile(&lanes[omp_get_thread_num()], i * s.tile);
#else
            forward_tile(&lanes[0], i * s.tile);
#endif
        for (int64_t i = 0; i < h->loss.cols && h->loss.smoothing != 0; i++)
            weights += (double)class_weight(h, i);
        for (int64_t row = 0; row < h->loss.rows; row++)
            join_row(&s, threads, lanes, weights, row, stats + row * SHARD_CE_STATS, sum ? (float *)sum + row * h->in : NULL);
    }
    lanes_end(device, threads, lanes);
    sweep_end(&s, device);
    return status;
}

/* ---- the weight's gradient ---- */

/* The constants of each row of x; past the last row they give zeros. */
static void fill_gradient(const sweep *s, const shard_head_rows *rows, const shard_cpu_head_gradient *g)
{
    const shard_cross_entropy_shape *shape = &s->h->loss;
    double spread = shape->classes ? shape->smoothing / (double)shape->classes : 0;
    for (int64_t j = 0; j < s->pitch; j++) {
        bool counts = j < shape->rows && !shard_label_ignored(shape, s->h->target[j]);
        double lse = counts ? rows->lse[j] : 0;
        g->factor[j] = counts ? (float)(rows->scale[j] * rows->slope[j]) : 0;
        g->high[j] = (float)lse;
        g->low[j] = (float)((double)g->high[j] - lse);
        g->spread[j] = counts ? (float)(rows->scale[j] * spread) : 0;
    }
}

static void subtract_targets(lane *l, const tile *t, const double *scale)
{
    const sweep *s = l->s;
    const shard_cross_entropy_shape *shape = &s->h->loss;
    for (int64_t row = 0; row < shape->rows; row++) {
        int64_t label = s->h->target[row], class = label - shape->col0 - t->first;
        if (!shard_label_ignored(shape, label) && class >= 0 && class < t->count)
            l->z[class * s->pitch + row] -= (float)(scale[row] * (1 - shape->smoothing)) * class_weight(s->h, t->first + class);
    }
}

/* Adds n numbers to memory of a dtype, or writes them to it. */
static void put(const sweep *s, shard_dtype dtype, int64_t n, float *from, void *to, bool accumulate, float *buffer)
{
    if (accumulate) {
        s->kernels->widen(dtype, n, to, buffer);
        for (int64_t i = 0; i < n; i++)
            from[i] += buffer[i];
    }
    s->kernels->narrow(dtype, n, from, to);
}

/* `gradient` [count, in_pitch] of rows from `first` on. */
static shard_status give(lane *l, shard_device *device, const shard_head_gradient *to, int64_t first, int64_t count)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    for (int64_t i = 1; i < count && s->in_pitch != h->in; i++)
        memmove(l->gradient + i * h->in, l->gradient + i * s->in_pitch, (size_t)h->in * sizeof(float));
    if (!to->weight && h->weight_dtype == SHARD_FLOAT32)
        return to->take(to->context, device, first, count, l->gradient);
    if (!to->weight) { /* the tile's logits are computed: the memory of its rows is free */
        s->kernels->narrow(h->weight_dtype, count * h->in, l->gradient, l->weight);
        return to->take(to->context, device, first, count, l->weight);
    }
    for (int64_t i = 0; i < count; i++)
        put(s, h->weight_dtype, h->in, l->gradient + i * h->in,
            (char *)to->weight + (size_t)((first + i) * h->in) * shard_dtype_size(h->weight_dtype), to->accumulate, l->buffer);
    return SHARD_OK;
}

/* The factors of the tile's exponentials, which are relative to its centers. */
static void scale_stash(lane *l, const tile *t, const shard_head_rows *rows, const shard_cpu_head_gradient *g)
{
    const sweep *s = l->s;
    const float *center = t->stash + s->tile * s->pitch;
    for (int64_t j = 0; j < s->pitch; j++)
        l->scale[j] = j < s->h->loss.rows && g->factor[j] != 0
                          ? (float)(rows->scale[j] * rows->slope[j] * exp((double)center[j] - rows->lse[j]))
                          : 0;
}

static shard_status gradient_of_tile(lane *l, shard_device *device, int64_t first, const shard_head_rows *rows,
                                     const shard_cpu_head_gradient *g, const shard_head_gradient *to)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    const float *weights = h->class_weight ? (const float *)h->class_weight + first : NULL;
    tile t = tile_at(l, first, place_at(s, first) == NULL);
    if (t.stash) {
        scale_stash(l, &t, rows, g);
        s->kernels->scaled(t.count, s->pitch, t.stash, l->z, weights, &(shard_cpu_head_scaled){l->scale, g});
    } else {
        multiply_logits(l, &t);
        s->kernels->gradients(t.count, s->pitch, l->z, weights, g);
    }
    subtract_targets(l, &t, rows->scale);
    if (to->bias) {
        for (int64_t i = 0; i < t.count; i++) {
            double sum = 0;
            for (int64_t row = 0; row < h->loss.rows; row++)
                sum += (double)l->z[i * s->pitch + row];
            l->bias[i] = (float)sum;
        }
        put(s, h->weight_dtype, t.count, l->bias, (char *)to->bias + (size_t)first * shard_dtype_size(h->weight_dtype),
            to->accumulate_bias, l->buffer);
    }
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < t.count && status == SHARD_OK && (to->weight || to->take); i += BLOCK) {
        int64_t count = shard_min(BLOCK, t.count - i);
        multiply_gradient(l, i, count);
        status = give(l, device, to, first + i, count);
    }
    return status;
}

static shard_status weight_gradient(shard_device *device, const shard_head *h, const shard_head_rows *rows,
                                    const shard_head_gradient *to)
{
    sweep s;
    int threads = threads_of_sweep();
    lane lanes[threads];
    lanes[0].memory = NULL;
    shard_status status = sweep_begin(&s, device, h, true);
    if (status == SHARD_OK)
        status = lanes_begin(device, &s, threads, lanes, true, false);
    size_t bytes = 4 * (size_t)s.pitch * sizeof(float);
    float *constants = status == SHARD_OK ? shard_cpu_scratch(device, bytes) : NULL;
    if (constants) {
        const shard_cpu_head_gradient g = {constants, constants + s.pitch, constants + 2 * s.pitch, constants + 3 * s.pitch};
        int64_t tiles = (h->loss.cols + s.tile - 1) / s.tile;
        atomic_int failure = SHARD_OK;
        fill_gradient(&s, rows, &g);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < tiles; i++) {
#ifdef _OPENMP
            lane *l = &lanes[omp_get_thread_num()];
#else
            lane *l = &lanes[0];
#endif
            shard_status result = gradient_of_tile(l, device, i * s.tile, rows, &g, to);
            if (result != SHARD_OK)
                atomic_store(&failure, (int)result);
        }
        status = (shard_status)atomic_load(&failure);
        if (status != SHARD_OK)
            status = shard_error(status, "a weight's update failed in a thread of its sweep");
        shard_cpu_scratch_release(device, constants, bytes);
    } else if (status == SHARD_OK) {
        status = SHARD_ERROR_MEMORY;
    }
    lanes_end(device, threads, lanes);
    sweep_end(&s, device);
    return status;
}

const struct shard_head_ops shard_cpu_head = {
    .fits = fits, .stash_bytes = stash_bytes, .forward = forward, .weight_gradient = weight_gradient};
