/*
 * y = alpha x + beta y.
 *
 * Invariants: y is not read where beta is 0; x may be y. In packs of 16 bytes where
 * both are aligned, the rest one by one.
 */
#include "device/cuda/kernel.cuh"

using namespace shard;

template <class T, bool READS> static __device__ inline T blend(Real<T> alpha, T x, Real<T> beta, T y)
{
    Real<T> value = alpha * to_real(x);
    return round_to<T>(READS ? value + beta * to_real(y) : value);
}

template <class T, bool READS> static __global__ void axpby(int64_t n, int64_t packs, Real<T> alpha, const T *x, Real<T> beta, T *y)
{
    int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK;
    for (int64_t i = first; i < packs; i += stride) {
        Pack<T> from = load_pack(x + i * Pack<T>::SIZE), to = {};
        if (READS)
            to = load_pack(y + i * Pack<T>::SIZE);
        for (int k = 0; k < Pack<T>::SIZE; k++)
            to.value[k] = blend<T, READS>(alpha, from.value[k], beta, to.value[k]);
        store_pack(y + i * Pack<T>::SIZE, to);
    }
    for (int64_t i = packs * Pack<T>::SIZE + first; i < n; i += stride)
        y[i] = blend<T, READS>(alpha, x[i], beta, READS ? y[i] : x[i]);
}

shard_status shard_cuda_axpby(shard_device *device, int64_t n, double alpha, const void *x, double beta, void *y, shard_dtype dtype)
{
    if (n == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        int64_t packs = aligned16(x, y) ? n / Pack<T>::SIZE : 0;
        auto kernel = beta == 0 ? axpby<T, false> : axpby<T, true>;
        unsigned blocks = blocks_for(device, packs ? packs : n, BLOCK);
        return launch(device, kernel, blocks, BLOCK, n, packs, (Real<T>)alpha, (const T *)x, (Real<T>)beta, (T *)y);
    });
}
