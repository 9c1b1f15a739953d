/* Sums along a dimension, in double, and their gradient. */
#include "device/cuda/axis.cuh"

using namespace shard;

template <class T> struct SumDim {
    double factor;
    const T *x;
    T *y;

    template <int LANES> __device__ void run(const Line &line, int lane) const
    {
        double sum = 0;
        for (int64_t k = lane; k < line.size; k += LANES)
            sum += (double)to_real(x[line.at(k)]);
        sum = line_sum<LANES>(sum);
        if (lane == 0)
            y[line.index] = round_to<T>((Real<T>)(factor * sum));
    }
};

shard_status shard_cuda_sum_dim(shard_device *device, const shard_axis *axis, double factor, const void *x, void *y,
                                shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return run_along(device, SumDim<T>{factor, (const T *)x, (T *)y}, *axis);
    });
}

template <class T> static __global__ void spread(shard_axis axis, Real<T> factor, const T *y, T *x)
{
    int64_t n = axis.outer * axis.size * axis.inner, step = (int64_t)gridDim.x * BLOCK, each = axis.size * axis.inner;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n; i += step)
        x[i] = round_to<T>(to_real(y[i / each * axis.inner + i % axis.inner]) * factor);
}

shard_status shard_cuda_spread_dim(shard_device *device, const shard_axis *axis, double factor, const void *y, void *x,
                                   shard_dtype dtype)
{
    int64_t n = axis->outer * axis->size * axis->inner;
    if (n == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return launch(device, spread<T>, blocks_for(device, n, BLOCK), BLOCK, *axis, (Real<T>)factor, (const T *)y, (T *)x);
    });
}
