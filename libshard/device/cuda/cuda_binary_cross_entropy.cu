/*
 * Binary cross-entropy with logits. Where the targets are pairs, a pass over all elements takes them for zeros, and
 * threads with a pair each correct its element: in a sum the element's summand, which both passes compute to the same
 * bits, is exchanged for that of a one. Of an infinite logit, whose summand is infinite, the first pass looks for the pair.
 * Gradients at pairs are computed before the pass, which may overwrite the logits, and stored after it. Sums are added up in
 * double, in an order that depends on the shapes alone.
 */
#include "device/cuda/rows.cuh"

using namespace shard;

template <class T> struct Binary {
    using R = Real<T>;
    const T *x, *target, *weight, *positive, *dy;
    const int64_t *pair;
    const double *row_weight, *scale;
    shard_binary_loss_shape shape; /* its pitch is not 0 */
    int64_t packed;

    __device__ double weight_of_row(int64_t row) const
    {
        return row_weight ? row_weight[row] : 1;
    }
    __device__ R target_at(int64_t row, int64_t column) const
    {
        return target ? to_real(target[row * shape.cols + column]) : 0;
    }
    /* Without the row's weight. */
    __device__ R loss(R value, R y, int64_t column) const
    {
        R p = positive ? to_real(positive[column]) : 1, w = weight ? to_real(weight[column]) : 1;
        return w * shard_binary_loss(value, y, p, log1p(exp(value < 0 ? value : -value)));
    }
    __device__ R slope(R value, R y, int64_t row, int64_t column, R factor) const
    {
        R p = positive ? to_real(positive[column]) : 1, w = weight ? to_real(weight[column]) : 1;
        R more = dy ? to_real(dy[row * shape.cols + column]) : 1;
        return factor * more * w * shard_binary_slope(value, y, p, exp(value < 0 ? value : -value));
    }
    __device__ R factor_of_row(int64_t row) const
    {
        return (R)(*scale * weight_of_row(row));
    }
    /* The row and local column of pair i; false if it is not here. A pair may be any number, as
     * its fault is noted by another call. */
    __device__ bool place(int64_t i, int64_t *row, int64_t *column) const
    {
        int64_t label = pair[shape.pairs + i];
        *row = pair[i];
        *column = label < 0 || label >= shape.classes ? -1 : label - shape.col0;
        return *row >= 0 && *row < shape.rows && *column >= 0 && *column < shape.cols;
    }
    __device__ bool has_pair(int64_t row, int64_t column) const
    {
        int64_t label = shape.col0 + column, first = shard_first_pair(pair, shape.pairs, row, label);
        return first < shape.pairs && pair[first] == row && pair[shape.pairs + first] == label;
    }
    __device__ R at(int64_t row, int64_t column) const
    {
        return to_real(x[row * shape.pitch + column]);
    }
};

/* ---- forward ---- */

/* The elements' losses if `each` is not NULL, and the sums of the chunks. */
template <class T, int LANES> static __global__ void measure(Binary<T> b, Rows shape, T *each, double *parts)
{
    using R = Real<T>;
    Team<LANES> team;
    for (int64_t index = team.index; index < shape.rows * shape.chunks; index += team.step) {
        int64_t row = index / shape.chunks, start = index % shape.chunks * shape.width;
        int64_t count = shape.cols - start < shape.width ? shape.cols - start : shape.width;
        const T *x = b.x + row * b.shape.pitch + start;
        double sum = 0, weight = b.weight_of_row(row);
        auto add = [&](int64_t i, R value) {
            R y = value == INFINITY && b.pair && b.has_pair(row, start + i) ? 1 : b.target_at(row, start + i);
            R loss = b.loss(value, y, start + i);
            sum += (double)loss;
            if (each)
                each[row * shape.cols + start + i] = round_to<T>((R)weight * loss);
        };
        walk(
            Cut<T>(x, count, b.packed), team.lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<T>::SIZE };
                R value[COUNT * SIZE];
                load_batch<T, COUNT>(x, first, value);
#pragma unroll
                for (int k = 0; k < COUNT * SIZE; k++)
                    add(first[k / SIZE] + k % SIZE, value[k]);
            },
            [&](int64_t i) { add(i, to_real(x[i])); });
        sum = team_reduce<LANES, Sum>(sum);
        if (team.lane == 0)
            parts[index] = weight * sum;
    }
}

/* The pairs' corrections, a sum for each block. */
template <class T> static __global__ void correct(Binary<T> b, T *each, double *parts)
{
    using R = Real<T>;
    double sum = 0;
    int64_t step = (int64_t)gridDim.x * BLOCK, row, column;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < b.shape.pairs; i += step) {
        if (!b.place(i, &row, &column))
            continue;
        R value = b.at(row, column), one = b.loss(value, 1, column);
        if (value == INFINITY)
            continue;
        double weight = b.weight_of_row(row);
        sum += weight * ((double)one - (double)b.loss(value, 0, column));
        if (each)
            each[row * b.shape.cols + column] = round_to<T>((R)weight * one);
    }
    sum = block_reduce<BLOCK, Sum>(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

static __global__ void add_parts(int64_t count, const double *parts, double *result)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += BLOCK)
        sum += parts[i];
    sum = block_reduce<BLOCK, Sum>(sum);
    if (threadIdx.x == 0)
        *result = sum;
}

template <class T>
static Binary<T> binary_of(const shard_binary_loss_shape *shape, const void *x, const void *target, const int64_t *pair,
                           const void *weight, const void *positive, const double *row_weight, const void *also)
{
    Binary<T> b = {};
    b.x = (const T *)x;
    b.target = (const T *)target;
    b.weight = (const T *)weight;
    b.positive = (const T *)positive;
    b.pair = pair;
    b.row_weight = row_weight;
    b.shape = *shape;
    b.shape.pitch = shard_pitch(shape->pitch, shape->cols);
    b.shape.pairs = pair ? shape->pairs : 0;
    b.packed = aligned_alike(x, also);
    return b;
}

/* Blocks for the pairs: their number depends on the pairs alone, and so does the order of the sums. */
static unsigned pair_blocks(int64_t pairs)
{
    int64_t blocks = divide_up(pairs, BLOCK);
    return (unsigned)(blocks < 1024 ? blocks : 1024);
}

shard_status shard_cuda_binary_cross_entropy(shard_device *device, const shard_binary_loss_shape *shape, const void *x,
                                             const void *target, const int64_t *pair, const void *weight, const void *positive,
                                             const double *row_weight, void *each, double *sum, shard_dtype dtype)
{
    if (shape->rows == 0 || shape->cols == 0)
        return sum ? shard_cuda_zero(device, sum, sizeof *sum) : SHARD_OK;
    Rows cut = cut_rows(device, shape->rows, shape->cols);
    int64_t teams = cut.rows * cut.chunks, of_pairs = target ? 0 : pair_blocks(shape->pairs);
    size_t bytes = (size_t)(teams + of_pairs) * sizeof(double);
    double *parts = (double *)shard_cuda_scratch(device, bytes);
    if (!parts)
        return shard_last_status();
    shard_status status = by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Binary<T> b = binary_of<T>(shape, x, target, pair, weight, positive, row_weight, NULL);
        bool few = short_rows(cut.cols, sizeof(T));
        SHARD_TRY(launch(device, few ? measure<T, WARP> : measure<T, BLOCK>, team_blocks(teams, few ? WARP : BLOCK), BLOCK, b,
                         cut, (T *)each, parts));
        return of_pairs ? launch(device, correct<T>, (unsigned)of_pairs, BLOCK, b, (T *)each, parts + teams) : SHARD_OK;
    });
    if (status == SHARD_OK && sum)
        status = launch(device, add_parts, 1, BLOCK, teams + of_pairs, parts, sum);
    shard_cuda_scratch_release(device, parts, bytes);
    return status;
}

/* ---- backward ---- */

template <class T, int LANES> static __global__ void differentiate(Binary<T> b, Rows shape, T *dx)
{
    using R = Real<T>;
    Team<LANES> team;
    for (int64_t index = team.index; index < shape.rows * shape.chunks; index += team.step) {
        int64_t row = index / shape.chunks, start = index % shape.chunks * shape.width;
        int64_t count = shape.cols - start < shape.width ? shape.cols - start : shape.width, from = row * b.shape.pitch + start;
        const T *x = b.x + from;
        T *out = dx + from;
        R factor = b.factor_of_row(row);
        walk(
            Cut<T>(x, count, b.packed), team.lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<T>::SIZE };
                R value[COUNT * SIZE];
                load_batch<T, COUNT>(x, first, value);
#pragma unroll
                for (int k = 0; k < COUNT * SIZE; k++) {
                    int64_t column = start + first[k / SIZE] + k % SIZE;
                    value[k] = b.slope(value[k], b.target_at(row, column), row, column, factor);
                }
                store_batch<T, COUNT>(out, first, value);
            },
            [&](int64_t i) {
                out[i] = round_to<T>(b.slope(to_real(x[i]), b.target_at(row, start + i), row, start + i, factor));
            });
    }
}

/* The gradients at the pairs. */
template <class T> static __global__ void find_slopes(Binary<T> b, T *found)
{
    int64_t step = (int64_t)gridDim.x * BLOCK, row, column;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < b.shape.pairs; i += step)
        if (b.place(i, &row, &column))
            found[i] = round_to<T>(b.slope(b.at(row, column), 1, row, column, b.factor_of_row(row)));
}

template <class T> static __global__ void put(Binary<T> b, const T *found, T *dx)
{
    int64_t step = (int64_t)gridDim.x * BLOCK, row, column;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < b.shape.pairs; i += step)
        if (b.place(i, &row, &column))
            dx[row * b.shape.pitch + column] = found[i];
}

shard_status shard_cuda_binary_cross_entropy_backward(shard_device *device, const shard_binary_loss_shape *shape, const void *x,
                                                      const void *target, const int64_t *pair, const void *weight,
                                                      const void *positive, const double *row_weight, const double *scale,
                                                      const void *dy, void *dx, shard_dtype dtype)
{
    if (shape->rows == 0 || shape->cols == 0)
        return SHARD_OK;
    Rows cut = cut_rows(device, shape->rows, shape->cols);
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Binary<T> b = binary_of<T>(shape, x, target, pair, weight, positive, row_weight, dx);
        b.scale = scale;
        b.dy = (const T *)dy;
        bool few = short_rows(cut.cols, sizeof(T));
        unsigned of_pairs = pair_blocks(b.shape.pairs);
        size_t bytes = (size_t)b.shape.pairs * sizeof(T);
        T *found = of_pairs ? (T *)shard_cuda_scratch(device, bytes) : NULL;
        if (of_pairs && !found)
            return shard_last_status();
        shard_status status = of_pairs ? launch(device, find_slopes<T>, of_pairs, BLOCK, b, found) : SHARD_OK;
        if (status == SHARD_OK)
            status = launch(device, few ? differentiate<T, WARP> : differentiate<T, BLOCK>,
                            team_blocks(cut.rows * cut.chunks, few ? WARP : BLOCK), BLOCK, b, cut, (T *)dx);
        if (status == SHARD_OK && of_pairs)
            status = launch(device, put<T>, of_pairs, BLOCK, b, (const T *)found, (T *)dx);
        if (found)
            shard_cuda_scratch_release(device, found, bytes);
        return status;
    });
}
