/*
 * Softmax cross-entropy in the sweeps of a head: a kernel of its own for each of the two passes over a tile's logits.
 *
 * The forward reads a tile's logits once. Their exponentials are relative to a reference of the row, which is not the largest
 * logit so far but within LAG of it: as long as no logit is further above it, neither the row's sum of weights nor its
 * exponentials of the tiles before have to be scaled (FlashAttention 4 rescales as seldom). A row that has no reference yet, or a
 * logit that is further above it, is read a second time. The statistics and the sum are brought to the largest logit when all
 * tiles have been read.
 *
 * The gradient reads the logits, or the exponentials that the forward kept, and writes the derivatives.
 */
#include "device/cuda/exp_sum.cuh"
#include "device/cuda/label_rank.cuh"

extern "C" {
#include "device/head_sweep.h"
}

using namespace shard;

enum {
    LAG = 8, /* exponentials are at most exp(8) = 2981, which float16 has */
    /* Threads of a row in the forward: for rows of up to SHORT columns few, so that each has enough to read between the sums of
     * the block; for longer ones so many that 256 rows fill a GPU. */
    SHORT = 8192,
    SHORT_TEAM = 128,
    LONG_TEAM = 512,
    THREADS = 1024, /* of a multiprocessor, at least */
};

struct Tile {
    shard_cross_entropy_shape shape; /* col0 and cols are the tile's */
    const float *logits, *bias;
    const int64_t *target;
    const float *class_weight, *shift;
    double keep, spread; /* a label has `keep` of its class weight as target, each class `spread`, which is 0 without smoothing */
    int64_t packed;      /* logits and results are read and written in packs together */

    __device__ bool ignores(int64_t row) const
    {
        return shard_label_ignored(&shape, target[row]);
    }
    /* The target's column in the tile, or -1. */
    __device__ int64_t label(int64_t row) const
    {
        return shard_label_column(&shape, target[row]);
    }
    __device__ float shift_of(int64_t row) const
    {
        return shift ? shift[row] : 0;
    }
    __device__ float weight_of(int64_t column) const
    {
        return class_weight ? class_weight[column] : 1;
    }
};

/* The logits of a batch of packs, with the bias and the target's margin. */
template <int COUNT, int SIZE>
static __device__ inline void complete(const Tile &t, int64_t label, float shift, const int64_t (&first)[COUNT],
                                       float (&value)[COUNT * SIZE])
{
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        if (t.bias)
            for (int j = 0; j < SIZE; j++)
                value[k * SIZE + j] += t.bias[first[k] + j];
        if (label >= first[k] && label < first[k] + SIZE)
#pragma unroll
            for (int j = 0; j < SIZE; j++)
                value[k * SIZE + j] += label == first[k] + j ? shift : 0;
    }
}

static __device__ inline float complete_one(const Tile &t, int64_t label, float shift, int64_t i, float value)
{
    return value + (t.bias ? t.bias[i] : 0) + (label == i ? shift : 0);
}

/* ---- forward ---- */

template <class U> struct Forward : Tile {
    int64_t in;
    double *stats;
    float *reference, *largest, *sum;
    float *kept;               /* [rows]: a copy of the references; NULL: not wanted */
    const double *label_logit; /* [rows], for ahead */
    int64_t *ahead;            /* [rows], added to */
    U *out;                    /* the exponentials; NULL: not wanted */
};

/* Of the logits of a row that one thread reads: the largest, the sum of exponentials, how many come before the label's; of
 * smoothed labels the sums of the class weights and of the logits times them. */
struct Found {
    float largest;
    double sum;
    int64_t ahead;
    double weight, weighted;
};

template <int COUNT, int SIZE>
static __device__ inline void add_weighted(const Tile &t, const int64_t (&first)[COUNT], const float (&value)[COUNT * SIZE],
                                           Found *found)
{
    float weight = 0, weighted = 0;
#pragma unroll
    for (int k = 0; k < COUNT * SIZE; k++) {
        float w = t.weight_of(first[k / SIZE] + k % SIZE);
        weight += w;
        weighted += w * value[k];
    }
    found->weight += (double)weight;
    found->weighted += (double)weighted;
}

/* Exponentials relative to `reference`, of one row. */
template <class U, int TEAM, bool RANKED>
static __device__ inline Found exponentials(const Forward<U> &t, int64_t row, int64_t label, float reference)
{
    Found found = {-INFINITY, 0, 0, 0, 0};
    const float *x = t.logits + row * t.shape.cols;
    U *out = t.out ? t.out + row * t.shape.cols : NULL;
    float shift = t.shift_of(row), center = reference == -INFINITY ? 0 : reference;
    float own = RANKED ? (float)t.label_logit[row] : 0;
    int64_t left = RANKED && !t.ignores(row) ? t.target[row] - t.shape.col0 : 0;
    int ahead = 0;
    walk(
        Cut<float>(x, t.shape.cols, t.packed), (int)threadIdx.x, TEAM,
        [&](auto &first) {
            enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<float>::SIZE };
            float value[COUNT * SIZE], total = 0;
            load_batch<float, COUNT>(x, first, value);
            complete<COUNT, SIZE>(t, label, shift, first, value);
#pragma unroll
            for (int k = 0; k < (RANKED ? COUNT : 0); k++)
#pragma unroll
                for (int j = 0; j < SIZE; j++)
                    ahead += left != first[k] + j && comes_before(value[k * SIZE + j], own, first[k] + j < left);
            if (t.spread != 0)
                add_weighted<COUNT, SIZE>(t, first, value, &found);
#pragma unroll
            for (int k = 0; k < COUNT * SIZE; k++) {
                found.largest = fmaxf(found.largest, value[k]);
                value[k] = exp_relative(value[k], center);
                total += value[k];
            }
            found.sum += (double)total;
            if (out)
                store_like<float, COUNT>(out, first, value);
        },
        [&](int64_t i) {
            float value = complete_one(t, label, shift, i, x[i]);
            if (RANKED)
                ahead += i != left && comes_before(value, own, i < left);
            if (t.spread != 0)
                add_weighted<1, 1>(t, {i}, {value}, &found);
            found.largest = fmaxf(found.largest, value);
            value = exp_relative(value, center);
            found.sum += (double)value;
            if (out)
                out[i] = round_to<U>(value);
        });
    found.largest = block_reduce<TEAM, Maximum>(found.largest);
    found.sum = block_reduce<TEAM, Sum>(found.sum);
    found.ahead = RANKED ? block_reduce<TEAM, Sum>((int64_t)ahead) : 0;
    if (t.spread != 0) {
        found.weight = block_reduce<TEAM, Sum>(found.weight);
        found.weighted = block_reduce<TEAM, Sum>(found.weighted);
    }
    return found;
}

/* The largest logit of a row. */
template <int TEAM> static __device__ inline float largest_of(const Tile &t, int64_t row, int64_t label)
{
    const float *x = t.logits + row * t.shape.cols;
    float largest = -INFINITY, shift = t.shift_of(row);
    walk(
        Cut<float>(x, t.shape.cols, t.packed), (int)threadIdx.x, TEAM,
        [&](auto &first) {
            enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<float>::SIZE };
            float value[COUNT * SIZE];
            load_batch<float, COUNT>(x, first, value);
            complete<COUNT, SIZE>(t, label, shift, first, value);
#pragma unroll
            for (int k = 0; k < COUNT * SIZE; k++)
                largest = fmaxf(largest, value[k]);
        },
        [&](int64_t i) { largest = fmaxf(largest, complete_one(t, label, shift, i, x[i])); });
    return block_reduce<TEAM, Maximum>(largest);
}

/* Adds what a tile has of a row to its statistics. by: the factor of the sum so far. */
template <class U, bool RANKED>
static __device__ inline void add_row(const Forward<U> &t, int64_t row, int64_t label, const Found &found, double by)
{
    double *stats = t.stats + row * SHARD_CE_STATS;
    stats[SHARD_CE_SUM] = (by != 1 ? stats[SHARD_CE_SUM] * by : stats[SHARD_CE_SUM]) + found.sum;
    t.largest[row] = fmaxf(t.largest[row], found.largest);
    if (RANKED && !t.ignores(row))
        t.ahead[row] += found.ahead;
    if (t.spread != 0 && !t.ignores(row)) {
        stats[SHARD_CE_A] += t.spread * found.weighted;
        stats[SHARD_CE_B] += t.spread * found.weight;
    }
    if (label < 0)
        return;
    double weight = (double)t.weight_of(label), logit = (double)t.logits[row * t.shape.cols + label];
    stats[SHARD_CE_A] += t.keep * weight * (double)complete_one(t, label, t.shift_of(row), label, (float)logit);
    stats[SHARD_CE_B] += t.keep * weight;
    stats[SHARD_CE_WEIGHT] += weight;
}

template <class U, int TEAM, bool RANKED>
static __global__ void __launch_bounds__(TEAM, THREADS / TEAM) forward_tile(Forward<U> t)
{
    for (int64_t row = blockIdx.x; row < t.shape.rows; row += gridDim.x) {
        int64_t label = t.label(row);
        float old = t.reference[row], reference = old == -INFINITY ? largest_of<TEAM>(t, row, label) : old;
        Found found = exponentials<U, TEAM, RANKED>(t, row, label, reference);
        if (found.largest > reference + LAG) {
            reference = found.largest;
            found = exponentials<U, TEAM, RANKED>(t, row, label, reference);
        }
        bool moves = old != -INFINITY && old != reference;
        double by = moves ? exp((double)old - (double)reference) : 1;
        for (int64_t k = threadIdx.x; t.sum && moves && k < t.in; k += TEAM)
            t.sum[row * t.in + k] *= (float)by;
        if (threadIdx.x != 0)
            continue;
        add_row<U, RANKED>(t, row, label, found, by);
        t.reference[row] = reference;
        if (t.kept)
            t.kept[row] = reference;
    }
}

/* Sets the statistics of no classes. */
static __global__ void start(int64_t rows, double *stats, float *reference, float *largest, int64_t *ahead)
{
    for (int64_t row = (int64_t)blockIdx.x * BLOCK + threadIdx.x; row < rows; row += (int64_t)gridDim.x * BLOCK) {
        for (int k = 0; k < SHARD_CE_STATS; k++)
            stats[row * SHARD_CE_STATS + k] = k == SHARD_CE_MAX ? -INFINITY : 0;
        reference[row] = largest[row] = -INFINITY;
        if (ahead)
            ahead[row] = 0;
    }
}

/* From the references to the largest logits. */
static __global__ void finish(int64_t rows, int64_t in, const float *reference, const float *largest, double *stats, float *sum)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        double by = largest[row] == reference[row] ? 1 : exp((double)reference[row] - (double)largest[row]);
        for (int64_t k = threadIdx.x; sum && by != 1 && k < in; k += BLOCK)
            sum[row * in + k] *= (float)by;
        if (threadIdx.x != 0)
            continue;
        stats[row * SHARD_CE_STATS + SHARD_CE_MAX] = (double)largest[row];
        if (by != 1)
            stats[row * SHARD_CE_STATS + SHARD_CE_SUM] *= by;
    }
}

/* ---- gradient ---- */

template <class U> struct Gradient : Tile {
    shard_loss_rows rows;
    const double *target_slope;
    const U *stash;    /* the forward's exponentials, relative to kept; NULL: of the logits */
    const float *kept; /* [rows] */
    float *wide;       /* the derivatives that are not rounded; NULL: not wanted */
    U *out;
};

/* The numbers of a row: derivatives are factor exp(z - center) or factor e, less `spread` times the class weight, and less `keep`
 * at the label, times `slope`. */
struct RowFactors {
    float factor, center, keep, spread, slope;
    int64_t label;
    bool ignored;
};

template <class U> static __device__ inline RowFactors factors_of(const Gradient<U> &t, int64_t row)
{
    RowFactors f;
    double scale = t.rows.scale[row], error = t.rows.lse_error ? t.rows.lse_error[row] : 0;
    f.label = t.label(row);
    f.ignored = t.ignores(row);
    f.center = (float)t.rows.lse[row];
    double reference = (double)(t.stash ? t.kept[row] : f.center);
    f.factor = (float)(scale * t.rows.slope[row]) * exp_relative((float)(reference - t.rows.lse[row] - error), 0.0F);
    f.keep = (float)(scale * t.keep) * (f.label >= 0 ? t.weight_of(f.label) : 1);
    f.spread = (float)(scale * t.spread);
    f.slope = t.target_slope ? (float)t.target_slope[row] : 1;
    return f;
}

template <int COUNT, int SIZE>
static __device__ inline void differentiate(const Tile &part, const RowFactors &f, int64_t label, const int64_t (&first)[COUNT],
                                            float (&value)[COUNT * SIZE])
{
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
#pragma unroll
        for (int j = 0; j < SIZE; j++)
            value[k * SIZE + j] = f.ignored ? 0 : f.factor * value[k * SIZE + j];
        if (f.spread != 0 && !f.ignored)
#pragma unroll
            for (int j = 0; j < SIZE; j++)
                value[k * SIZE + j] -= f.spread * part.weight_of(first[k] + j);
        int64_t at = label - first[k];
        if (label >= 0 && at >= 0 && at < SIZE)
#pragma unroll
            for (int j = 0; j < SIZE; j++)
                value[k * SIZE + j] = at == j ? (value[k * SIZE + j] - f.keep) * f.slope : value[k * SIZE + j];
    }
}

/* Z: of what is read, logits if float. */
template <class Z, class U>
static __global__ void __launch_bounds__(BLOCK, THREADS / BLOCK) gradient_tile(Gradient<U> t, const Z *from, Rows shape)
{
    constexpr bool EXPONENTIALS = !std::is_same<Z, float>::value;
    for (int64_t index = blockIdx.x; index < shape.rows * shape.chunks; index += gridDim.x) {
        int64_t row = index / shape.chunks, start = index % shape.chunks * shape.width;
        int64_t count = shape.cols - start < shape.width ? shape.cols - start : shape.width, at = row * shape.cols + start;
        const RowFactors f = factors_of(t, row);
        const Z *x = from + at;
        U *out = t.out + at;
        float *wide = t.wide ? t.wide + at : NULL, shift = t.shift_of(row);
        int64_t label = f.label < start ? -1 : f.label - start;
        Tile part = t;
        part.bias = t.bias ? t.bias + start : NULL;
        part.class_weight = t.class_weight ? t.class_weight + start : NULL;
        walk<EXPONENTIALS ? PACKS / 2 : PACKS>(
            Cut<Z>(x, count, t.packed), (int)threadIdx.x, BLOCK,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<Z>::SIZE };
                float value[COUNT * SIZE];
                load_batch<Z, COUNT>(x, first, value);
                if (!EXPONENTIALS) {
                    complete<COUNT, SIZE>(part, label, shift, first, value);
#pragma unroll
                    for (int k = 0; k < COUNT * SIZE; k++)
                        value[k] = exp_relative(value[k], f.center);
                }
                differentiate<COUNT, SIZE>(part, f, label, first, value);
                if (wide)
#pragma unroll
                    for (int k = 0; k < COUNT; k++)
#pragma unroll
                        for (int j = 0; j < SIZE; j++)
                            wide[first[k] + j] = value[k * SIZE + j];
                store_like<Z, COUNT>(out, first, value);
            },
            [&](int64_t i) {
                float value = to_real(x[i]);
                if (!EXPONENTIALS)
                    value = exp_relative(complete_one(part, label, shift, i, value), f.center);
                value = f.ignored ? 0 : f.factor * value;
                if (f.spread != 0 && !f.ignored)
                    value -= f.spread * part.weight_of(i);
                if (label == i)
                    value = (value - f.keep) * f.slope;
                if (wide)
                    wide[i] = value;
                out[i] = round_to<U>(value);
            });
    }
}

/* ---- the table ---- */

static Tile tile_of(const sweep *s, const tile *t)
{
    const shard_head *h = s->h;
    Tile of = {};
    of.shape = head_tile_shape(s, t);
    of.logits = (const float *)s->logits;
    of.bias = (const float *)t->bias;
    of.target = h->target;
    of.class_weight = (const float *)t->class_weight;
    of.shift = (const float *)h->margin_shift;
    of.keep = 1 - h->loss.smoothing;
    of.spread = h->loss.classes ? h->loss.smoothing / (double)h->loss.classes : 0;
    return of;
}

static bool fits(const shard_head *h)
{
    return h->dtype != SHARD_FLOAT64 && !h->loss.map.maps && h->loss.rows > 0;
}

static shard_status begin(sweep *s, double *stats)
{
    int64_t rows = s->h->loss.rows;
    return launch(s->device, start, blocks_for(s->device, rows, BLOCK), BLOCK, rows, stats, s->reference, s->largest,
                  s->h->ahead);
}

static shard_status forward(sweep *s, const tile *t, double *stats, void *sum)
{
    const shard_head *h = s->h;
    unsigned blocks = (unsigned)(h->loss.rows < 1 << 30 ? h->loss.rows : 1 << 30);
    return by_narrow(h->dtype, [&](auto u) {
        using U = decltype(u);
        Forward<U> form = {};
        (Tile &)form = tile_of(s, t);
        form.in = h->in;
        form.stats = stats;
        form.reference = s->reference;
        form.largest = s->largest;
        form.sum = (float *)sum;
        form.kept = t->stash_reference;
        form.label_logit = h->label_logit;
        form.ahead = h->ahead;
        form.out = sum || t->stash ? (U *)t->narrow : NULL;
        form.packed = !form.out || packs_alike(form.logits, sizeof(float), form.out, sizeof(U));
        auto run = [&](auto kernel, int team) { return launch(s->device, kernel, blocks, team, form); };
        if (t->count <= SHORT)
            return run(h->ahead ? forward_tile<U, SHORT_TEAM, true> : forward_tile<U, SHORT_TEAM, false>, SHORT_TEAM);
        return run(h->ahead ? forward_tile<U, LONG_TEAM, true> : forward_tile<U, LONG_TEAM, false>, LONG_TEAM);
    });
}

static shard_status end(sweep *s, double *stats, void *sum)
{
    int64_t rows = s->h->loss.rows;
    return launch(s->device, finish, blocks_for(s->device, rows, 1), BLOCK, rows, s->h->in, s->reference, s->largest, stats,
                  (float *)sum);
}

static shard_status gradient(sweep *s, const tile *t, const shard_loss_rows *rows)
{
    const shard_head *h = s->h;
    Rows cut = cut_rows(s->device, h->loss.rows, t->count);
    return by_narrow(h->dtype, [&](auto u) {
        using U = decltype(u);
        Gradient<U> form = {};
        (Tile &)form = tile_of(s, t);
        form.rows = *rows;
        form.target_slope = h->margin_slope;
        form.stash = (const U *)t->stash;
        form.kept = t->stash_reference;
        form.wide = s->wide_derivatives && (void *)s->logits != t->narrow ? (float *)s->logits : NULL;
        form.out = (U *)t->narrow;
        unsigned blocks = team_blocks(cut.rows * cut.chunks, BLOCK);
        if constexpr (std::is_same<U, __nv_bfloat16>::value)
            if (t->stash) {
                form.packed = packs_alike(form.stash, sizeof(U), form.out, sizeof(U));
                return launch(s->device, gradient_tile<U, U>, blocks, BLOCK, form, form.stash, cut);
            }
        form.packed = packs_alike(form.logits, sizeof(float), form.out, sizeof(U));
        return launch(s->device, gradient_tile<float, U>, blocks, BLOCK, form, form.logits, cut);
    });
}

extern "C" const head_loss shard_cuda_head_softmax = {fits, true, true, begin, forward, end, gradient};
