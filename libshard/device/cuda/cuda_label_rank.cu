/*
 * The target's logit, and how many logits come before it.
 *
 * Invariants: logits are counted by whole numbers, whose sums no order changes, so
 * that the pieces of a row may be added by atomics. A NaN counts as the largest of
 * all, so that it is not taken for a hit.
 */
#include "device/cuda/kernel.cuh"

using namespace shard;

enum { PIECE = 4096 /* columns that a warp counts */, WARPS = BLOCK / WARP, AHEAD = 4 };

template <class T>
static __global__ void pick_target(shard_cross_entropy_shape shape, const T *x, const int64_t *target, double *out)
{
    int64_t stride = (int64_t)gridDim.x * BLOCK;
    for (int64_t row = (int64_t)blockIdx.x * BLOCK + threadIdx.x; row < shape.rows; row += stride) {
        int64_t column = target[row] - shape.col0;
        bool own = target[row] != shape.ignore_index && column >= 0 && column < shape.cols;
        out[row] = own ? (double)to_real(x[row * shape.cols + column]) : -INFINITY;
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

/* Whether x comes before the target's logit; `left` is whether its column does. */
template <class R> static __device__ inline bool before(R x, R logit, bool left)
{
    if (logit != logit)
        return left && x != x;
    return left ? !(x < logit) : !(x <= logit);
}

/* Each warp takes a piece of a row: up to the first whole pack one by one, then packs,
 * then the rest. */
template <class T>
static __global__ void count_ahead(shard_cross_entropy_shape shape, int64_t pieces, const T *x, const int64_t *target,
                                   const double *logit, unsigned long long *ahead)
{
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, row = item / pieces;
    int lane = threadIdx.x % WARP;
    if (row >= shape.rows)
        return;
    if (target[row] == shape.ignore_index) {
        if (lane == 0 && item % pieces == 0)
            ahead[row] = (unsigned long long)shape.classes;
        return;
    }
    const int size = Pack<T>::SIZE;
    int64_t column = target[row] - shape.col0, start = item % pieces * PIECE;
    int64_t end = start + PIECE < shape.cols ? start + PIECE : shape.cols;
    const T *values = x + row * shape.cols;
    Real<T> own = (Real<T>)logit[row];
    int count = 0;
    auto add = [&](int64_t i, T value) { count += i != column && before(to_real(value), own, i < column); };

    int64_t whole = start + (int64_t)((16 - ((uintptr_t)(values + start) & 15)) % 16 / sizeof(T));
    for (int64_t i = start + lane; i < whole && i < end; i += WARP)
        add(i, values[i]);
    int64_t i = whole + lane * size;
    for (; i + (AHEAD - 1) * WARP * size + size <= end; i += AHEAD * WARP * size) {
        Pack<T> in[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            in[a] = load_pack(values + i + a * WARP * size);
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            for (int k = 0; k < size; k++)
                add(i + a * WARP * size + k, in[a].value[k]);
    }
    for (; i + size <= end; i += WARP * size) {
        Pack<T> in = load_pack(values + i);
        for (int k = 0; k < size; k++)
            add(i + k, in.value[k]);
    }
    for (; i < end; i++) /* of at most one lane */
        add(i, values[i]);

    count = warp_reduce<Sum>(count);
    if (lane == 0)
        atomicAdd(ahead + row, (unsigned long long)count);
}

shard_status shard_cuda_count_ahead(shard_device *device, const shard_cross_entropy_shape *shape, const void *x,
                                    const int64_t *target, const double *logit, int64_t *ahead, shard_dtype dtype)
{
    if (shape->rows == 0)
        return SHARD_OK;
    SHARD_TRY(shard_cuda_zero(device, ahead, (size_t)shape->rows * sizeof *ahead));
    int64_t pieces = shape->cols ? divide_up(shape->cols, PIECE) : 1;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return launch(device, count_ahead<T>, (unsigned)divide_up(shape->rows * pieces, WARPS), BLOCK, *shape, pieces,
                      (const T *)x, target, logit, (unsigned long long *)ahead);
    });
}
