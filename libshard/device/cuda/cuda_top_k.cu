/*
 * The elements that come first in the order of extreme_dim: one along a dimension, or the
 * first k of a row.
 *
 * Of a row, or a chunk of it, a block finds the first k so: each thread goes over its elements
 * and keeps the first KEEP of them that come behind all found so far; then the block takes the
 * first of the threads' ones, again and again. Where a thread has run out of those it kept
 * though it had seen more, all threads go over the elements again. For random elements and k
 * up to hundreds once is enough, nearly always. Where rows are few they are cut into chunks,
 * of whose first k each the first k are taken.
 *
 * Invariants: no two elements are equal in the order, as their indices differ; so the result is
 * the same whichever thread saw what.
 */
#include "device/cuda/axis.cuh"

using namespace shard;

enum { KEEP = 4, LEAST_CHUNK = 4096 /* elements that are worth a block */ };

template <class R> struct Element {
    R value;
    int64_t index;
};

template <class R> static __device__ inline Element<R> nothing(bool largest)
{
    return Element<R>{(R)(largest ? -INFINITY : INFINITY), INT64_MAX};
}

template <class R> static __device__ inline bool comes_first(bool largest, const Element<R> &a, const Element<R> &b)
{
    if (largest ? a.value < b.value : a.value > b.value)
        return false;
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan)
        return a_nan;
    return a_nan || a.value == b.value ? a.index < b.index : true;
}

/* Every thread of the team gets the first one of all threads'. */
template <int LANES, class R> static __device__ inline Element<R> team_first(bool largest, Element<R> e)
{
    if constexpr (LANES == 1) {
        return e;
    } else {
        for (int step = WARP / 2; step > 0; step /= 2) {
            Element<R> other = {__shfl_xor_sync(0xffffffffu, e.value, step), __shfl_xor_sync(0xffffffffu, e.index, step)};
            if (comes_first(largest, other, e))
                e = other;
        }
        if constexpr (LANES > WARP) {
            __shared__ R values[LANES / WARP];
            __shared__ int64_t indices[LANES / WARP];
            __syncthreads(); /* the last call's readers are done */
            if (threadIdx.x % WARP == 0) {
                values[threadIdx.x / WARP] = e.value;
                indices[threadIdx.x / WARP] = e.index;
            }
            __syncthreads();
            for (int i = 0; i < LANES / WARP; i++) {
                Element<R> other = {values[i], indices[i]};
                if (comes_first(largest, other, e))
                    e = other;
            }
        }
        return e;
    }
}

/* ---- the first one ---- */

template <class T> struct Extreme {
    using R = Real<T>;
    int64_t largest, start;
    const int64_t *index_of;
    const T *x;
    T *y;
    int64_t *index;

    template <int LANES> __device__ void run(const Line &line, int lane) const
    {
        Element<R> first = nothing<R>(largest);
        for (int64_t k = lane; k < line.size; k += LANES) {
            Element<R> e = {to_real(x[line.at(k)]), index_of ? index_of[line.at(k)] : start + k};
            if (comes_first(largest, e, first))
                first = e;
        }
        first = team_first<LANES>(largest, first);
        if (lane == 0 && y)
            y[line.index] = round_to<T>(first.value);
        if (lane == 0 && index)
            index[line.index] = first.index;
    }
};

shard_status shard_cuda_extreme_dim(shard_device *device, const shard_axis *axis, bool largest, int64_t start,
                                    const int64_t *index_of, const void *x, void *y, int64_t *index, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return run_along(device, Extreme<T>{largest, start, index_of, (const T *)x, (T *)y, index}, *axis);
    });
}

/* ---- the first k ---- */

/* A row's chunk that is a block's: its elements, and the order's first KEEP that a thread has seen. */
template <class T> struct Chunk {
    using R = Real<T>;
    const T *x;
    const int64_t *index_of;
    int64_t count, start; /* without index_of, the index of element i is start + i */
    Element<R> kept[KEEP];
    bool more; /* than the kept ones */

    __device__ Element<R> at(int64_t i) const
    {
        return Element<R>{to_real(x[i]), index_of ? index_of[i] : start + i};
    }

    __device__ void keep(const Element<R> &e)
    {
        more |= kept[KEEP - 1].index != INT64_MAX;
        if (!comes_first(true, e, kept[KEEP - 1]))
            return;
        kept[KEEP - 1] = e;
#pragma unroll
        for (int i = KEEP - 1; i > 0; i--)
            if (comes_first(true, kept[i], kept[i - 1])) {
                Element<R> swapped = kept[i];
                kept[i] = kept[i - 1];
                kept[i - 1] = swapped;
            }
    }

    /* Searches the elements after `last`, or all of them if nothing was found so far. */
    __device__ void search(bool begins, const Element<R> &last)
    {
        more = false;
        for (int i = 0; i < KEEP; i++)
            kept[i] = nothing<R>(true);
        for (int64_t i = threadIdx.x; i < count; i += BLOCK) {
            Element<R> e = at(i);
            if (begins || comes_first(true, last, e))
                keep(e);
        }
    }

    /* This thread's candidate: its first element; a NaN of index -1, which comes before all others, if it must
     * search again. */
    __device__ Element<R> offer() const
    {
        if (kept[0].index == INT64_MAX && more)
            return Element<R>{(R)NAN, -1};
        return kept[0];
    }

    __device__ void taken(const Element<R> &first)
    {
        if (kept[0].index != first.index)
            return;
#pragma unroll
        for (int i = 0; i < KEEP - 1; i++)
            kept[i] = kept[i + 1];
        kept[KEEP - 1] = nothing<R>(true);
    }
};

/* y, index [rows, chunks, k] of x [rows, cols], cut into chunks of `width`. */
template <class T>
static __global__ void top_k(int64_t rows, int64_t cols, int64_t chunks, int64_t width, int64_t k, int64_t start,
                             const int64_t *index_of, const T *x, T *y, int64_t *index)
{
    using R = Real<T>;
    for (int64_t item = blockIdx.x; item < rows * chunks; item += gridDim.x) {
        int64_t from = item % chunks * width, at = item / chunks * cols + from;
        int64_t count = cols - from < width ? cols - from : width;
        Chunk<T> chunk = {x + at, index_of ? index_of + at : NULL, count < 0 ? 0 : count, start + from, {}, false};
        Element<R> first = nothing<R>(true);
        chunk.search(true, first);
        for (int64_t found = 0; found < k;) {
            Element<R> next = team_first<BLOCK>(true, chunk.offer());
            if (next.index < 0) {
                chunk.search(found == 0, first);
                continue;
            }
            first = next;
            if (first.index != INT64_MAX)
                chunk.taken(first);
            if (threadIdx.x == 0) {
                y[item * k + found] = round_to<T>(first.value);
                index[item * k + found] = first.index;
            }
            found++;
        }
    }
}

template <class T>
static shard_status find(shard_device *device, int64_t rows, int64_t cols, int64_t chunks, int64_t k, int64_t start,
                         const int64_t *index_of, const T *x, T *y, int64_t *index)
{
    int64_t width = cols ? divide_up(cols, chunks) : 1;
    return launch(device, top_k<T>, blocks_for(device, rows * chunks, 1), BLOCK, rows, cols, chunks, width, k, start, index_of, x,
                  y, index);
}

/* Few rows are cut into chunks that are enough for the device, and of many more elements than k each. */
static int64_t count_chunks(shard_device *device, int64_t rows, int64_t cols, int64_t k)
{
    int64_t wanted = divide_up((int64_t)shard_cuda_of(device)->multiprocessors * 2, rows);
    int64_t least = LEAST_CHUNK, most = cols / (least < 8 * k ? 8 * k : least);
    return wanted < most ? wanted : most < 1 ? 1 : most;
}

shard_status shard_cuda_top_k(shard_device *device, int64_t rows, int64_t cols, int64_t k, int64_t start,
                              const int64_t *index_of, const void *x, void *y, int64_t *index, shard_dtype dtype)
{
    if (rows == 0)
        return SHARD_OK;
    int64_t chunks = count_chunks(device, rows, cols, k), found = rows * chunks * k;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        if (chunks == 1)
            return find(device, rows, cols, 1, k, start, index_of, (const T *)x, (T *)y, index);
        size_t bytes = (size_t)found * (sizeof(int64_t) + sizeof(T));
        int64_t *indices = (int64_t *)shard_cuda_scratch(device, bytes);
        if (!indices)
            return shard_last_status();
        T *values = (T *)(indices + found);
        shard_status status = find(device, rows, cols, chunks, k, start, index_of, (const T *)x, values, indices);
        if (status == SHARD_OK)
            status = find(device, rows, chunks * k, 1, k, 0, indices, (const T *)values, (T *)y, index);
        shard_cuda_scratch_release(device, indices, bytes);
        return status;
    });
}
