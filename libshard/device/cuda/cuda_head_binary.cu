/*
 * Binary cross-entropy of pairs in the sweeps of a head: a kernel of its own for each of the two passes over a tile's logits. The
 * forward reads a logit once, for its loss and its derivative. The gradient reads the logits that were computed again, or the
 * derivatives that the forward kept.
 *
 * A block has a chunk of a row. The pairs ascend by row, then by class, so that those of the chunk are a range, which it finds by
 * bisection and marks in shared memory.
 */
#include "device/cuda/exp_sum.cuh"

extern "C" {
#include "device/head_sweep.h"
}

using namespace shard;

enum { CHUNK = SHARD_HEAD_CHUNK, BLOCKS = 4 /* of a multiprocessor, at least */ };

template <class U> struct BinaryTile {
    int64_t rows, cols; /* of the tile */
    int64_t chunks, slots;
    int64_t col0, classes;
    const float *logits, *bias, *class_weight, *positive;
    const int64_t *pair;
    int64_t pairs;
    const double *row_weight; /* of the losses, for their sums; NULL: ones */
    const double *scale;      /* [rows], of the derivatives; NULL: ones */
    double *parts;            /* [rows, slots]: the sums of the losses of chunks, added to */
    float *wide;              /* the derivatives that are not rounded; NULL: not wanted */
    U *out;                   /* the derivatives; NULL: not wanted */
    int64_t packed;           /* logits and results are read and written in packs together */

    __device__ float factor_of(int64_t row) const
    {
        return scale ? (float)scale[row] : 1;
    }
};

/* Sets ones[i] for the pairs of a row in the `count` columns from `start` on; false, with `ones` undefined, if there are none.
 * Every thread of the block takes part. A pair may be any number, as its fault is noted by another call. */
template <class U>
static __device__ inline bool mark(const BinaryTile<U> &b, int64_t row, int64_t start, int64_t count, uint8_t (&ones)[CHUNK])
{
    __shared__ int64_t range[2];
    __syncthreads(); /* the last chunk's readers are done */
    if (threadIdx.x < 2)
        range[threadIdx.x] = shard_first_pair(b.pair, b.pairs, row, b.col0 + start + (threadIdx.x ? count : 0));
    __syncthreads();
    if (range[0] >= range[1])
        return false;
    for (int64_t i = threadIdx.x; i < count; i += BLOCK)
        ones[i] = 0;
    __syncthreads();
    for (int64_t i = range[0] + threadIdx.x; i < range[1]; i += BLOCK) {
        int64_t label = b.pair[b.pairs + i], column = label - b.col0 - start;
        if (b.pair[i] == row && label >= 0 && label < b.classes && column >= 0 && column < count)
            ones[column] = 1;
    }
    __syncthreads();
    return true;
}

/* LOSS: the sums of losses are wanted; SLOPE: the derivatives are. */
template <class U, bool LOSS, bool SLOPE> static __global__ void __launch_bounds__(BLOCK, BLOCKS) binary_tile(BinaryTile<U> b)
{
    __shared__ uint8_t ones[CHUNK];
    for (int64_t index = blockIdx.x; index < b.rows * b.chunks; index += gridDim.x) {
        int64_t row = index / b.chunks, chunk = index % b.chunks, start = chunk * CHUNK, at = row * b.cols + start;
        int64_t rest = b.cols - start, count = rest < CHUNK ? rest : (int64_t)CHUNK;
        bool any = mark(b, row, start, count, ones);
        const float *x = b.logits + at, *bias = b.bias ? b.bias + start : NULL;
        const float *class_weight = b.class_weight ? b.class_weight + start : NULL,
                    *positive = b.positive ? b.positive + start : NULL;
        float *wide = b.wide ? b.wide + at : NULL, factor = b.factor_of(row);
        U *out = b.out ? b.out + at : NULL;
        double sum = 0;
        /* Adds the loss of a logit, and returns its derivative. */
        auto measure = [&](int64_t i, float value, float *total) {
            float y = any ? (float)ones[i] : 0, w = class_weight ? class_weight[i] : 1, p = positive ? positive[i] : 1;
            value += bias ? bias[i] : 0;
            float exponential = exp_relative(value < 0 ? value : -value, 0.0F);
            if (LOSS)
                *total += w * shard_binary_loss(value, y, p, log1pf(exponential));
            return SLOPE ? factor * w * shard_binary_slope(value, y, p, exponential) : 0;
        };
        walk(
            Cut<float>(x, count, b.packed), (int)threadIdx.x, BLOCK,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<float>::SIZE };
                float value[COUNT * SIZE], total = 0;
                load_batch<float, COUNT>(x, first, value);
#pragma unroll
                for (int k = 0; k < COUNT * SIZE; k++)
                    value[k] = measure(first[k / SIZE] + k % SIZE, value[k], &total);
                sum += (double)total;
                if (SLOPE && wide)
#pragma unroll
                    for (int k = 0; k < COUNT * SIZE; k++)
                        wide[first[k / SIZE] + k % SIZE] = value[k];
                if (SLOPE)
                    store_like<float, COUNT>(out, first, value);
            },
            [&](int64_t i) {
                float total = 0, value = measure(i, x[i], &total);
                sum += (double)total;
                if (SLOPE && wide)
                    wide[i] = value;
                if (SLOPE)
                    out[i] = round_to<U>(value);
            });
        sum = LOSS ? block_reduce<BLOCK, Sum>(sum) : 0;
        if (LOSS && threadIdx.x == 0)
            b.parts[row * b.slots + chunk] += (b.row_weight ? b.row_weight[row] : 1) * sum;
    }
}

/* Derivatives of the forward, which have no factors, to those of the result. */
template <class U> static __global__ void scale_tile(BinaryTile<U> b, const U *kept)
{
    int64_t n = b.rows * b.cols;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += (int64_t)gridDim.x * BLOCK) {
        float value = b.factor_of(i / b.cols) * to_real(kept[i]);
        if (b.wide)
            b.wide[i] = value;
        b.out[i] = round_to<U>(value);
    }
}

/* ---- the table ---- */

template <class U> static BinaryTile<U> binary_of(const sweep *s, const tile *t, const double *scale, U *out)
{
    const shard_head *h = s->h;
    BinaryTile<U> b = {};
    b.rows = h->loss.rows;
    b.cols = t->count;
    b.chunks = divide_up(t->count, CHUNK);
    b.slots = divide_up(s->tile, CHUNK);
    b.col0 = h->loss.col0 + t->first;
    b.classes = h->loss.classes;
    b.logits = (const float *)s->logits;
    b.bias = (const float *)t->bias;
    b.class_weight = (const float *)t->class_weight;
    b.positive = h->positive ? (const float *)h->positive + t->first : NULL;
    b.pair = h->pair;
    b.pairs = h->pairs;
    b.scale = scale;
    b.parts = s->parts;
    b.wide = s->wide_derivatives && (void *)s->logits != t->narrow ? (float *)s->logits : NULL;
    b.out = out;
    b.packed = !out || packs_alike(s->logits, sizeof(float), out, sizeof(U));
    return b;
}

static bool fits(const shard_head *h)
{
    return h->dtype != SHARD_FLOAT64 && h->loss.rows > 0;
}

static shard_status begin(sweep *s, double *stats)
{
    (void)stats;
    return shard_cuda_zero(s->device, s->parts, (size_t)(s->h->loss.rows * divide_up(s->tile, CHUNK)) * sizeof(double));
}

static shard_status forward(sweep *s, const tile *t, double *stats, void *sum)
{
    const bool loss = !s->h->gradient_only, slope = sum || t->stash;
    (void)stats;
    if (!loss && !slope)
        return SHARD_OK;
    return by_narrow(s->h->dtype, [&](auto u) {
        using U = decltype(u);
        BinaryTile<U> b = binary_of<U>(s, t, NULL, slope ? (U *)t->narrow : NULL);
        b.wide = NULL;
        b.row_weight = s->h->row_weight;
        auto kernel = !slope ? binary_tile<U, true, false> : loss ? binary_tile<U, true, true> : binary_tile<U, false, true>;
        return launch(s->device, kernel, team_blocks(b.rows * b.chunks, BLOCK), BLOCK, b);
    });
}

static shard_status end(sweep *s, double *stats, void *sum)
{
    (void)sum;
    return shard_cuda_sum_rows(s->device, s->h->loss.rows * divide_up(s->tile, CHUNK), 1, 0, s->parts, SHARD_FLOAT64, false,
                               stats, SHARD_FLOAT64);
}

static shard_status gradient(sweep *s, const tile *t, const shard_loss_rows *rows)
{
    return by_narrow(s->h->dtype, [&](auto u) {
        using U = decltype(u);
        const BinaryTile<U> b = binary_of<U>(s, t, rows->scale, (U *)t->narrow);
        if (t->stash)
            return launch(s->device, scale_tile<U>, blocks_for(s->device, b.rows * b.cols, 8 * BLOCK), BLOCK, b,
                          (const U *)t->stash);
        return launch(s->device, binary_tile<U, false, true>, team_blocks(b.rows * b.chunks, BLOCK), BLOCK, b);
    });
}

extern "C" const head_loss shard_cuda_head_binary = {fits, true, false, begin, forward, end, gradient};
