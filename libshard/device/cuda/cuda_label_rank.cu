/*
 * The target's logit, and the number of logits that come before it.
 *
 * Invariants: logits are counted by integers, whose sums no order changes, so that the chunks of a row may be added
 * by atomics. A NaN counts as the largest of all, so that it is not a hit.
 */
#include "device/cuda/label_rank.cuh"

using namespace shard;

enum { CHUNK = 4096 /* columns that a warp counts */, WARPS = BLOCK / WARP, AHEAD = 4 };

template <class T>
static __global__ void pick_target(shard_cross_entropy_shape shape, const T *x, const int64_t *target, double *out)
{
    int64_t stride = (int64_t)gridDim.x * BLOCK;
    for (int64_t row = (int64_t)blockIdx.x * BLOCK + threadIdx.x; row < shape.rows; row += stride) {
        int64_t column = shard_label_column(&shape, target[row]);
        out[row] = column >= 0 ? (double)to_real(x[row * shard_pitch(shape.pitch, shape.cols) + column]) : 0;
    }
}

shard_status shard_cuda_pick_target(shard_device *device, const shard_cross_entropy_shape *shape, const void *x,
                                    const int64_t *target, double *out, shard_dtype dtype)
{
    if (shape->rows == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return launch(device, pick_target<T>, blocks_for(device, shape->rows, BLOCK), BLOCK, *shape, (const T *)x, target, out);
    });
}

/* How many of a warp's elements, from 0 to end, are before(i, value): up to the first
 * whole pack one by one, then packs, then the rest. */
template <class T, class Before> static __device__ inline int count(const T *values, int end, int lane, const Before &before)
{
    const int size = Pack<T>::SIZE;
    int sum = 0, whole = (int)((16 - ((uintptr_t)values & 15)) % 16 / sizeof(T));
    for (int i = lane; i < whole && i < end; i += WARP)
        sum += before(i, to_real(values[i]));
    int i = whole + lane * size;
    for (; i + (AHEAD - 1) * WARP * size + size <= end; i += AHEAD * WARP * size) {
        Pack<T> in[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            in[a] = load_pack(values + i + a * WARP * size);
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            for (int k = 0; k < size; k++)
                sum += before(i + a * WARP * size + k, to_real(in[a].value[k]));
    }
    for (; i + size <= end; i += WARP * size) {
        Pack<T> in = load_pack(values + i);
        for (int k = 0; k < size; k++)
            sum += before(i + k, to_real(in.value[k]));
    }
    for (; i < end; i++) /* of at most one lane */
        sum += before(i, to_real(values[i]));
    return warp_reduce<Sum>(sum);
}

/* Each warp takes a chunk of a row. Columns count from its first, so that 32 bits are enough. */
template <class T>
static __global__ void count_ahead(shard_cross_entropy_shape shape, int64_t chunks, const T *x, const int64_t *target,
                                   const double *logit, int64_t ignored, unsigned long long *ahead)
{
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, row = item / chunks;
    int lane = threadIdx.x % WARP;
    if (row >= shape.rows)
        return;
    if (shard_label_ignored(&shape, target[row])) {
        if (lane == 0 && item % chunks == 0)
            ahead[row] = (unsigned long long)ignored;
        return;
    }
    using R = Real<T>;
    int64_t start = item % chunks * CHUNK, column = target[row] - shape.col0 - start;
    int left = column < 0 ? 0 : column < CHUNK ? (int)column : CHUNK; /* of the target's: those that come first in a tie */
    int end = shape.cols - start < CHUNK ? (int)(shape.cols - start) : CHUNK;
    const T *values = x + row * shard_pitch(shape.pitch, shape.cols) + start;
    R own = (R)logit[row];
    int sum = count(values, end, lane, [=](int i, R value) { return comes_before(value, own, i < left); });
    if (lane == 0)
        atomicAdd(ahead + row, (unsigned long long)sum);
}

shard_status shard_cuda_count_ahead(shard_device *device, const shard_cross_entropy_shape *shape, const void *x,
                                    const int64_t *target, const double *logit, int64_t ignored, int64_t *ahead,
                                    shard_dtype dtype)
{
    if (shape->rows == 0)
        return SHARD_OK;
    SHARD_TRY(shard_cuda_zero(device, ahead, (size_t)shape->rows * sizeof *ahead));
    int64_t chunks = shape->cols ? divide_up(shape->cols, CHUNK) : 1;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return launch(device, count_ahead<T>, (unsigned)divide_up(shape->rows * chunks, WARPS), BLOCK, *shape, chunks,
                      (const T *)x, target, logit, ignored, (unsigned long long *)ahead);
    });
}
