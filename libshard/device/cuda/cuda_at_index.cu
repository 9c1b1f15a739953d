/* Elements at given indices along a dimension: gathered, or added to. */
#include "device/cuda/kernel.cuh"

using namespace shard;

/* The element that the index selects in [outer, size, inner], for element `at` of [outer, count, inner]; -1:
 * outside. */
static __device__ inline int64_t element_of(const shard_axis &axis, int64_t count, int64_t start, int64_t skip,
                                            const int64_t *index, int64_t at)
{
    int64_t i = index[at], outer = at / (count * axis.inner);
    bool here = i != skip && i >= start && i - start < axis.size;
    return here ? (outer * axis.size + i - start) * axis.inner + at % axis.inner : -1;
}

template <class T>
static __global__ void gather_at(shard_axis axis, int64_t count, int64_t start, int64_t skip, const int64_t *index, const T *x,
                                 T *y)
{
    int64_t n = axis.outer * count * axis.inner, step = (int64_t)gridDim.x * BLOCK;
    for (int64_t at = (int64_t)blockIdx.x * BLOCK + threadIdx.x; at < n; at += step) {
        int64_t from = element_of(axis, count, start, skip, index, at);
        y[at] = from < 0 ? round_to<T>((Real<T>)0) : x[from];
    }
}

shard_status shard_cuda_gather_at(shard_device *device, const shard_axis *axis, int64_t count, int64_t start, int64_t skip,
                                  const int64_t *index, const void *x, void *y, shard_dtype dtype)
{
    int64_t n = axis->outer * count * axis->inner;
    if (n == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return launch(device, gather_at<T>, blocks_for(device, n, BLOCK), BLOCK, *axis, count, start, skip, index, (const T *)x,
                      (T *)y);
    });
}

/* A thread adds all summands of its element of outer and inner, in order. */
template <class T>
static __global__ void add_at(shard_axis axis, int64_t count, int64_t start, int64_t skip, const int64_t *index, Real<T> factor,
                              const T *value, T *x)
{
    int64_t lines = axis.outer * axis.inner, step = (int64_t)gridDim.x * BLOCK;
    for (int64_t line = (int64_t)blockIdx.x * BLOCK + threadIdx.x; line < lines; line += step)
        for (int64_t i = 0; i < count; i++) {
            int64_t at = (line / axis.inner * count + i) * axis.inner + line % axis.inner;
            int64_t to = element_of(axis, count, start, skip, index, at);
            if (to >= 0)
                x[to] = round_to<T>(to_real(x[to]) + (value ? factor * to_real(value[at]) : factor));
        }
}

shard_status shard_cuda_add_at(shard_device *device, const shard_axis *axis, int64_t count, int64_t start, int64_t skip,
                               const int64_t *index, double factor, const void *value, void *x, shard_dtype dtype)
{
    int64_t lines = axis->outer * axis->inner;
    if (lines == 0 || count == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return launch(device, add_at<T>, blocks_for(device, lines, BLOCK), BLOCK, *axis, count, start, skip, index,
                      (Real<T>)factor, (const T *)value, (T *)x);
    });
}
