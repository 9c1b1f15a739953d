/*
 * Maps: kernels in which element i of each output depends on element i of each input.
 *
 * A body is a struct with the arrays, what else it needs, and
 *     template <int N> struct In;                                        // N elements of each input
 *     template <int N> __device__ In<N> load(int64_t i) const;           // elements i ... i + N - 1
 *     template <int N> __device__ void store(int64_t i, const In<N> &) const;
 * It is called with N = PACK for whole packs, which it moves in one access each, and
 * with N = 1 for the rest, or for all elements where an array is not aligned. A thread
 * loads several packs before it stores the first: enough bytes are then under way, and
 * an output may be an input.
 */
#ifndef SHARD_DEVICE_CUDA_MAP_CUH
#define SHARD_DEVICE_CUDA_MAP_CUH

#include "device/cuda/kernel.cuh"

namespace shard
{

/* A factor that is one float64 in the device's memory, or 1. */
template <class R> static __device__ inline R scalar(const double *factor)
{
    return factor ? (R)__ldg(factor) : 1;
}

template <int PACK, int AHEAD, class Body> static __global__ void map(int64_t n, int64_t packs, Body body)
{
    int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK;
    for (int64_t i = first; i < packs; i += AHEAD * stride) {
        typename Body::template In<PACK> in[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * stride < packs)
                in[k] = body.template load<PACK>((i + k * stride) * PACK);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * stride < packs)
                body.template store<PACK>((i + k * stride) * PACK, in[k]);
    }
    for (int64_t i = packs * PACK + first; i < n; i += stride)
        body.template store<1>(i, body.template load<1>(i));
}

/* Runs the body on n elements, in packs of PACK where all its arrays are aligned for
 * them, AHEAD of which a thread has under way. */
template <int PACK, int AHEAD, class Body> shard_status run_map(shard_device *device, int64_t n, bool aligned, const Body &body)
{
    if (n == 0)
        return SHARD_OK;
    int64_t packs = aligned ? n / PACK : 0;
    return launch(device, map<PACK, AHEAD, Body>, blocks_for(device, packs ? packs : n, BLOCK), BLOCK, n, packs, body);
}

} // namespace shard

#endif
